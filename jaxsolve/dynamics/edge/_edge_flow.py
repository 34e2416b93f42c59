"""Descent at the edge of stability by the direction and the amplitude of its oscillation."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ..._core import flat_rates, Observed, Problem
from ..._numerics import nonzero, safe_sqrt
from ...integrators import RungeKuttaChebyshev
from ...until import AbstractCondition
from ..descent._optimizer import Optimizer, require_scaling
from ..flow._flow import AbstractFlow, read_options
from ..flow._integrator import controller, ParameterNorm
from ..flow._system import AbstractSystem, SMOOTH_RTOL
from ._edge_optimizer import descent_rate, either
from ._ends import AbstractEndsSystem


class _EdgeNorm(eqx.Module):
    """The largest of the RMS over parameters, the RMS over the direction, and |log amplitude|."""

    parameters: ParameterNorm

    def __call__(self, y: Float[Array, " state"]) -> Float[Array, ""]:
        mean = lambda part: jnp.sqrt(jnp.mean(part**2) * self.parameters.padding)
        m, v, z = _split(y)
        return jnp.maximum(jnp.maximum(mean(m), mean(v)), jnp.abs(z))


class EdgeSystem(AbstractEndsSystem):
    """The flow of center, direction and log amplitude, in one vector."""

    problem: Problem
    rate: Float[Array, ""]
    solver: diffrax.AbstractSolver
    controller: diffrax.PIDController

    def __init__(self, problem: Problem, rate: Float[Array, ""], rtol: float | None, atol: float | None):
        self.problem, self.rate, self.solver = problem, rate.astype(problem.dtype), RungeKuttaChebyshev()
        rtol, atol = SMOOTH_RTOL if rtol is None else rtol, 1e-2 * SMOOTH_RTOL if atol is None else atol
        self.controller = controller(problem, rtol, atol, _EdgeNorm(ParameterNorm(problem)))

    @property
    def _root(self) -> Float[Array, " params"]:
        """The square roots of the rates: the Hessian scaled by them is symmetric, unlike eta H."""
        return jnp.sqrt(flat_rates(self.problem))

    def _curvature(self, m: Float[Array, " params"], v: Float[Array, " params"]) -> tuple[Array, Array]:
        """The Hessian times the direction, and the curvature along it."""
        image = self._root * jax.jvp(self.gradient, (m,), (self._root * v,))[1]
        return image, (v @ image) / nonzero(v @ v)

    @property
    def start(self) -> Float[Array, " state"]:
        w = ravel_pytree(self.problem.params)[0]
        # The oscillation starts as half of the first step of descent.
        half = self.rate * self._root * self.gradient(w) / 2
        size = _size(half)
        v = jnp.where(size > 0, half / nonzero(size), jnp.ones_like(half) / half.shape[0] ** 0.5)
        return jnp.concatenate([w, v, jnp.log(size + self._rounding(w))[None]])

    def _rounding(self, m: Float[Array, " params"]) -> Float[Array, ""]:
        """The amplitude due to rounding, from which the oscillation grows, as it does in descent."""
        info = jnp.finfo(m.dtype)
        return float(info.eps) * _size(m) + float(info.tiny)

    @property
    def terms(self) -> diffrax.ODETerm:
        def field(t: Any, y: Array, args: Any) -> Array:
            del t, args
            m, v, z = _split(y)
            image, curvature = self._curvature(m, v)
            d = jnp.exp(z) * self._root * v
            mean = (self.gradient(m + d) + self.gradient(m - d)) / 2
            growth = curvature - 2 / self.rate + 2 * self._rounding(m) * jnp.exp(-z) / self.rate
            # The direction keeps its length; the last term removes the drift of discrete steps.
            turn = image - curvature * v + (1 - v @ v) * v / self.rate
            return jnp.concatenate([-(self._root**2) * mean, turn, growth[None]])

        return diffrax.ODETerm(field)

    def position(self, y: Float[Array, " state"]) -> Float[Array, " state"]:
        return y

    def params(self, w: Float[Array, " state"]) -> Observed:
        m, v, z = _split(w)
        eigenvalue = self._curvature(m, v)[1] * self.rate / 2
        return self.observed(m, jnp.exp(z) * self._root * v, edge_eigenvalues=eigenvalue[None])

    def scaled_error(self, t0: Any, t1: Any, y0: Array, y1: Array, error: Array) -> Float[Array, ""]:
        del t0, t1
        size = jnp.maximum(jnp.abs(y0), jnp.abs(y1))
        return jnp.asarray(self.controller.norm(error / (self.controller.atol + self.controller.rtol * size)))

    def evaluations(self, solver_state: Any, attempts: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
        # Two gradients, and a product with the Hessian, which counts as two.
        return 4 * solver_state.evaluations, jnp.zeros_like(attempts)


def _split(y: Float[Array, " state"]) -> tuple[Array, Array, Array]:
    """The center, the direction and the log amplitude."""
    count = y.shape[0] // 2
    return y[:count], y[count:-1], y[-1]


def _size(vector: Float[Array, " params"]) -> Float[Array, ""]:
    return safe_sqrt(jnp.sum(vector**2))


class EdgeFlow(AbstractFlow):
    r"""The flow of gradient descent at the edge of stability, by the direction and amplitude of its oscillation.

    Like `RodFlow` it has two ends, m + x u and m - x u, but separates the direction u from the amplitude x:

    $m' = -\frac12 (g(m + x u) + g(m - x u))$, the gradient of the loss symmetrized along x u,
    $u' = H u - S u$ with $S = u^\top H u$: u turns toward the top eigenvector of H(m) (Rayleigh),
    $x' = (S - 2/r) x$: x grows beyond the edge and decays below it.

    This is the rod, d = x u, with H u instead of the difference $(g(m + d) - g(m - d))/2x$ in its rotation and growth.
    The amplitude is limited by the decrease in sharpness, not by the quartic part of the loss along u, and u stays an
    eigenvector even while x is at rounding level. It takes two gradients and a Hessian product. On (a b)^2/2,
    oscillating along a, $x^2/2 + b^2/2 - (2/r) \ln b$ is conserved: the sharpness b^2 moves from b_0^2 beyond the edge
    to the value below it with the same $b^2/2 - (2/r) \ln b$. With several eigenvalues at the edge it follows one.

    Times are those of `Descent`. Per-layer eta multiplies the updates: H is $\sqrt\eta H \sqrt\eta$. It starts along
    the first step of descent, at half its length. `observe.edge_eigenvalues` is r S/2, `oscillation` x^2.

    Arguments:
        optimizer: gradient descent, `optax.sgd(rate)` without momentum, on the full batch.
        rate: the rate of gradient descent, instead of an optimizer.
        rtol, atol: tolerances of a step of `integrators.RungeKuttaChebyshev`; None takes 1e-4 and 1e-6.
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.

    Raises:
        ValueError: not exactly one of optimizer and rate; a number is out of range; when used, the optimizer is not
            gradient descent, or the network's scaling is for Adam.
        TypeError: the optimizer is not an optax transformation, or `until` is not a condition.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> print(f"{js.solve(problem, js.EdgeFlow(rate=0.1), 30.0)['loss']:.2f}")
        0.00

    Source: the equations are derived above; arXiv:2606.18080 proposes a flow of this name.
    """

    optimizer: Optimizer | None
    given_rate: Float[Array, ""] | None
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
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
    ):
        self.optimizer, self.given_rate = either(optimizer, rate)
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, False
        )
        self.integrator = None

    @property
    def name(self) -> str:
        return "EdgeFlow"

    @property
    def rate(self) -> Float[Array, ""]:
        """The rate of gradient descent, as given or as found from the optimizer.

        Raises:
            ValueError: the optimizer is not gradient descent.
        """
        if self.optimizer is None:
            assert self.given_rate is not None
            return self.given_rate
        rate = descent_rate(self.optimizer)
        if rate is None:
            raise ValueError(
                "the edge flow is known for gradient descent (optax.sgd(rate)), without momentum or schedules; not for "
                f"this optimizer ({self.optimizer.name}): js.RodFlow follows it"
            )
        return rate

    def system(self, problem: Problem) -> AbstractSystem:
        require_scaling(problem, lambda: False)
        return EdgeSystem(problem, self.rate, self.rtol, self.atol)
