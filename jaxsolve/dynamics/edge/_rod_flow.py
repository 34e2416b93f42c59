"""Descent at the edge of stability by the two ends of its oscillation."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._checks import one_number
from ..._core import Certificate, flat_rates, Observed, Problem, View
from ..._numerics import nonzero, safe_sqrt
from ...integrators import RungeKuttaChebyshev
from ...until import AbstractCondition
from ..descent._optimizer import Optimizer, require_scaling
from ..flow._flow import AbstractFlow, read_options
from ..flow._integrator import controller
from ..flow._system import AbstractSystem, SMOOTH_RTOL
from ._edge_optimizer import descent_rate


class RodSystem(AbstractSystem):
    """The middle m of the rod and its half d in one vector, and behind them a 0, where other flows have an energy."""

    problem: Problem
    rate: Float[Array, ""]
    solver: diffrax.AbstractSolver
    controller: diffrax.PIDController

    def __init__(self, problem: Problem, rate: Float[Array, ""], rtol: float | None, atol: float | None):
        self.problem, self.rate, self.solver = problem, rate.astype(problem.dtype), RungeKuttaChebyshev()
        rtol, atol = SMOOTH_RTOL if rtol is None else rtol, 1e-2 * SMOOTH_RTOL if atol is None else atol
        self.controller = controller(problem, rtol, atol)

    def _gradient(self, w: Float[Array, " params"]) -> Float[Array, " params"]:
        return jax.grad(lambda vector: self.problem.objective(ravel_pytree(self.problem.params)[1](vector)))(w)

    @property
    def valid(self) -> Bool[Array, ""]:
        return self.problem.valid & jnp.isfinite(self.rate) & (self.rate > 0)

    @property
    def start(self) -> Float[Array, " state"]:
        w = ravel_pytree(self.problem.params)[0]
        # Half of the first step of descent, w_1 - w_0 = -r g.
        half = -self.rate * flat_rates(self.problem) * self._gradient(w) / 2
        return jnp.concatenate([w, half, jnp.zeros_like(w, shape=1)])

    @property
    def terms(self) -> diffrax.ODETerm:
        eta, eps = flat_rates(self.problem), float(jnp.finfo(self.problem.dtype).eps)

        def field(t: Any, y: Array, args: Any) -> Array:
            del t, args
            m, d = _split(y)
            # Below the edge d decays, until rounding alone drives it, as it does descent.
            rounding = eps * m
            # A rod that is short beside m is seen longer, since m + d rounds; from m on, which it moves no more.
            size = lambda vector: safe_sqrt(jnp.sum(vector**2))
            far = eps ** (1 / 3) * size(m) / nonzero(size(d))
            short = far > 1
            ahead, behind = self._gradient(m + jnp.where(short, far, 1) * d), self._gradient(m - jnp.where(short, 0, d))
            # d' = (g(m + d) - g(m - d))/2 - 2 d/r, as a step takes the time r; one-sided it is over `far`, not 2.
            slope = eta * (ahead - behind) / jnp.where(short, far, 2) - 2 * (d - rounding) / self.rate
            mean = jnp.where(short, behind, (ahead + behind) / 2)
            return jnp.concatenate([-eta * mean, slope, jnp.zeros_like(y, shape=1)])

        return diffrax.ODETerm(field)

    @property
    def tolerances(self) -> dict[str, Any]:
        return {"rtol": self.controller.rtol, "atol": self.controller.atol}

    def first_step(self) -> Float[Array, ""]:
        return self.rate

    def position(self, y: Float[Array, " state"]) -> Float[Array, " state"]:
        return y

    def params(self, w: Float[Array, " state"]) -> Observed:
        m, d = _split(w)
        unravel = ravel_pytree(self.problem.params)[1]
        ends = [m + d, m - d]
        # Descent is at both ends in turn, so that averages are over both.
        loss = sum(self.problem.objective(unravel(end)) for end in ends) / 2
        square = sum(jnp.sum(self._gradient(end) ** 2) for end in ends) / 2
        known = {"averaged_loss": loss, "averaged_squared_gradient": square, "oscillation": jnp.sum(d**2)[None]}
        return Observed(unravel(m), {name: jnp.asarray(value) for name, value in known.items()})

    def view(self, t: Float[Array, ""], y: Float[Array, " state"]) -> View:
        known = self.params(y)
        return View(self.problem, t, known.params, given_observations=known.observations)

    def lost(self, y: PyTree) -> Bool[Array, ""]:
        del y
        return jnp.array(False)

    def certificate(self, t: Float[Array, ""], y: PyTree, step_error: Float[Array, ""]) -> Certificate:
        del t, y
        nothing = jnp.full_like(step_error, jnp.nan)
        return Certificate(nothing, nothing, step_error, jnp.full_like(step_error, self.controller.rtol))

    def scaled_error(self, t1: Any, y0: Array, y1: Array, error: Array) -> Float[Array, ""]:
        del t1
        size = jnp.maximum(jnp.abs(y0), jnp.abs(y1))
        return jnp.asarray(self.controller.norm(error / (self.controller.atol + self.controller.rtol * size)))

    def evaluations(self, solver_state: Any, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        # Each evaluation of the field takes gradients at two points.
        return 2 * solver_state.evaluations, jnp.zeros_like(attempts)


class RodFlow(AbstractFlow):
    r"""The flow of gradient descent at the edge of stability at the price of two gradients, without a Hessian.

    Let w_n be the iterates of descent at rate r, $m_n = (w_n + w_{n+1})/2$ their midpoints and
    $d_n = (-1)^n (w_{n+1} - w_n)/2$ half their differences, whose sign does not alternate where descent does.
    Because w_n and w_{n+1} are m_n - d_n and m_n + d_n in one order or the other, exactly

    $m_{n+1} - m_n = -\frac r2 (g(m + d) + g(m - d))$ and $d_{n+1} - d_n = \frac r2 (g(m + d) - g(m - d)) - 2 d$

    with g the gradient (times eta). The rod flow takes the differences for derivatives by step. Along an eigenvector of
    curvature S, d grows by r S - 2 per step: its edge is that of descent, S = 2/r, and near it it grows as fast. Below
    it d decays until rounding drives it, as it does in descent. The mean over the ends, (L(m + d) + L(m - d))/2, is the
    averaged loss, and d d^T the covariance, of rank one: where several eigenvalues are at the edge, d is the sum of
    their oscillations.

    Far beyond the edge it is off, as ln(r S - 1) < r S - 2: on (a b - 1)^2/2 from a = 2.2, b = 0.03 at r = 0.5, where
    2/r = 4, its sharpness ends at 3.0, that of descent at 2.1, and that of gradient flow at 5.2. Times are those of
    `Descent`. It starts at m = w_0, d = -r g(w_0)/2.

    Arguments:
        optimizer: gradient descent, `optax.sgd(rate)` without momentum, on the full batch.
        rate: instead of it, its rate.
        rtol, atol: tolerances of a step of `integrators.RungeKuttaChebyshev`; None takes 1e-4 and 1e-6.
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: accepted and rejected steps before the run is given up.

    Raises:
        ValueError: not exactly one of optimizer and rate; a number is out of range; when used, the optimizer is not
            gradient descent, or the network's scaling is for Adam.
        TypeError: the optimizer is no optax transformation, `until` no condition.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> print(f"{js.solve(problem, js.RodFlow(rate=0.1), 30.0)['loss']:.2f}")
        0.00

    Source: the equations are derived above; Regis & Chewi 2026, arXiv:2602.01480, propose a flow of this name.
    """

    optimizer: Optimizer | None
    given_rate: Float[Array, ""] | None
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
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
    ):
        if (optimizer is None) == (rate is None):
            raise ValueError("give exactly one of an optimizer, such as optax.sgd(0.1), and rate=")
        self.optimizer = None if optimizer is None else Optimizer(optimizer)
        self.given_rate = None if rate is None else one_number(rate, "rate")
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, False
        )
        self.integrator = None

    @property
    def name(self) -> str:
        return "RodFlow"

    @property
    def rate(self) -> Float[Array, ""]:
        """The rate of gradient descent, as it was given or is seen.

        Raises:
            ValueError: the optimizer is not gradient descent.
        """
        if self.optimizer is None:
            assert self.given_rate is not None
            return self.given_rate
        rate = descent_rate(self.optimizer)
        if rate is None:
            raise ValueError(
                "the rod flow is known for gradient descent (optax.sgd(rate)), without momentum or schedules; not for "
                f"this optimizer ({self.optimizer.name}): js.Descent runs it"
            )
        return rate

    def system(self, problem: Problem) -> AbstractSystem:
        require_scaling(problem, lambda: False)
        return RodSystem(problem, self.rate, self.rtol, self.atol)


def _split(y: Float[Array, " state"]) -> tuple[Array, Array]:
    """The middle and the half of a rod."""
    count = y.shape[0] // 2
    return y[:count], y[count:-1]
