"""Whether inputs fit a network."""

from typing import Any

import jax
from jaxtyping import Array, Float

from .._checks import describe
from ..nets import AbstractNetwork, partition


def check_inputs(net: Any, x1: Float[Array, "n ..."], x2: Float[Array, "m ..."] | None) -> None:
    """Raises ValueError if inputs are empty, or of another shape or dtype than the network takes."""
    for name, x in {"x1": x1, "x2": x2}.items():
        if x is not None:
            _check(net, x, name)


def _check(net: Any, x: Array, name: str) -> None:
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one input, got {describe(x)}")
    if isinstance(net, AbstractNetwork) and x.shape[1:] != net.in_shape:
        raise ValueError(f"{name} must hold inputs of shape {net.in_shape} for this network, got {describe(x)}")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(partition(net)[0])}
    if dtypes != {x.dtype}:
        found = " and ".join(sorted(map(str, dtypes)))
        raise ValueError(f"{name} is {x.dtype} but the network's parameters are {found}; convert one of them")
