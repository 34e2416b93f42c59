"""Whether inputs fit a network."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._checks import concrete, describe, require_finite
from ..nets import AbstractNetwork, partition


def check_inputs(net: Any, x1: Float[Array, "n ..."], x2: Float[Array, "m ..."] | None) -> None:
    """Raises ValueError if inputs are empty, not finite, or of another shape or dtype than the network takes."""
    for name, x in {"x1": x1, "x2": x2}.items():
        if x is not None:
            _check(net, x, name)


def _check(net: Any, x: Array, name: str) -> None:
    if not isinstance(x, jax.Array | np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name} must be an array of real numbers, got {describe(x)}")
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one input, got {describe(x)}")
    if isinstance(net, AbstractNetwork) and x.shape[1:] != net.in_shape:
        raise ValueError(f"{name} must hold inputs of shape {net.in_shape} for this network, got {describe(x)}")
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(partition(net)[0])}
    if dtypes != {x.dtype}:
        found = " and ".join(sorted(map(str, dtypes)))
        raise ValueError(f"{name} is {x.dtype} but the network's parameters are {found}; convert one of them")
    require_finite(x, name)


def check_rates(net: Any, eta: PyTree) -> None:
    """Raises ValueError unless there is one rate, finite and >= 0, at every trainable array."""
    leaves = jax.tree.leaves(eta)
    if len(leaves) != len(jax.tree.leaves(partition(net)[0])) or any(jnp.shape(rate) != () for rate in leaves):
        raise ValueError(
            "eta must be a pytree with one number at every trainable array, such as nets.rates(net) or "
            f"kernels.unit_rates(net); got {describe(eta)}"
        )
    for rate in leaves:
        known = concrete(rate)
        if known is not None and not (known.dtype.kind in "fiu" and np.isfinite(known) and known >= 0):
            raise ValueError(f"every learning rate in eta must be finite and >= 0, got {known}")
