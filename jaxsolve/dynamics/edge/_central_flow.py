"""The flow that describes gradient descent at the edge of stability."""

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
    """The larger of the root mean squares over a network's own parameters and over nu."""

    size: int = eqx.field(static=True)  # a shape
    parameters: ParameterNorm

    def __call__(self, y: Point) -> Float[Array, ""]:
        w, nu = y.moving[: self.size], y.moving[self.size : -1]
        own = self.parameters.padding
        squares = jnp.sum(nu**2) / max(1, nu.size) * (own if nu.size == self.size else 1.0)
        # The larger of two means, so that many parameters do not hide the error of a single shared nu.
        return jnp.sqrt(jnp.maximum(jnp.mean(w**2) * own, squares))


class CentralSystem(AbstractSystem):
    """The central flow as a system for `AbstractFlow`."""

    problem: Problem
    solver: CentralStep
    controller: diffrax.PIDController

    def __init__(self, problem: Problem, optimizer: AbstractPreconditioner, k: int, rtol: Any, atol: Any):
        self.problem = problem
        size = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
        rtol = default_rtol(problem) if rtol is None else rtol
        atol = 1e-2 * SMOOTH_RTOL if atol is None else atol
        # At the default tolerance an eigenvalue relaxes to the edge within a fifth of a step of descent.
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
        # The solver has its own field; this one only shows whether the start is finite.
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
        # cuSOLVER (CUDA 13) returned zero variances at some steps: variances that do not sum to the trace become NaN.
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
    r"""The flow of the mean of gradient descent, including at the edge of stability.

    Descent at rate r sharpens the loss until the largest eigenvalue S of the Hessian reaches 2/r. There it oscillates
    along that eigenvector, which keeps S from growing, and permanently leaves gradient flow. Its average over the
    oscillation follows

    $w' = -\nabla L(w) - \frac12 \nabla \langle H(w), \Sigma \rangle$, with $\Sigma$ the covariance of the oscillation,

    the only $\Sigma$ for which $\Sigma \ge 0$, $H \le 2/r$ and $\langle \Sigma, 2/r - H\rangle = 0$ remain true. With
    one eigenvalue S at the edge, $\Sigma = s u u^T$ and
    $s = \max(0, 2 \langle -\nabla L, \nabla S\rangle/|\nabla S|^2)$. With none it is gradient flow. Times are those of
    `Descent`: steps times rate. Per-layer eta multiplies the updates: H is then $\sqrt\eta H \sqrt\eta$.

    RMSProp divides by $\sqrt\nu$, where $\nu$ follows the squared gradient:
    $w' = -P^{-1} (\nabla L + \frac12 \nabla\langle H, \Sigma\rangle)$,
    $\nu' = \frac{1-\beta}{\beta} (\nabla L^2 + \mathrm{diag}(H \Sigma H) - \nu)$ per step, $P = \sqrt{\nu}/(\eta r)$,
    and the edge is at eigenvalue 2 of $P^{-1} H$.

    Four observables include the oscillation and are computed by the flow itself: `observe.averaged_loss`
    ($L + \frac12 \langle H, \Sigma\rangle$, which is $L + \mathrm{tr} \Sigma/r$), `averaged_squared_gradient`,
    `oscillation` (the eigenvalues of Sigma) and `edge_eigenvalues`.

    Steps are as long as the error allows even at the edge, where a scheme that resolves the oscillation would need a
    fraction of a step of descent. An eigenvalue relaxes to the edge within about one step of descent. The certificate
    reports the largest excess over the edge. No Hessian is formed.

    The flow is derived for losses with three derivatives. With relu it holds piecewise: it misses the sharpness that a
    kink adds when a sample crosses it. It is not differentiable: taking derivatives raises RuntimeError.

    Arguments:
        optimizer: an optax transformation that is gradient descent (`optax.sgd(rate)`), `optax.rmsprop` or
            `dynamics.scalar_rmsprop`, given as to `Descent`. No central flow is known for others, and none exists for
            minibatches: run `Descent(..., batch_size=)`.
        rate: the rate of gradient descent, instead of an optimizer.
        max_unstable: maximum number of eigenvalues at the edge at the same time, capped at the number of parameters.
            With more, the run ends as `unstable`. Memory holds max_unstable^2/2 parameter vectors.
        rtol, atol: tolerances of a step, for the root mean square over parameters. None takes 1e-4 (with kinks 1e-2)
            and 1e-6.
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.

    Raises:
        ValueError: not exactly one of optimizer and rate; a number is out of range; when used, the central flow of the
            optimizer is not known, or gradient descent is given and the network's scaling is for Adam.
        TypeError: the optimizer is not an optax transformation, or `until` is not a condition.

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
    rtol: float | None = eqx.field(static=True)  # only changes values, but is never swept
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
        """The matrix that multiplies gradients, as given or as found from the optimizer.

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
