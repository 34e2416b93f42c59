"""Checks of whether inputs fit a network."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..._checks import concrete, describe, in_float32, is_real, require_finite
from ..._numerics import Inputs, is_tree
from ...nets import AbstractNetwork, partition
from ...nets._internal import require_adapted


_KINDS = (jnp.floating, jnp.integer, jnp.bool_)


def check_inputs(
    net: Any,
    x1: Inputs,
    x2: Inputs | None,
    *,
    names: tuple[str, str] = ("x1", "x2"),
) -> None:
    """Raises ValueError if inputs are empty, not finite, or of another shape or dtype than the network takes."""
    dtypes = {leaf.dtype for leaf in check_network(net)}
    for name, x in zip(names, (x1, x2), strict=True):
        if x is not None or name == names[0]:
            _check(net, dtypes, x, name)
    # A network is traced for inputs of one shape and dtype, where dtypes are those that JAX gives them.
    kinds = [jax.tree.map(_kind, x) for x in (x1, x2) if x is not None]
    if kinds[0] != kinds[-1]:
        raise ValueError(
            f"{names[0]} and {names[1]} must hold inputs of one shape and dtype, got {describe(x1)} and {describe(x2)}"
        )


def check_network(net: Any) -> list[Any]:
    """The arrays that are trained. Raises TypeError if net is not a network."""
    require_adapted(net)
    trained = [] if not callable(net) or isinstance(net, type) else jax.tree.leaves(partition(net)[0])
    if not trained:
        raise TypeError(f"net must be a network of js.nets or an Equinox module with arrays, got {describe(net)}")
    return trained


def _check(net: Any, dtypes: set[Any], x: Any, name: str) -> None:
    leaves = jax.tree.leaves(x) if is_tree(x) else [x]
    if not all(map(_is_real, leaves)):
        raise TypeError(f"{name} must be an array of real numbers, or a dict or tuple of such, got {describe(x)}")
    if any(leaf.ndim == 0 or leaf.shape[0] == 0 for leaf in leaves):
        raise ValueError(f"{name} must hold at least one input: at least one sample is needed, got {describe(x)}")
    if len({len(leaf) for leaf in leaves}) > 1:
        raise ValueError(f"{name} must hold arrays of equally many samples, got {describe(x)}")
    if isinstance(net, AbstractNetwork) and (is_tree(x) or x.shape[1:] != net.in_shape):
        raise ValueError(f"{name} must hold inputs of shape {net.in_shape} for this network, got {describe(x)}")
    found = " and ".join(sorted(map(str, dtypes)))
    if not dtypes <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.float64)}:
        raise ValueError(
            f"the network's parameters are {found}; a sum over products of their derivatives needs float32 or float64: "
            f"{in_float32(dtypes)}"
        )
    if len(dtypes) > 1:
        raise ValueError(f"the network's parameters are {found}; give all of them one dtype, float32 or float64")
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue  # such as tokens, which are looked up
        if dtypes != {leaf.dtype}:
            raise ValueError(f"{name} is {leaf.dtype} but the network's parameters are {found}; convert one of them")
        require_finite(leaf, name)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and any(jnp.issubdtype(leaf.dtype, kind) for kind in _KINDS)


def _kind(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype)


def check_rates(net: Any, eta: PyTree) -> None:
    """Raises ValueError unless there is one rate, finite and >= 0, for every trainable array."""
    rates = jax.tree.leaves(eta)
    known = [concrete(rate) for rate in rates]
    real = all(value is None or is_real(value) for value in known)
    numbers = real and all(np.ndim(rate) == 0 for rate in rates)
    if not numbers or jax.tree.structure(eta) != jax.tree.structure(partition(net)[0]):
        raise ValueError(
            "eta must be a pytree with one number at every trainable array, such as nets.rates(net) or "
            f"kernels.unit_rates(net); got {describe(eta)}"
        )
    for value in known:
        if value is not None and not (np.isfinite(value) and value >= 0):
            raise ValueError(f"every learning rate in eta must be finite and >= 0, got {value}")
