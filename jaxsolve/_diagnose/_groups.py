"""Parameters in groups: the layers of any network, by where its arrays stand in it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._problem import Problem
from .._safe import nonzero, safe_sqrt
from ._lens import Lens


MOST_GROUPS = 16


class Groups(NamedTuple):
    """The groups of a network's parameters.

    Attributes:
        names: such as `layers[0]`.
        of_leaf: the index of the group of every parameter, in the order of the tree's leaves.
    """

    names: tuple[str, ...]
    of_leaf: tuple[int, ...]


def find_groups(problem: Problem) -> Groups:
    """Groups the parameters by the module that holds them, by larger modules if there are many."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(problem.params)]
    if isinstance(problem.net, Lens):
        paths = [path[1:] for path in paths]  # what the lens looks at
    # The array of a module (.weight) goes by the module; one in a list goes by its place.
    ends = [path if isinstance(path[-1], jax.tree_util.SequenceKey) else path[:-1] for path in paths]
    depth = max(1, *map(len, ends))
    named = [_name(end, path) for end, path in zip(ends, paths, strict=True)]
    while len(set(named)) > MOST_GROUPS and depth > 1:
        depth -= 1
        named = [_name(end[:depth], path) for end, path in zip(ends, paths, strict=True)]
    names = tuple(dict.fromkeys(named))
    return Groups(names, tuple(names.index(name) for name in named))


def _name(end: tuple[Any, ...], path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(end or path).lstrip(".") or "parameters"


def masked_rates(problem: Problem, groups: Groups) -> PyTree:
    """The learning rates, one row per group: its own are kept, all others are 0."""
    masks = np.array([[float(group == index) for group in groups.of_leaf] for index in range(len(groups.names))])
    leaves, structure = jax.tree.flatten(problem.eta)
    return jax.tree.unflatten(structure, [rate * jnp.asarray(masks[:, i], rate.dtype) for i, rate in enumerate(leaves)])


def sizes(tree: PyTree, groups: Groups) -> Float[Array, " groups"]:
    """The norm of every group of a pytree shaped like the parameters."""
    leaves = jax.tree.leaves(tree)
    squares = [jnp.sum(leaf**2) for leaf in leaves]
    total = jnp.zeros(len(groups.names), leaves[0].dtype).at[jnp.asarray(groups.of_leaf)].add(jnp.stack(squares))
    return safe_sqrt(total)


def relative_sizes(change: PyTree, start: PyTree, groups: Groups) -> Float[Array, " groups"]:
    """|change|/|start| of every group; inf for one that starts at 0 and moves."""
    moved, before = sizes(change, groups), sizes(start, groups)
    return jnp.where(before > 0, moved / nonzero(before), jnp.where(moved > 0, jnp.inf, 0))


def adjacent(params: PyTree) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Pairs of weight matrices (out, in) that follow one another: their names and indices among the leaves.

    A pair is two matrices next to each other among the network's matrices, whose shapes fit: an assumption on their
    order, which chains of dense layers meet.
    """
    named = jax.tree_util.tree_leaves_with_path(params)
    matrices = [index for index, (_, leaf) in enumerate(named) if leaf.ndim == 2 and min(leaf.shape) >= 1]
    pairs = [
        (low, high)
        for low, high in zip(matrices[:-1], matrices[1:], strict=True)
        if named[high][1].shape[1] == named[low][1].shape[0]
    ]
    label = lambda index: jax.tree_util.keystr(named[index][0]).lstrip(".").removesuffix(".weight")
    return tuple(f"{label(low)} to {label(high)}" for low, high in pairs), pairs


def alignments(params: PyTree, pairs: list[tuple[int, int]]) -> list[Float[Array, ""]]:
    """|W_2 W_1|/(|W_2||W_1|) of every pair, Frobenius: 1 if all that W_1 writes is what W_2 reads."""
    leaves = jax.tree.leaves(params)
    norm = jnp.linalg.norm
    return [norm(leaves[high] @ leaves[low]) / nonzero(norm(leaves[high]) * norm(leaves[low])) for low, high in pairs]
