"""Optimisers of optax whose numbers follow schedules, at any count of steps."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree


# Schedules may begin at zero: one is looked at after the first of these numbers of steps where it is not.
COUNTS = (0, 1, 10, 100, 1000, 10_000)


def counts_of(state: PyTree) -> tuple[int | None, ...]:
    """The counts of steps at which an optimiser in a state is to be looked at; one, None, if it has no schedule."""
    same = (a is b for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(at_count(state, 1)), strict=True))
    return (None,) if all(same) else COUNTS


def at_count(state: PyTree, count: Int[Array, ""] | int | None) -> PyTree:
    """The state of an optimiser with its schedules at a count of steps; as it is if that is None."""
    if count is None:
        return state
    whole = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
    fill = lambda tree: jax.tree.map(lambda leaf: jnp.full_like(leaf, count) if whole(leaf) else leaf, tree)

    def put(part: Any) -> Any:
        if isinstance(part, optax.ScaleByScheduleState):
            return part._replace(count=fill(part.count))
        if isinstance(part, optax.InjectStatefulHyperparamsState):
            states, inner = fill(part.hyperparams_states), at_count(part.inner_state, count)
            return part._replace(hyperparams_states=states, inner_state=inner)
        return part

    kinds = optax.ScaleByScheduleState | optax.InjectStatefulHyperparamsState
    return jax.tree.map(put, state, is_leaf=lambda part: isinstance(part, kinds))
