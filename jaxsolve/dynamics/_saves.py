"""Parameters saved at requested times while a march goes on."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree


# One step may pass this many requested times; a longer step is cut short at the next one after them. Writing a fixed
# number of rows, most of them dropped, keeps lanes of a batch in step without copying the whole buffer.
PER_STEP = 8


class Saves(eqx.Module):
    """The requested times (sorted, the last ones possibly inf), and the parameters saved so far.

    Slots from `slot` on are still to come and hold NaN.
    """

    times: Float[Array, " times"]
    saved: PyTree[Float[Array, "times ..."]]
    slot: Int[Array, ""]

    @property
    def complete(self) -> Bool[Array, ""]:
        return self.slot >= self.times.shape[0]

    def limit(self, count: int) -> Float[Array, ""]:
        """The time of the `count`-th slot still to come (the last one if fewer are left): how far a step may go."""
        return self.times[jnp.minimum(self.slot + count - 1, self.times.shape[0] - 1)]

    def write(
        self, reached: Float[Array, ""], evaluate: Callable[[Array], PyTree], count: int, *, one_by_one: bool = False
    ) -> "Saves":
        """Fills the next slots (at most `count`) whose times are at or before `reached` with `evaluate(time)`.

        All slots at once, or those that are due one by one, where evaluations are dear.
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
            where = jnp.where(due, times, reached)
            return jax.lax.map(row, (where, due)) if one_by_one else jax.vmap(evaluate)(where)

        no_rows = lambda: jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), nothing)
        rows = jax.lax.cond(jnp.any(due), all_rows, no_rows)
        target = jnp.where(due, slots, total)  # out of range: dropped
        saved = jax.tree.map(lambda buffer, row: buffer.at[target].set(row, mode="drop"), self.saved, rows)
        return Saves(self.times, saved, self.slot + jnp.sum(due))


def empty_saves(times: Float[Array, " times"], params: PyTree) -> Saves:
    """Nothing saved yet."""
    saved = jax.tree.map(lambda leaf: jnp.full((times.shape[0], *leaf.shape), jnp.nan, leaf.dtype), params)
    return Saves(times, saved, jnp.zeros((), int))


def hold(saves: Saves, params: PyTree, after: Bool[Array, " times"]) -> PyTree:
    """The saved parameters, with `params` at the times marked."""
    mark = lambda leaf: after.reshape(after.shape + (1,) * (leaf.ndim - 1))
    return jax.tree.map(lambda leaf, p: jnp.where(mark(leaf), p[None], leaf), saves.saved, params)
