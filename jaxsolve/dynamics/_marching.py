"""Shared parts of all marches: saving, stopping, and their clock.

Time t is gradient-flow time: theta_l' = -eta_l dL/dtheta_l, where L is an average over samples.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from .._checks import describe
from .._core import View
from .._results import RESULTS
from ..until import AbstractCondition


def nearest_step(
    t: Float[Array, "..."], per_step: Float[Array, ""], last: int
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The step nearest to time t, and its time; past the last step, `last + 1` and t itself."""
    reachable = t < per_step * (last + 1)  # otherwise the count may overflow an integer
    step = jnp.where(reachable, jnp.round(jnp.where(reachable, t, 0) / per_step).astype(int), last + 1)
    return step, jnp.where(step > last, t, time_at(step, per_step))


def time_at(step: Int[Array, "..."], per_step: Float[Array, ""]) -> Float[Array, "..."]:
    """The time of a step."""
    return step.astype(per_step.dtype) * per_step


def later(
    t: Float[Array, ""], lost: Float[Array, ""], passed: Float[Array, "*steps"]
) -> tuple[Float[Array, "*steps"], Float[Array, "*steps"]]:
    """t + passed, and its accumulated rounding error, given the one of t: a compensated sum (Kahan).

    Summing a million rates in float32 would round in the same direction again and again.
    """
    passed = passed - lost
    end = t + passed
    return end, (end - t) - passed


def check_until(until: Any) -> AbstractCondition | None:
    """Returns a condition or None; raises TypeError for anything else."""
    if until is not None and not isinstance(until, AbstractCondition):
        raise TypeError(f"until must be a condition such as until.loss_below(1e-5), or None, got {describe(until)}")
    return until


def at_last_time(until: AbstractCondition | None) -> RESULTS:
    """The result of a run that has reached its last time."""
    return RESULTS.successful if until is None else RESULTS.max_time


def is_met(until: AbstractCondition | None, view: Callable[[], View]) -> Bool[Array, ""]:
    """True if the condition is met; False, with nothing computed, if there is no condition."""
    if until is None:
        return jnp.array(False)
    value = until.value(view())
    if jnp.shape(value):
        raise ValueError(f"the value of a condition must be one number, got {describe(value)}")
    return value <= 0


def chosen(pred: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` where `pred` is true, else `old`: pytrees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(pred, a, b), new, old)


# The number of requested times that one step may pass; a longer step is cut at the last of them. Writing a fixed number
# of rows, most of which are dropped, lets the lanes of a batch advance together without copying the whole buffer.
PER_STEP = 8


class Saves(eqx.Module):
    """The requested times (sorted, possibly ending in inf), and the parameters saved so far.

    Slots from `slot` on are not filled yet and hold NaN.
    """

    times: Float[Array, " times"]
    saved: PyTree[Shaped[Array, "times ..."]]
    slot: Int[Array, ""]

    @property
    def complete(self) -> Bool[Array, ""]:
        return self.slot >= self.times.shape[0]

    def limit(self, count: int) -> Float[Array, ""]:
        """The time of the `count`-th unfilled slot (the last one if fewer are left), which a step must not pass."""
        return self.times[jnp.minimum(self.slot + count - 1, self.times.shape[0] - 1)]

    def write(
        self, reached: Float[Array, ""], evaluate: Callable[[Array], PyTree], count: int, *, one_by_one: bool = False
    ) -> "Saves":
        """Fills the next slots (at most `count`) whose times are at or before `reached` with `evaluate(time)`.

        Evaluates all slots at once, or with `one_by_one` only those due, for expensive evaluations.
        """
        total = self.times.shape[0]
        slots = self.slot + jnp.arange(count)
        times = self.times[jnp.minimum(slots, total - 1)]
        due = (slots < total) & (times <= reached)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), self.saved)

        def row(slot):
            time, wanted = slot
            return jax.lax.cond(wanted, lambda: evaluate(time), lambda: nothing)

        def all_rows():
            # Slots that are not due are evaluated at the end of the step, where the interpolant is valid, and dropped.
            where = jnp.where(due, times, reached)
            return jax.lax.map(row, (where, due)) if one_by_one else jax.vmap(evaluate)(where)

        no_rows = lambda: jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), nothing)
        # A branch, so that an unbatched run interpolates only in steps that pass a requested time.
        rows = jax.lax.cond(jnp.any(due), all_rows, no_rows)
        target = jnp.where(due, slots, total)  # out of range: dropped
        saved = jax.tree.map(lambda buffer, row: buffer.at[target].set(row, mode="drop"), self.saved, rows)
        return Saves(self.times, saved, self.slot + jnp.sum(due))


def empty_saves(times: Float[Array, " times"], params: PyTree) -> Saves:
    """Buffers for these times, with nothing saved yet."""
    # Integer leaves, such as an optimizer's step count, have no NaN.
    nothing = lambda leaf: jnp.nan if jnp.issubdtype(leaf.dtype, jnp.inexact) else 0
    saved = jax.tree.map(lambda leaf: jnp.full((times.shape[0], *leaf.shape), nothing(leaf), leaf.dtype), params)
    return Saves(times, saved, jnp.zeros((), int))


def hold(saves: Saves, params: PyTree, after: Bool[Array, " times"]) -> PyTree:
    """The saved parameters, with `params` at the marked times."""
    mark = lambda leaf: after.reshape(after.shape + (1,) * (leaf.ndim - 1))
    return jax.tree.map(lambda leaf, p: jnp.where(mark(leaf), p[None], leaf), saves.saved, params)
