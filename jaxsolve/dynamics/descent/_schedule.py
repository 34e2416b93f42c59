"""Schedules: descent whose steps do not all stand for the same time."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from ..._core import closed, opened
from .._marching import later


# Number of rates evaluated at once: one by one they would cost as much as the steps of a small network. LAST_BLOCK is
# for the search from the end, where usually the first block suffices.
BLOCK, LAST_BLOCK = 1024, 2**16


class Schedule(eqx.Module):
    """The gradient-flow time of each step, as a function of the number of steps made before.

    Arguments:
        function: for example an optax schedule.
    """

    parts: PyTree

    def __init__(self, function: Callable[[Int[Array, ""]], Any]):
        self.parts = opened(function)

    def rate(self, step: Int[Array, ""], dtype: DTypeLike) -> Float[Array, ""]:
        """Returns the time of the step with this index."""
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(closed(self.parts)(step.astype(jnp.int32)), dtype)  # optax counts in int32


def nearest_steps(
    schedule: Schedule, ts: Float[Array, " times"], max_steps: int
) -> tuple[Int[Array, " times"], Float[Array, " times"], Int[Array, ""]]:
    """For each time the step that ends nearest to it, and its end; `max_steps + 1` for times that are never reached.

    Of several steps that end at the same time, as where a schedule has reached zero, it is the first. Times past a step
    whose rate is negative or not finite are NaN. The last number is the step after which no more time passes if a
    requested time lies beyond it, else `max_steps`.
    """
    dtype = ts.dtype
    slack = 1 + jnp.finfo(dtype).eps ** 0.5  # so that the end of a schedule, summed by the user, is still reached
    finite = jnp.where(jnp.isinf(ts), 0, ts)
    last = jnp.max(finite)

    def look(carry):
        first, start, lost, last_end, steps, times, moving = carry
        index = first + jnp.arange(BLOCK)
        rates = jnp.where(index < max_steps, jax.vmap(lambda step: schedule.rate(step, dtype))(index), 0)
        # The sum carries NaN into all later times.
        rates = jnp.where(jnp.isfinite(rates) & (rates >= 0), rates, jnp.nan)
        # Rounding errors are compensated between blocks, so they do not grow with the number of steps.
        ends, missed = later(start, lost, jnp.cumsum(rates))
        # A step is made if its midpoint lies before the requested time.
        made = ((ends - rates / 2)[None, :] < finite[:, None]) & (rates > 0)[None, :]
        at = jnp.max(jnp.where(made, jnp.arange(BLOCK)[None, :], -1), axis=1)
        steps = jnp.where(at >= 0, first + at + 1, steps)
        times = jnp.where(at >= 0, ends[at], times)
        moving = jnp.maximum(moving, jnp.max(jnp.where(rates > 0, index + 1, 0)))
        # nanmax keeps the last end before an invalid rate.
        return first + BLOCK, ends[-1], missed[-1], jnp.nanmax(jnp.append(ends, last_end)), steps, times, moving

    def searching(carry):
        first, start, *_ = carry
        return (first < max_steps) & (start <= last)

    zeros = jnp.zeros_like(finite)
    none = jnp.zeros((), dtype)
    begin = (jnp.zeros((), int), none, none, none, zeros.astype(int), zeros, jnp.zeros((), int))
    _, start, _, end, steps, times, moving = jax.lax.while_loop(searching, look, begin)
    beyond = jnp.isinf(ts) | (finite > slack * end)
    unknown = jnp.isnan(start) & beyond
    never = jnp.where(jnp.isinf(ts), ts, jnp.where(unknown, jnp.nan, finite))
    moving = jnp.where(start <= last, moving, max_steps)  # otherwise the search stopped before the end
    return jnp.where(beyond, max_steps + 1, steps), jnp.where(beyond, never, times), moving


def last_moving(schedule: Schedule, max_steps: int, dtype: DTypeLike) -> Int[Array, ""]:
    """The step after which a schedule stays at zero, at most `max_steps`: after it no time passes and nothing moves."""

    def look(carry):
        end, _ = carry
        index = end - 1 - jnp.arange(LAST_BLOCK)
        rates = jax.vmap(lambda step: schedule.rate(step, dtype))(index)
        return end - LAST_BLOCK, jnp.max(jnp.where((index >= 0) & (rates != 0), index + 1, 0))

    searching = lambda carry: (carry[0] > 0) & (carry[1] == 0)
    return jax.lax.while_loop(searching, look, (jnp.asarray(max_steps), jnp.zeros((), int)))[1]
