"""Gradient flow whose stiff part is integrated exactly in function space."""

import logging

import equinox as eqx
from jaxtyping import Array, Float

from .._core import Problem
from ..losses import Hinge
from ._expansion import Flowing
from ._exponential import AbstractExponential
from ._kernel_part import frozen_jacobian, JacobianAndModes, kernel_part, KernelPart, require_no_decay
from ._linear_part import Model
from ._modes import no_modes
from ._tableau import AbstractTableau, LOG_TIME_3


_log = logging.getLogger("jaxsolve")


class FunctionSpace(AbstractExponential):
    r"""An exponential Runge-Kutta method for gradient flow, which is stiff only in function space.

    The stiff part of $\theta' = -\eta J^T \nabla\ell(f)$ is $A = -\eta J^T H J$, where H is the Hessian of the loss in
    f. Its rank is at most n c. Every step integrates it exactly, through the eigenvectors of the kernel
    $H^{1/2} J \eta J^T H^{1/2}$ at the start of the step. An explicit method handles the rest, the change of features.
    Step sizes therefore follow the features, and grow without bound as the flow converges. Where H = 0 (plain hinge)
    only the explicit method remains.

    With more than 500 outputs only the fastest modes are followed from step to step. All modes are recomputed when a
    step is so long that the others are stiff as well. Memory: two n c by n c matrices, and the activations of all
    layers.

    With diffrax: `solver = FunctionSpace(problem)`, then `diffrax.diffeqsolve(solver.terms, solver, 0, T,
    solver.first_step, solver.start, stepsize_controller=DisplacementController(1e-4))`. `js.GradientFlow` does this for
    you. The solver only follows the flow of its problem, forward in time. Dense output between steps is as accurate as
    the run: errors fall like the third power of the step size (fourth for Krogstad). `SaveAt(ts=...)` stores nothing
    per step; `SaveAt(dense=True)` stores two n c by n c matrices per step, for `max_steps` steps: keep that small.

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
        TypeError: used on a state other than `start`.
        RuntimeError: diffrax is given other terms, or a final time before the initial one.
    """

    problem: Problem | None = None
    tableau: AbstractTableau = eqx.field(static=True, default=LOG_TIME_3)  # decides the program

    @property
    def model(self) -> Model:
        return Model(self._problem)

    @property
    def gradients(self) -> int:
        # One more for the force at the start, which is pulled back through J.
        return self.tableau.evaluations + 1

    @property
    def kernels(self) -> int:
        return 1

    def known(self, y0: Flowing) -> JacobianAndModes:
        require_no_decay(self._problem, type(self).__name__)
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
        # Computed at the end of the step, where the outputs need the same forward pass.
        return known._replace(jacobian=frozen_jacobian(model, model.start + y1.displacement))
