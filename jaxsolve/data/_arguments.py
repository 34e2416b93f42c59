"""Checks of the arguments that every data source takes: counts, non-negative scalars, keys."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, describe, is_real, require_key as require_key


def require_count(value: Any, name: str, *, least: int) -> int:
    """Returns a number of samples or features as an int.

    Raises:
        TypeError: `value` is not an integer.
        ValueError: it is smaller than `least`.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer >= {least}, got {describe(value)}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    return int(value)


def require_scalar(value: Any, name: str, *, positive: bool) -> Float[Array, ""]:
    """Returns a scalar >= 0 (> 0 if `positive`) as an array of the default float dtype; a traced value passes.

    Raises:
        TypeError: `value` is no real number.
        ValueError: `value` is not a scalar, or it is concrete and NaN, infinite, negative, or zero where `positive`.
    """
    accepted = f"{name} must be a finite scalar {'> 0' if positive else '>= 0'}"
    known = concrete(value)
    if known is not None and not is_real(known):
        raise TypeError(f"{accepted}, got {describe(value)}")
    if jnp.ndim(value) != 0:
        raise ValueError(f"{accepted}, got {describe(value)}; to map over several values use jax.vmap")
    if known is not None and not (np.isfinite(known) and (known > 0 if positive else known >= 0)):
        raise ValueError(f"{accepted}, got {known}")
    return jnp.asarray(value, jnp.result_type(float))
