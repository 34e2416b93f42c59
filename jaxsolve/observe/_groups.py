"""Groups of parameters of any network, such as layers, by the position of the arrays in its tree."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._numerics import nonzero, norm


MOST_GROUPS = 16


class Groups(NamedTuple):
    """The groups of a network's parameters.

    Attributes:
        names: such as `layers[0]`.
        of_leaf: the group index of every parameter array, in the order of the tree's leaves.
    """

    names: tuple[str, ...]
    of_leaf: tuple[int, ...]


def find_groups(params: PyTree) -> Groups:
    """Groups the parameters by the module that holds them, or by larger modules if there are many."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    # An array that is a module's field (.weight) is named after the module; one in a list, by its index.
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


@eqx.filter_jit
def relative_sizes(change: PyTree, start: PyTree, groups: Groups) -> Float[Array, " groups"]:
    """|change|/|start| for every group; inf for a group that starts at 0 and moves."""

    def size(tree: PyTree, index: int) -> Float[Array, ""]:
        leaves = [leaf for leaf, of in zip(jax.tree.leaves(tree), groups.of_leaf, strict=True) if of == index]
        return norm(jnp.stack([norm(leaf) for leaf in leaves]))

    def ratio(index: int) -> Float[Array, ""]:
        moved, before = size(change, index), size(start, index)
        return jnp.where(before > 0, moved / nonzero(before), jnp.where(moved > 0, jnp.inf, moved))

    return jnp.stack([ratio(index) for index in range(len(groups.names))])
