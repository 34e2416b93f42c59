"""Gradient flow with momentum, whose stiff part is integrated exactly in function space."""

import equinox as eqx
from jaxtyping import Array, Float

from .._checks import one_number
from .._core import Problem
from ._expansion import Flowing
from ._exponential import AbstractExponential
from ._function_space import FunctionSpace
from ._inertial_part import InertialModel, InertialPart
from ._kernel_part import JacobianAndModes, require_no_decay
from ._linear_part import Model
from ._tableau import AbstractTableau, HOCHBRUCK_OSTERMANN_3


class InertialFunctionSpace(AbstractExponential):
    """`FunctionSpace` for tau theta'' + theta' = -eta dL/dtheta, from rest. Steps may be longer than oscillations.

    Used by `js.MomentumFlow`. Its state holds the displacement of all parameters and, in a second row, tau theta'.

    Arguments:
        problem: the problem.
        tau: the relaxation time, > 0.
        tableau: the method.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> solver = js.integrators.InertialFunctionSpace(problem, tau=0.5)
        >>> print(solver.start.displacement.shape)  # parameters, and beneath them tau theta'
        (2, 12)

    Raises:
        ValueError: the loss cannot be differentiated twice, or tau is not > 0.
        TypeError: used on a state other than `start`.
        RuntimeError: diffrax is given other terms, or a final time before the initial one.
    """

    problem: Problem | None
    tau: Float[Array, ""]
    tableau: AbstractTableau = eqx.field(static=True)  # decides the program

    def __init__(
        self, problem: Problem, tau: Float[Array, ""] | float, tableau: AbstractTableau = HOCHBRUCK_OSTERMANN_3
    ):
        self.problem, self.tableau = problem, tableau
        self.tau = one_number(tau, "tau").astype(problem.dtype)

    @property
    def model(self) -> InertialModel:
        return InertialModel(Model(self._problem), self.tau)

    @property
    def gradients(self) -> int:
        return self._inner.gradients

    @property
    def kernels(self) -> int:
        return self._inner.kernels

    def known(self, y0: Flowing) -> JacobianAndModes:
        require_no_decay(self._problem, type(self).__name__)
        return self._inner.known(_position(y0))

    def linear_part(
        self, model: InertialModel, y0: Flowing, h: Float[Array, ""], known: JacobianAndModes
    ) -> tuple[InertialPart, JacobianAndModes]:
        # `modes` compares a rate times this with its bounds. The stiffness of an overdamped mode is h rate; for an
        # oscillating mode it is the square of its phase, h^2 rate/tau.
        kernel, known = self._inner.linear_part(model.plain, _position(y0), h + h**2 / model.tau, known)
        return InertialPart(kernel, model.tau, self.tableau.highest), known

    def arrived(self, model: InertialModel, y1: Flowing, known: JacobianAndModes) -> JacobianAndModes:
        return self._inner.arrived(model.plain, _position(y1), known)

    @property
    def _inner(self) -> FunctionSpace:
        return FunctionSpace(self._problem, self.tableau)


def _position(y: Flowing) -> Flowing:
    return y._replace(displacement=y.displacement[0])
