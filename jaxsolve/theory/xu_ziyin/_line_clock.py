r"""The clock of a two-layer linear network on a line under any differentiable loss.

The weights move along the same curve as under MSE, a hyperbolic rotation by an angle s; only its speed depends on the
loss: $\dot s = k\, g(a \cdot b)$ with $g(p) = -\langle x_i \ell'(f_i)\rangle/\rho$ (Xu & Liu Ziyin, section 3).
Therefore $t = \int_0^s ds'/(k g)$, a scalar quadrature, and s(t) is its inverse.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._numerics import nonzero


# Sixteen Gauss-Legendre points per panel; panels are so short that the speed changes at most by a factor of a few.
NODES, WEIGHTS = (part / 2 for part in np.polynomial.legendre.leggauss(16))
SAMPLES = 2048  # of the speed, to find its first root and to place the panels
PANELS = 600  # for relative errors of 1e-13 with smooth losses, as `LineClock.error` measures
NEWTON_STEPS = 10  # within one panel
HALVINGS = 120  # to the last digit of angles down to 1e-20


Speed = Callable[[Float[Array, ""]], Float[Array, ""]]
"""ds/dt at an angle s."""


class LineClock(eqx.Module):
    """The angle at any time, from times tabulated at the ends of panels.

    Attributes:
        edges: angles, from 0 to the end of the table.
        times: the gradient-flow times at which the angle passes them.
        rest: the angle from which the flow continues beyond the table, or at which it ends.
        past: ds/dt there: 0, or the speed at which layers approach the saddle.
        gap: the distance from `rest` to the end of the table, which closes at the rate `closing`.
        closing: the rate of the gap, 1/time.
        end: the angle at t = inf.
        error: the estimated error of the angle, relative to the largest angle, from halved panels.
    """

    edges: Float[Array, " edges"]
    times: Float[Array, " edges"]
    rest: Float[Array, ""]
    past: Float[Array, ""]
    gap: Float[Array, ""]
    closing: Float[Array, ""]
    end: Float[Array, ""]
    error: Float[Array, ""]

    def angle(self, speed: Speed, t: Float[ArrayLike, ""]) -> Float[Array, ""]:
        """s(t) for t in [0, inf], given the speed that the table was made from."""
        t = jnp.asarray(t, self.edges.dtype)
        index = jnp.clip(jnp.searchsorted(self.times, t, side="right") - 1, 0, self.edges.shape[0] - 2)
        low, high = self.edges[index], self.edges[index + 1]
        begin = self.times[index]
        inside = t < self.times[-1]
        goal = jnp.where(inside, t, begin) - begin

        def newton(_, s):
            step = (goal - _panel(speed, low, s)) * speed(s)
            # Stay within the panel, where the quadrature is accurate.
            return jnp.clip(s + step, jnp.minimum(low, high), jnp.maximum(low, high))

        s = jax.lax.stop_gradient(jax.lax.fori_loop(0, NEWTON_STEPS, newton, low))
        s = s + (goal - _panel(speed, low, s)) * speed(s)  # carries the derivative
        finite, last = jnp.where(jnp.isinf(t), 0, t), self.times[-1]
        beyond = self.rest + self.past * jnp.maximum(finite - last, 0)
        # The whole derivative comes from where the end is; that of the last time is all rounding, so close to the root.
        gap, closing, last = jax.lax.stop_gradient((self.gap, self.closing, last))
        beyond = beyond + gap * jnp.exp(-closing * jnp.maximum(finite - last, 0))
        return jnp.where(inside, s, jnp.where(jnp.isinf(t), self.end, beyond))


def line_clock(speed: Speed, dtype: Any) -> LineClock:
    """The clock of a flow whose angle moves from 0 with the given speed."""
    direction = jnp.sign(jax.lax.stop_gradient(speed(jnp.zeros((), dtype))))
    ahead = lambda s: direction * jax.lax.stop_gradient(speed(direction * s))
    farthest = float(np.log(np.finfo(dtype).max)) / 2 - 4  # e^2s does not overflow, with room for products
    last, stop, ends, root = _first_stop(ahead, farthest, dtype)
    edges = direction * _edges(ahead, stop)
    middles = (edges[:-1] + edges[1:]) / 2
    # Each panel as a whole and in halves: their difference estimates the error.
    lows, highs = jnp.concatenate([edges[:-1], edges[:-1], middles]), jnp.concatenate([edges[1:], middles, edges[1:]])
    whole, first, second = jnp.split(jax.vmap(lambda low, high: _panel(speed, low, high))(lows, highs), 3)
    times = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(whole)])
    # An error of the time, multiplied by the speed, is an error of the angle.
    late = jnp.cumsum(whole - (first + second)) * jax.vmap(speed)(edges[1:])
    error = jnp.max(jnp.abs(late)) / nonzero(jnp.max(jnp.abs(edges)))
    # The flow ends at a root of the speed. It never ends where the speed underflows (a loss without a minimum), or
    # where the angle grows forever (towards the saddle). The slope is taken before the root, not behind it: there the
    # speed of one-sided losses is zero, and has no slope.
    fixed = jax.lax.stop_gradient(direction * jnp.where(root, last, stop))
    value, slope = jax.value_and_grad(speed)(fixed)
    steep = jnp.abs(slope) * jnp.maximum(stop, 1e-3) > 1e3 * jnp.abs(value)  # else the speed jumps there
    still = direction == 0
    correction = value / jax.lax.stop_gradient(jnp.where(steep, slope, 1))  # where it also carries the derivative
    correction = jnp.where(root & steep, correction, _no_derivative(root & ~steep & ~still, value))
    rest = jnp.where(root, fixed - correction, edges[-1])
    end = jnp.where(root | still, rest, direction * jnp.inf)
    past = jnp.where(ends | still, 0, value)
    gap = jnp.where(root & steep, edges[-1] - rest, 0)
    closing = jnp.where(root & steep, -slope, 0)
    return LineClock(edges, jnp.where(still, 0, times), rest, past, gap, closing, end, jnp.where(still, 0, error))


def _no_derivative(lost: Array, value: Array) -> Array:
    """Zero, whose derivatives are infinite or NaN where they are lost: a wrong one would look like a correct one."""
    return jnp.where(lost, jnp.sqrt(jnp.where(lost, value - jax.lax.stop_gradient(value), 1)), 0)


def _panel(speed: Speed, low: Array, high: Array) -> Array:
    """The time from one angle to another, both on the same side of the root of the speed."""
    nodes = (low + high) / 2 + (high - low) * jnp.asarray(NODES, low.dtype)
    slowness = 1 / nonzero(jax.vmap(speed)(nodes))
    return (high - low) * jnp.sum(jnp.asarray(WEIGHTS, low.dtype) * slowness)


def _first_stop(ahead: Speed, farthest: float, dtype) -> tuple[Array, Array, Array, Array]:
    """The last angle at which the flow moves, and the first at which it stops (to the dtype), or the farthest.

    Also whether it stops, and whether it does so at a root, where the speed jumps from rounding to zero or below,
    rather than by underflow of the speed.
    """
    floor = float(np.finfo(dtype).tiny) ** 0.95
    stands = lambda speed: ~(speed > floor)
    grid = jnp.linspace(0, farthest, SAMPLES, dtype=dtype)
    speeds = jax.vmap(ahead)(grid)
    ends, first = jnp.any(stands(speeds)), jnp.argmax(stands(speeds))
    before = jnp.maximum(first - 1, 0)

    def halve(_, bracket):
        low, high, moves = bracket
        middle = (low + high) / 2
        speed = ahead(middle)
        stopped = stands(speed)
        return jnp.where(stopped, low, middle), jnp.where(stopped, middle, high), jnp.where(stopped, moves, speed)

    # The speed is carried along: recomputed in another program, rounding may flip its sign.
    low, high, moves = jax.lax.fori_loop(0, HALVINGS, halve, (grid[before], grid[first], speeds[before]))
    return low, jnp.where(ends, high, farthest), ends, ends & (jnp.abs(moves) > 1e10 * floor)


def _edges(ahead: Speed, stop: Array) -> Array:
    """Panels between 0 and the stop, over each of which the speed changes by about the same factor."""
    closest = 1e3 * float(np.finfo(stop.dtype).eps)  # closer to a root, the speed is rounding
    # Samples crowd at both ends: angles may span hundreds, of which only the first few matter.
    z = -float(np.log(closest)) * jnp.linspace(0, 1, SAMPLES, dtype=stop.dtype) ** 2
    s = stop * -jnp.expm1(-z)
    logs = jnp.log(jnp.maximum(jax.vmap(ahead)(s), float(np.finfo(stop.dtype).tiny)))
    depth = jnp.log(jnp.maximum(1 - s / nonzero(stop), float(np.finfo(stop.dtype).eps)))
    # Outputs grow like e^2s, and slopes of losses exponentially with outputs: angles count too.
    variation = jnp.abs(jnp.diff(logs)) + jnp.abs(jnp.diff(depth)) / 4 + 10 * jnp.diff(s)
    total = jnp.concatenate([jnp.zeros(1, stop.dtype), jnp.cumsum(variation)])
    wanted = jnp.linspace(0, total[-1], PANELS + 1, dtype=stop.dtype)
    return jnp.interp(wanted, total, s)
