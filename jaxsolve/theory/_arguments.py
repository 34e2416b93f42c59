"""Reads the numbers that closed forms take as arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num

from .._checks import as_array, concrete, require_finite, require_positive, require_settings


def as_floats(value: Num[ArrayLike, "..."], name: str) -> Float[Array, "..."]:
    """A floating-point array of finite values, never weakly typed.

    Raises:
        ValueError: a value is not finite.
    """
    require_settings(value, name)
    array = as_array(value)
    require_finite(array, name)
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float)
    return jax.lax.convert_element_type(array, dtype)


def as_positive(value: Num[ArrayLike, "..."], name: str) -> Float[Array, "..."]:
    """The value as returned by `as_floats`, required to be > 0.

    Raises:
        ValueError: a value is not finite or not positive.
    """
    array = as_floats(value, name)
    require_positive(array, name)
    return array


def flow_time(t: Float[ArrayLike, "..."], dtype: Any) -> Float[Array, "..."]:
    """A time in [0, inf], where closed forms hold. A negative time raises if it is concrete, and is NaN if traced."""
    known = concrete(t)
    if known is not None and np.any(known < 0):
        raise ValueError(f"t must be a time >= 0, got {known.tolist()}")
    t = jnp.asarray(t, dtype)
    return jnp.where(t < 0, jnp.nan, t)
