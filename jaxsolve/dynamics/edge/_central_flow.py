"""The flow that gradient descent follows at the edge of stability."""

from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from ..._checks import require_size
from ..._core import Certificate, Observed, Problem, View
from ...until import AbstractCondition
from ..descent._optimizer import Optimizer, require_scaling
from ..flow._certificate import energy_balance
from ..flow._flow import AbstractFlow, read_options
from ..flow._integrator import controller, ParameterNorm
from ..flow._system import AbstractSystem, default_rtol, SMOOTH_RTOL
from ._central_step import CentralState, CentralStep, NO_DERIVATIVES, Point
from ._edge_optimizer import AbstractPreconditioner, either, Plain, read_preconditioner


class _Norm(eqx.Module):
    """The root mean square over a network's own parameters, or that over nu if it is larger."""

    size: int = eqx.field(static=True)  # a shape
    parameters: ParameterNorm

    def __call__(self, y: Point) -> Float[Array, ""]:
        w, nu = y.moving[: self.size], y.moving[self.size : -1]
        own = self.parameters.padding
        squares = jnp.sum(nu**2) / max(1, nu.size) * (own if nu.size == self.size else 1.0)
        # The larger of two means: parameters, which may be many, do not hide an error of one shared nu.
        return jnp.sqrt(jnp.maximum(jnp.mean(w**2) * own, squares))


class CentralSystem(AbstractSystem):
    """The central flow as `AbstractFlow` runs it."""

    problem: Problem
    solver: CentralStep
    controller: diffrax.PIDController

    def __init__(self, problem: Problem, optimizer: AbstractPreconditioner, k: int, rtol: Any, atol: Any):
        self.problem = problem
        size = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
        rtol = default_rtol(problem) if rtol is None else rtol
        atol = 1e-2 * SMOOTH_RTOL if atol is None else atol
        # At the default tolerance an eigenvalue is held from a fifth of a step of descent before it reaches the edge.
        finer = rtol / SMOOTH_RTOL
        self.solver = CentralStep(problem, optimizer, min(k, size), 0.2 * finer**0.25, 1e-3 * finer**0.5)
        self.controller = controller(problem, rtol, atol, _Norm(size, ParameterNorm(problem)))

    @property
    def valid(self) -> Bool[Array, ""]:
        rate = self.solver.optimizer.rate
        return self.problem.valid & jnp.isfinite(rate) & (rate > 0)

    @property
    def start(self) -> Point:
        return self.solver.start()

    @property
    def terms(self) -> diffrax.ODETerm:
        # The solver knows its own field; this one tells whether it is finite at the start.
        def field(t: Any, y: Point, args: Any) -> Point:
            del t, args
            w = y.moving[: ravel_pytree(self.problem.params)[0].size]
            gradient = jax.grad(self.solver.loss)(w)
            rest = jnp.zeros_like(y.moving).at[: w.size].set(-self.solver.eta * gradient)
            return Point(rest, jax.tree.map(jnp.zeros_like, y.edge))

        return diffrax.ODETerm(field)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol, "atol": self.controller.atol}

    def first_step(self) -> Float[Array, ""]:
        return self.solver.optimizer.rate.astype(self.problem.dtype)

    def position(self, y: Point) -> Point:
        return y

    def params(self, w: Point) -> Observed:
        flat, unravel = ravel_pytree(self.problem.params)
        params, edge = unravel(w.moving[: flat.size]), w.edge
        # cuSOLVER (CUDA 13) made zeros of the variances at some steps: what does not add up is not shown.
        whole = jnp.abs(jnp.sum(edge.variances) - edge.trace) <= 1e-3 * jnp.abs(edge.trace)
        gradient = jax.grad(self.solver.loss)(w.moving[: flat.size])
        return Observed(
            params,
            {
                "averaged_loss": self.problem.objective(params) + edge.loss,
                "averaged_squared_gradient": gradient @ gradient + edge.gradient,
                "oscillation": jnp.where(whole, edge.variances, jnp.nan),
                "edge_eigenvalues": edge.followed,
            },
        )

    def view(self, t: Float[Array, ""], y: Point) -> View:
        known = self.params(y)
        return View(self.problem, t, known.params, given_observations=known.observations)

    def lost(self, y: Point) -> Bool[Array, ""]:
        return y.edge.crowded > 0

    def certificate(self, t: Float[Array, ""], y: Point, step_error: Float[Array, ""]) -> Certificate:
        del t
        balance = energy_balance(self.problem, self.params(y).params, y.moving[-1])
        nothing = jnp.full_like(balance, jnp.nan)
        edge = jnp.maximum(jnp.maximum(y.edge.excess, y.edge.residual), 0)
        rtol = jnp.full_like(balance, self.controller.rtol)
        return Certificate(nothing, balance, step_error, rtol, edge_error=edge)

    def scaled_error(self, t0: Any, t1: Any, y0: Point, y1: Point, error: Point) -> Float[Array, ""]:
        del t0, t1
        size = jnp.maximum(jnp.abs(y0.moving), jnp.abs(y1.moving))
        scaled = error.moving / (self.controller.atol + self.controller.rtol * size)
        return jnp.asarray(self.controller.norm(Point(scaled, error.edge)))

    def evaluations(
        self, solver_state: CentralState, attempts: Int[Array, ""]
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        return solver_state.evaluations, jnp.zeros_like(attempts)


class CentralFlow(AbstractFlow):
    r"""The flow that gradient descent follows in its mean, at the edge of stability too.

    Descent at a rate r sharpens the loss until the largest eigenvalue S of the Hessian comes to 2/r. There it
    oscillates along that eigenvector, and the oscillation holds S back: it leaves gradient flow for good. Its average
    over the oscillation moves by

    $w' = -\nabla L(w) - \frac12 \nabla \langle H(w), \Sigma \rangle$, with $\Sigma$ the covariance of the oscillation,

    the only one for which $\Sigma \ge 0$, $H \le 2/r$ and $\langle \Sigma, 2/r - H\rangle = 0$ stay true. With one
    eigenvalue S at the edge, $\Sigma = s u u^T$ and $s = \max(0, 2 \langle -\nabla L, \nabla S\rangle/|\nabla S|^2)$.
    Where none is at the edge it is gradient flow. Times are those of `Descent`: steps times rate. Rates per layer eta
    multiply the updates: H is then $\sqrt\eta H \sqrt\eta$.

    RMSProp divides by $\sqrt\nu$, whose square follows that of the gradient:
    $w' = -P^{-1} (\nabla L + \frac12 \nabla\langle H, \Sigma\rangle)$,
    $\nu' = \frac{1-\beta}{\beta} (\nabla L^2 + \mathrm{diag}(H \Sigma H) - \nu)$ per step, $P = \sqrt{\nu}/(\eta r)$,
    and the edge is at eigenvalue 2 of $P^{-1} H$.

    It knows four observables more directly than from its parameters: `observe.averaged_loss`
    ($L + \frac12 \langle H, \Sigma\rangle$, which is $L + \mathrm{tr} \Sigma/r$), `averaged_squared_gradient`,
    `oscillation` (the eigenvalues of Sigma) and `edge_eigenvalues`.

    Steps are as long as the error allows, at the edge too, where those of a scheme that follows the oscillation would
    be a fraction of a step of descent. An eigenvalue comes to the edge within the time of about one step of descent.
    The certificate tells how far one has been beyond it. No Hessian is formed.

    The flow is derived for losses with three derivatives. With relu it is piecewise: what a kink adds to the sharpness
    when a sample crosses it, it does not see. It has no derivatives: asking for them raises RuntimeError.

    Arguments:
        optimizer: an optax transformation that is gradient descent (`optax.sgd(rate)`), `optax.rmsprop` or
            `dynamics.scalar_rmsprop`, given as to `Descent`. Others have no central flow that is known, and minibatches
            none at all: run `Descent(..., batch_size=)`.
        rate: instead of it, that of gradient descent.
        max_unstable: eigenvalues that may be at the edge together, of no more than there are parameters. Where there
            are more, the run ends as `unstable`. Memory holds max_unstable^2/2 vectors of parameters.
        rtol, atol: tolerances of a step, of the root mean square over parameters. None takes 1e-4 (with
            kinks 1e-2) and 1e-6.
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: accepted and rejected steps before the run is given up.

    Raises:
        ValueError: not exactly one of optimizer and rate; a number is out of range; when used, the central flow of the
            optimizer is not known, or gradient descent is given and the network's scaling is for Adam.
        TypeError: the optimizer is no optax transformation, `until` no condition.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> run = js.solve(problem, js.CentralFlow(rate=0.1), [0.0, 30.0])
        >>> print(f"{run['loss'][1]:.2f}", run.dynamics)
        0.00 CentralFlow(sgd)

    Reference:
        @inproceedings{cohen2025central, author={J. Cohen and A. Damian and A. Talwalkar and others}, year={2025},
          title={Understanding optimization in deep learning with central flows}, booktitle={ICLR}}
    """

    optimizer: Optimizer | None
    given_rate: Float[Array, ""] | None
    max_unstable: int = eqx.field(static=True)  # a shape
    rtol: float | None = eqx.field(static=True)  # decides nothing but numbers, yet is never swept
    atol: float | None = eqx.field(static=True)
    until: AbstractCondition | None
    max_steps: int = eqx.field(static=True)
    integrator: diffrax.AbstractSolver | None
    land_on_ts: bool = eqx.field(static=True)

    def __init__(
        self,
        optimizer: optax.GradientTransformation | None = None,
        *,
        rate: Any = None,
        max_unstable: int = 6,
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
    ):
        self.optimizer, self.given_rate = either(optimizer, rate)
        self.max_unstable = require_size(max_unstable, "max_unstable")
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, False
        )
        self.integrator = None

    @property
    def name(self) -> str:
        return f"CentralFlow({'sgd' if self.optimizer is None else self.optimizer.name})"

    @property
    def preconditioner(self) -> AbstractPreconditioner:
        """The matrix by which the optimizer multiplies gradients, as it was given or is seen.

        Raises:
            ValueError: the central flow of the optimizer is not known.
        """
        if self.optimizer is not None:
            return read_preconditioner(self.optimizer)
        assert self.given_rate is not None
        return Plain(self.given_rate)

    def system(self, problem: Problem) -> AbstractSystem:
        optimizer = self.preconditioner
        require_scaling(problem, lambda: False if isinstance(optimizer, Plain) else None)
        problem, optimizer = eqxi.nondifferentiable((problem, optimizer), msg=NO_DERIVATIVES)
        return CentralSystem(problem, optimizer, self.max_unstable, self.rtol, self.atol)
