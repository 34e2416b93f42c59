"""Conversion of a user's parameters to the tree of a problem."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import nets
from .._checks import describe
from .._core import Problem


def given_params(problem: Problem, given: Any) -> PyTree:
    """The parameters in a user's pytree, in the tree structure of the problem's.

    Arguments:
        problem: the problem.
        given: a network, or a pytree of its trainable arrays in the order of its own library: an Equinox module, the
            variables of Flax or Haiku, a plain pytree.

    Raises:
        ValueError: it does not hold the parameters of the problem's network.
    """
    wanted = jax.tree_util.tree_leaves_with_path(problem.params)
    # Trainable arrays only: networks of js.nets hold hyperparameters, too.
    found = jax.tree_util.tree_leaves_with_path(nets.partition(given)[0])
    advice = (
        "give the network that the problem was made of, at its present parameters: an Equinox module, "
        "nnx.state(model, nnx.Param), variables['params'] of Linen, the params of Haiku"
    )
    if len(found) != len(wanted):
        held = f"{len(found)} arrays of floats where the problem's network has {len(wanted)} parameters"
        raise ValueError(f"params holds {held}, got {describe(given)}; {advice}")
    leaves = []
    for (path, leaf), (ours, param) in zip(found, wanted, strict=True):
        name = jax.tree_util.keystr(ours)
        # Half-precision parameters, as in `nets.MixedPrecision`, are exact in float32.
        half = jnp.result_type(leaf) in (jnp.bfloat16, jnp.float16) and param.dtype == jnp.float32
        fits = jnp.shape(leaf) == param.shape and (half or jnp.result_type(leaf) == param.dtype)
        if not fits or not _alike(path, ours):
            raise ValueError(
                f"params holds {describe(leaf)} at {jax.tree_util.keystr(path) or 'its root'}, where the problem's "
                f"network has {name}, {describe(param)}; {advice}"
            )
        leaves.append(leaf.astype(param.dtype) if half else leaf)
    return jax.tree.unflatten(jax.tree.structure(problem.params), leaves)


def _alike(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """True if one path ends in the other: the network may be the whole tree, or a part of a larger one."""
    keys, others = _keys(one), _keys(two)
    shared = min(len(keys), len(others))
    return keys[len(keys) - shared :] == others[len(others) - shared :]


def _keys(path: tuple[Any, ...]) -> list[str]:
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return keys[:-1] if keys[-1:] == ["value"] else keys  # the array in a variable of Flax
