"""How a factorized matrix aligns with its target, and its two layers with each other (Rhee et al., Figure 3)."""

import jax.numpy as jnp
from jaxtyping import Array

from .._core import Quantity, View
from ..observe import Observable


APART = 0.08  # singular values less apart, in either matrix, count as one


def alignment(size: float) -> Observable:
    """Overlaps of the product with the target on the left and right, and of the two layers inside (1 if aligned).

    `size` is that of the start: of the product, singular values closer than this are not told apart.
    """

    def overlaps(view: View) -> Array:
        first, second = view.params.weights
        rank = min(second.shape)
        target = jnp.diagonal(view.problem.y)[:rank] / len(view.problem.y) ** 0.5
        left, product, right = jnp.linalg.svd(second @ first, full_matrices=False)
        _, upper, inner = jnp.linalg.svd(second, full_matrices=False)
        _, lower, other = jnp.linalg.svd(first.T, full_matrices=False)
        return jnp.stack(
            [
                _score(left[:rank, :rank], product[:rank], target, size),
                _score(right[:rank, :rank], product[:rank], target, size),
                _score(inner @ other.T, upper, lower, size**2),
            ]
        )

    return Observable("alignment", overlaps, Quantity.PARAMS, ("side",))


def _imbalance(view: View) -> Array:
    first, second = view.params.weights
    gram = second.T @ second
    return jnp.linalg.norm(gram - first @ first.T) / jnp.linalg.norm(gram)


IMBALANCE = Observable("imbalance", _imbalance)


def _score(overlaps: Array, one: Array, other: Array, least: float) -> Array:
    """The mean square overlap within blocks of singular values that are not apart in both spectra."""
    apart = _apart(one, least) & _apart(other, least)
    block = jnp.append(0, jnp.cumsum(apart))
    return jnp.sum(jnp.where(block[:, None] == block[None, :], overlaps**2, 0.0)) / len(one)


def _apart(values: Array, least: float) -> Array:
    above, below = values[:-1], values[1:]
    return (above > (1 + APART) * below) & (above - below > least)
