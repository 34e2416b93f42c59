"""Gradient flow with few parameters, whose full curvature is treated exactly."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._core import Problem
from ._expansion import Flowing
from ._exponential import AbstractExponential
from ._hessian_part import hessian_part, HessianPart
from ._linear_part import Model
from ._tableau import AbstractTableau, HOCHBRUCK_OSTERMANN_3


class ParameterSpace(AbstractExponential):
    r"""An exponential Runge-Kutta method for gradient flow of a network with few parameters P.

    Every step treats $A = -\eta \nabla^2 L$ at its start exactly, through the eigenvectors of the P by P Hessian. An
    explicit method handles the rest (an exponential Rosenbrock method). It is cheaper than
    `js.integrators.FunctionSpace` if the training set has more outputs than the network has parameters, as for teachers
    and students. Its steps grow without bound even where a residual remains: there the curvature of the network itself
    matters, which the kernel lacks.

    With diffrax it is used like `js.integrators.FunctionSpace`. Memory: two P by P matrices.

    Arguments:
        problem: the problem; None leaves that to `js.GradientFlow`.
        tableau: the method.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> solver = js.integrators.ParameterSpace(problem)
        >>> print(solver.gradients, "gradients per step: 3, and one for each of 12 parameters")
        15 gradients per step: 3, and one for each of 12 parameters
        >>> flow = js.GradientFlow(js.integrators.ParameterSpace(), rtol=1e-3)  # `js.solve` gives it the problem

    Raises:
        ValueError: used without a problem; the loss cannot be differentiated twice.
        TypeError: used on a state other than `start`.
        RuntimeError: diffrax is given other terms, or a final time before the initial one.
    """

    problem: Problem | None = None
    tableau: AbstractTableau = eqx.field(static=True, default=HOCHBRUCK_OSTERMANN_3)  # decides the program

    @property
    def model(self) -> Model:
        return Model(self._problem)

    @property
    def gradients(self) -> int:
        # Each column of the Hessian counts as one.
        return self.tableau.evaluations + 1 + self.model.start.size

    @property
    def kernels(self) -> int:
        return 0

    def known(self, y0: Flowing) -> Float[Array, ""]:
        return jnp.zeros((), y0.outputs.dtype)  # a placeholder: diffrax's state must hold an array to carry an error

    def linear_part(
        self, model: Model, y0: Flowing, h: Float[Array, ""], known: Float[Array, ""]
    ) -> tuple[HessianPart, Float[Array, ""]]:
        del h
        return hessian_part(model, model.start + y0.displacement), known

    def arrived(self, model: Model, y1: Flowing, known: Float[Array, ""]) -> Float[Array, ""]:
        return known
