"""Inputs of a network, samples first: an array, or a tree such as a dict if the network takes several arrays."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, PyTree, Shaped


Inputs = PyTree[Shaped[Array, "..."]]


def is_tree(x: Any) -> bool:
    """True for several arrays, as in a dict or a tuple; False for one array, and for lists and tuples of numbers."""
    if isinstance(x, list) or jax.tree_util.all_leaves([x]):
        return False
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(getattr(leaf, "ndim", 0) > 0 for leaf in leaves)


def map_arrays(f: Callable[[Any], Any], x: Any) -> Any:
    """Applies f to one array, or to each of several."""
    return jax.tree.map(f, x) if is_tree(x) else f(x)


def samples_in(x: Inputs) -> int:
    """The number of samples."""
    return jax.tree.leaves(x)[0].shape[0]


def one_of(x: Inputs) -> PyTree[jax.ShapeDtypeStruct]:
    """The shapes and dtypes of one sample."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)


def in_words(sample: PyTree[jax.ShapeDtypeStruct]) -> str:
    """The shape and dtype of a sample, for messages."""
    if isinstance(sample, jax.ShapeDtypeStruct):
        return f"of shape {sample.shape} and dtype {sample.dtype}"
    named = jax.tree_util.tree_leaves_with_path(sample)
    return "of " + ", ".join(f"{leaf.dtype}{list(leaf.shape)} at {jax.tree_util.keystr(path)}" for path, leaf in named)


def take_samples(x: Inputs, which: Any) -> Inputs:
    """The samples at `which`, anything that indexes an array."""
    return jax.tree.map(lambda leaf: leaf[which], x)
