"""Checks of updates and gradients for a diagnosis."""

import jax
import numpy as np
from jaxtyping import PyTree


def moves(update: PyTree) -> bool:
    """True if an update is not 0."""
    return any(bool(np.any(np.asarray(leaf) != 0)) for leaf in jax.tree.leaves(update))


def size(update: PyTree) -> float:
    """The largest absolute entry of an update."""
    return float(max((np.max(np.abs(np.asarray(leaf)), initial=0.0) for leaf in jax.tree.leaves(update)), default=0.0))


def difference(one: PyTree, two: PyTree) -> PyTree:
    """The difference of two pytrees, as NumPy arrays: a program for each shape would take longer to compile."""
    return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), one, two)


def is_finite(tree: PyTree) -> bool:
    """True if no entry of a pytree of arrays is NaN or infinite."""
    return all(bool(np.all(np.isfinite(np.asarray(leaf)))) for leaf in jax.tree.leaves(tree))
