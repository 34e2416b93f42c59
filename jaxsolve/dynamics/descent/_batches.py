"""Batches from a loader on the host, for data that do not fit on the device."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, PyTree

from ..._checks import attempt, describe
from ..._core import Problem
from ..._numerics import Inputs, is_tree, map_arrays


Pair = tuple[PyTree[np.ndarray], np.ndarray]


class HostBatches:
    """The pairs of an iterable in order, restarted from the beginning if it can be iterated again.

    Arguments:
        pairs: inputs and targets in the form that a `Problem` takes, all of one shape.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]]):
        if not isinstance(pairs, Iterable):
            raise TypeError(f"batches must be an iterable of pairs (x, y), got {describe(pairs)}")
        self._pairs = pairs
        self._iterator: Iterator[Any] = iter(pairs)
        self._waiting: list[Pair] = []  # pairs already drawn to inspect their shapes
        self._lock = threading.Lock()  # JAX calls from its own threads

    def _next(self) -> Pair:
        try:
            found = next(self._iterator)
        except StopIteration:
            # `iter` of an iterator is itself; a loader or a list restarts: the next epoch.
            self._iterator = iter(self._pairs)
            found = next(self._iterator, None)
        if found is None:
            raise ValueError(
                "this descent has used all of its batches: give an iterator that does not end, or a "
                "list, which starts over"
            )
        pair, error = attempt(lambda: tuple(map_arrays(np.asarray, part) for part in found))
        if error is not None or len(pair) != 2 or is_tree(pair[1]):
            raise TypeError(f"each of the batches must be a pair (x, y) of arrays, got {describe(found)}")
        return pair

    def _peek(self) -> Pair:
        with self._lock:
            if not self._waiting:
                self._waiting.append(self._next())
            return self._waiting[0]

    def draw(self, problem: Problem, wanted: Bool[Array, ""]) -> tuple[Inputs, Array]:
        """The next inputs and targets, inside a compiled program; zeros where not wanted."""
        with jax.ensure_compile_time_eval():  # a loader may compute with JAX
            x, y = self._peek()
        if jax.tree.structure(x) != jax.tree.structure(problem.x):
            raise TypeError(f"inputs of the batches must be such as those of the problem, got {describe(x)}")
        kept = lambda leaf, like: jax.ShapeDtypeStruct(leaf.shape, like.dtype)
        shapes = jax.tree.map(kept, x, problem.x), jax.ShapeDtypeStruct(y.shape, _kept(y.dtype))
        sizes = lambda pair: [leaf.shape for leaf in jax.tree.leaves(pair)]

        def fetch() -> Pair:
            with self._lock:
                pair = self._waiting.pop() if self._waiting else self._next()
            if sizes(pair) != sizes((x, y)):
                found = f"{sizes(pair)} after {sizes((x, y))}"
                raise ValueError(f"all batches must have one shape, got {found}: leave out an incomplete last batch")
            return jax.tree.map(lambda part, shape: part.astype(shape.dtype), pair, shapes)

        nothing = lambda: jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        found = jax.lax.cond(wanted, lambda: io_callback(fetch, shapes, ordered=True), nothing)
        return found[0], problem.loss.targets(found[1], problem.out_size).astype(problem.y.dtype)


def _kept(dtype: Any) -> Any:
    """The dtype that JAX uses for these numbers under its current settings."""
    return jax.dtypes.canonicalize_dtype(dtype)
