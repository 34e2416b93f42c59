"""Gradient flow with its stiff part taken exactly in function space."""

import logging

import equinox as eqx
from jaxtyping import Array, Float

from .._core import Problem
from ..losses import Hinge
from ._expansion import Flowing
from ._exponential import AbstractExponential
from ._kernel_part import frozen_jacobian, JacobianAndModes, kernel_part, KernelPart
from ._linear_part import Model
from ._modes import no_modes
from ._tableau import AbstractTableau, LOG_TIME_3


_log = logging.getLogger("jaxsolve")


class FunctionSpace(AbstractExponential):
    r"""An exponential Runge-Kutta method for gradient flow, which is stiff only in function space.

    In $\theta' = -\eta J^T \nabla\ell(f)$ what is stiff is $A = -\eta J^T H J$, H the Hessian of the loss in f: of
    rank n c at most. Every step integrates it exactly, through the eigenvectors of the kernel
    $H^{1/2} J \eta J^T H^{1/2}$ at its start, and an explicit method does the rest: how features change. So the steps
    follow the features, and grow without bound as the flow converges. Where H = 0 (plain hinge) only the explicit
    method is left.

    With more than 500 outputs only the fastest modes are followed from step to step. All modes are found again when a
    step is so long that the others are stiff as well. Memory: two matrices of n c by n c, and the activations of all
    layers.

    With diffrax: `solver = FunctionSpace(problem)`, then `diffrax.diffeqsolve(solver.terms, solver, 0, T,
    solver.first_step, solver.start, stepsize_controller=DisplacementController(1e-4))`. `js.GradientFlow` does that.
    It follows the problem's own flow, forward in time. Between steps its dense output is as exact as a whole run:
    errors fall like the third power of the step (fourth for Krogstad). `SaveAt(ts=...)` keeps nothing of a step;
    `SaveAt(dense=True)` keeps two matrices of n c by n c for each of `max_steps` steps, so give few of them.

    Arguments:
        problem: the problem; None leaves that to `js.GradientFlow`.
        tableau: the method.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> solver = js.integrators.FunctionSpace(problem)
        >>> print(solver.gradients, "gradients and", solver.kernels, "kernel per step")
        3 gradients and 1 kernel per step
        >>> flow = js.GradientFlow(js.integrators.FunctionSpace(), rtol=1e-3)  # `js.solve` gives it the problem

    Raises:
        ValueError: used without a problem; the loss cannot be differentiated twice.
        TypeError: used on another state than `start`.
        RuntimeError: diffrax is given other terms, or a last time before the first.
    """

    problem: Problem | None = None
    tableau: AbstractTableau = eqx.field(static=True, default=LOG_TIME_3)  # decides the program

    @property
    def model(self) -> Model:
        return Model(self._problem)

    @property
    def gradients(self) -> int:
        # One for the force at the start, by its pull through J.
        return self.tableau.evaluations + 1

    @property
    def kernels(self) -> int:
        return 1

    def known(self, y0: Flowing) -> JacobianAndModes:
        if isinstance(self._problem.loss, Hinge):
            _log.info("plain hinge has no Hessian: FunctionSpace integrates it as an explicit method")
        model = self.model
        jacobian = frozen_jacobian(model, model.start + y0.displacement)
        return JacobianAndModes(jacobian, no_modes(y0.outputs.size, y0.outputs.dtype))

    def linear_part(
        self, model: Model, y0: Flowing, h: Float[Array, ""], known: JacobianAndModes
    ) -> tuple[KernelPart, JacobianAndModes]:
        return kernel_part(model.problem, y0.outputs, h, known)

    def arrived(self, model: Model, y1: Flowing, known: JacobianAndModes) -> JacobianAndModes:
        # Found where the step ends, as the outputs there need the same forward pass.
        return known._replace(jacobian=frozen_jacobian(model, model.start + y1.displacement))
