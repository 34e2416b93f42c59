"""Descent at the edge of stability, by the two ends of its oscillation."""

from typing import Any

import diffrax
import equinox as eqx
import optax
from jaxtyping import Array, Float

from ..._checks import one_number
from ..._core import Problem
from ...until import AbstractCondition
from ..descent._optimizer import ignores_gradient_scale, Optimizer, require_scaling
from ..descent._rate import time_of_step
from ..flow._flow import AbstractFlow, read_options
from ..flow._system import AbstractSystem
from ._rod_system import RodSystem


class RodFlow(AbstractFlow):
    r"""The flow of an optimizer at the edge of stability, at the cost of two gradients and without a Hessian.

    Let $z_{n+1} = F(z_n)$ be the steps of an optimizer, z = (w, optimizer state). With the midpoints
    $m_n = (z_n + z_{n+1})/2$ and the half-differences $d_n = (-1)^n (z_{n+1} - z_n)/2$, whose sign does not alternate
    where the optimizer oscillates, $z_n$ and $z_{n+1}$ are the ends $z_\pm = m \pm d$ in either order. Then, exactly,

    $m_{n+1} - m_n = \frac12 (F(z_+) + F(z_-)) - m$ and $d_{n+1} - d_n = -\frac12 (F(z_+) - F(z_-)) - d$.

    The rod flow replaces these differences by derivatives per step: $z_\pm' = F(z_\mp) - z_\pm$. Along an eigenvector
    of the linearized step with multiplier mu, d grows at the rate -(1 + mu) per step: exactly where a multiplier below
    -1 makes the optimizer unstable, and at its rate near that edge. In terms of the curvature S (preconditioned for
    RMSProp and Adam) the edge is S = 2/r for gradient descent, 2(1 + b)/r for heavy ball, 2(1 + b)/((1 + 2b) r) for
    Nesterov, 2/r for RMSProp and 2(1 + b1)/((1 - b1) r) for Adam. For gradient descent
    $m' = -\frac r2 (g(m + d) + g(m - d))$ and $d' = \frac r2 (g(m + d) - g(m - d)) - 2 d$.

    Below the edge d decays to rounding level, as in descent. The mean over the ends, (L(m + d) + L(m - d))/2, is the
    averaged loss, and d d^T the covariance, of rank one: with several eigenvalues at the edge, d is the sum of their
    oscillations. Squares averaged by an optimizer stay positive at both ends.

    Far from the edge it is inaccurate, because ln(-mu) differs from -(1 + mu): on (a b - 1)^2/2 from a = 2.2, b = 0.03
    at r = 0.5, where 2/r = 4, its final sharpness is 3.0, compared with 2.1 for descent and 5.2 for gradient flow.
    Complex multipliers, as with momentum below its edge, ring in descent but are damped here: see
    docs/edge-of-stability.md for measurements.

    Times are those of `Descent`. It starts at m = z_0, with half of the first step as d in the weights.

    Arguments:
        optimizer: an optax transformation, as for `Descent`, on the full batch; it may include weight decay, clipping
            and schedules. Its state must be numeric; a step count becomes continuous.
        rate: the gradient-flow time of a step, if the optimizer does not reveal it; without an optimizer, the rate of
            gradient descent.
        rtol, atol: tolerances of a step, by `integrators.RungeKuttaChebyshev` for gradient descent and by
            `diffrax.Tsit5` for an optimizer with state; None takes 1e-4 and 1e-6. The state has only rtol, relative to
            its root mean square.
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: maximum number of steps, accepted and rejected.

    Raises:
        ValueError: neither optimizer nor rate; a number is out of range; the optimizer requires the loss; when used, it
            does not reveal its rate, or the network's scaling is for another kind.
        TypeError: the optimizer is not an optax transformation, or `until` is not a condition.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=1, width_size=1, scaling=js.nets.Scaling.standard(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> print(f"{js.solve(problem, js.RodFlow(rate=0.1), 30.0)['loss']:.2f}")
        0.00

    Source: the equations are derived above; Regis & Chewi 2026, arXiv:2602.01480 (gradient descent) and
    arXiv:2605.06821 (momentum, Adam), propose flows of this name.
    """

    optimizer: Optimizer
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
        if optimizer is None and rate is None:
            raise ValueError("give an optimizer, such as optax.sgd(0.1), or the rate= of gradient descent")
        self.given_rate = None if rate is None else one_number(rate, "rate")
        if optimizer is None:
            assert self.given_rate is not None
            optimizer = optax.sgd(self.given_rate)
        self.optimizer = Optimizer(optimizer)
        if self.optimizer.by_loss:
            raise ValueError(
                f"this optimizer ({self.optimizer.name}) needs the loss at each step, which the rod flow does not "
                "have: js.Descent runs it"
            )
        self.rtol, self.atol, self.until, self.max_steps, self.land_on_ts = read_options(
            rtol, atol, until, max_steps, False
        )
        self.integrator = None

    @property
    def name(self) -> str:
        return "RodFlow" if self.optimizer.name == "sgd" else f"RodFlow({self.optimizer.name})"

    @property
    def rate(self) -> Float[Array, ""]:
        """The gradient-flow time of a step, as given or as found from the optimizer.

        Raises:
            ValueError: the optimizer does not reveal it.
        """
        return time_of_step(self.optimizer) if self.given_rate is None else self.given_rate

    def system(self, problem: Problem) -> AbstractSystem:
        require_scaling(problem, lambda: ignores_gradient_scale(self.optimizer, problem.params))
        return RodSystem(problem, self.optimizer, self.rate, self.rtol, self.atol)
