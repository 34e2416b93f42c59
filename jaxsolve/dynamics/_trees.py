"""Pytrees of arrays as one value."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers are."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def chosen(pred: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """The one or the other of two pytrees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(pred, a, b), new, old)
