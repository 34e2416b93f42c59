"""Pairs of matrices that follow one another."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._numerics import nonzero, scaled


def adjacent(params: PyTree) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Pairs of weight matrices that follow one another: their names, and the indices of both factors of W_2 W_1.

    A pair is two matrices next to each other among the network's matrices, whose shapes fit: an assumption on their
    order, which chains of dense layers meet. JAX sorts dictionaries by text, so their keys are read as counted: Dense_2
    before Dense_10. Matrices are (out, in), those of Flax and Haiku (in, out).
    """
    named = jax.tree_util.tree_leaves_with_path(params)
    matrices = [index for index, (_, leaf) in enumerate(named) if leaf.ndim == 2 and min(leaf.shape) >= 1]
    if all(isinstance(key, jax.tree_util.DictKey) for path, _ in named for key in path):
        matrices.sort(key=lambda index: [_counted(key.key) for key in named[index][0]])
    label = lambda index: jax.tree_util.keystr(named[index][0]).lstrip(".").removesuffix(".weight")
    names, pairs = [], []
    for low, high in zip(matrices[:-1], matrices[1:], strict=True):
        inward = [_inward(named[index][0]) for index in (low, high)]
        # W_2 W_1 of matrices (out, in). Of matrices (in, out) it is the transpose, W_1 W_2, which has the same norm.
        left, right = (low, high) if all(inward) else (high, low)
        if inward[0] == inward[1] and named[left][1].shape[1] == named[right][1].shape[0]:
            names.append(f"{label(low)} to {label(high)}")
            pairs.append((left, right))
    return tuple(names), pairs


def _counted(name: Any) -> list[tuple[int, int, str]]:
    """The key by which a name is sorted: the numbers in it count as numbers."""
    parts = re.findall(r"\d+|\D+", str(name))
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def _inward(path: tuple[Any, ...]) -> bool:
    """True if a matrix is (in, out), by what Flax and Haiku call it: `kernel`, and `w` of a named layer."""
    keys = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
    layers = [key for key in path if isinstance(key, jax.tree_util.DictKey)]
    return "kernel" in keys[-2:] or (keys[-1] == "w" and len(layers) > 1)


@eqx.filter_jit
def alignments(params: PyTree, pairs: list[tuple[int, int]]) -> list[Float[Array, ""]]:
    """|W_2 W_1|/(|W_2||W_1|) of every pair, Frobenius: 1 if all that W_1 writes is what W_2 reads."""
    leaves, norm = jax.tree.leaves(params), jnp.linalg.norm
    both = ((scaled(leaves[left])[0], scaled(leaves[right])[0]) for left, right in pairs)
    return [norm(one @ two) / nonzero(norm(one) * norm(two)) for one, two in both]
