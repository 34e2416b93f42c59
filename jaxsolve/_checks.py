"""Reading concrete values for checks, and leaving traced ones alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def concrete(value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None while JAX is tracing it (then there is nothing to check yet)."""
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None


def describe(value: Any) -> str:
    """A short name for an argument in an error message: shape and dtype of arrays, else type and value."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def require_finite(value: Any, name: str) -> None:
    """Raises ValueError if a concrete array holds NaN or an infinity, saying how many and where the first is."""
    known = concrete(value)
    if known is None or np.all(np.isfinite(known)):
        return
    bad = np.argwhere(~np.isfinite(known))
    first = tuple(int(i) for i in bad[0])
    raise ValueError(
        f"{name} holds {len(bad)} value(s) that are NaN or infinite (the first at index {first}); "
        "all values must be finite. Clean the array before building the problem."
    )


def require_not_negative(value: Any, name: str) -> None:
    """Raises ValueError if a concrete hyperparameter is negative, NaN or infinite."""
    known = concrete(value)
    if known is None or (np.all(np.isfinite(known)) and np.all(known >= 0)):
        return
    raise ValueError(f"{name} must be finite and >= 0, got {known.tolist()}")


def require_positive(value: Any, name: str) -> None:
    """Raises ValueError if a concrete number is not positive and finite."""
    known = concrete(value)
    if known is not None and not (np.all(np.isfinite(known)) and np.all(known > 0)):
        raise ValueError(f"{name} must be finite and > 0, got {known.tolist()}")


def positive_number(value: Any, name: str, hint: str = "") -> Float[Array, ""]:
    """Returns one finite number > 0 as an array; raises ValueError, ending in a hint, if a concrete one is none."""
    known = concrete(value)
    if known is not None and not (known.ndim == 0 and np.isfinite(known) and known > 0):
        raise ValueError(f"{name} must be one finite number > 0, got {value}{hint}")
    return jax.lax.convert_element_type(jnp.asarray(value), jnp.result_type(float))


def require_flag(value: Any, name: str) -> bool:
    """Returns True or False; raises TypeError for anything else, such as "no" or 0."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")
    return bool(value)


def require_size(value: Any, name: str) -> int:
    """Returns a size >= 1 as an int; raises TypeError or ValueError for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer >= 1, got {describe(value)}")
    if value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value}")
    return int(value)
