"""Checks of the times at which a run is observed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._checks import concrete, describe
from ._dynamics import AbstractDynamics, AbstractMarching, AbstractStandIn, AbstractStoppable, condition_of, Undecided


def read_times(ts: Any, dtype: Any) -> Float[Array, "..."]:
    """Checks times and casts them to the problem's dtype."""
    wrong = "ts must be a number or a sorted sequence of numbers, got"
    try:
        known = concrete(ts)
        array = known if known is not None else jnp.asarray(ts)  # lists may hold traced numbers
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{wrong} {describe(ts)}") from error
    if not (getattr(array.dtype, "kind", "") in ("i", "u") or jnp.issubdtype(array.dtype, jnp.floating)):
        raise TypeError(f"{wrong} {describe(ts)}")
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"ts must be one time or a non-empty 1-D sequence, got shape {array.shape}")
    # A JAX array is kept: inside a trace a new one would be traced.
    array = (ts if isinstance(ts, jax.Array) else array).astype(dtype)
    if known is None:
        return jnp.asarray(array)
    known = np.atleast_1d(known.astype(dtype))
    if np.any(np.isnan(known)) or np.any(known < 0):
        raise ValueError(f"ts must be >= 0 and not NaN, got a smallest value of {known.min()}")
    falls = known[1:] < known[:-1]
    if np.any(falls):
        first = int(np.argmax(falls))
        raise ValueError(f"ts must be sorted, but ts[{first}] = {known[first]} > ts[{first + 1}] = {known[first + 1]}")
    return jnp.asarray(array)


def require_end(ts: Float[Array, "..."], dynamics: AbstractDynamics) -> None:
    """Raises ValueError for concrete times that end in inf if the dynamics would march forever."""
    known = concrete(ts)
    if known is None or not np.isinf(known).any() or not isinstance(dynamics, AbstractMarching):
        return
    if condition_of(dynamics) is not None:
        return
    condition = "until=until.loss_below(...)" if isinstance(dynamics, AbstractStoppable) else ""
    if condition and isinstance(dynamics, AbstractStandIn) and not isinstance(dynamics, Undecided):
        condition = f"flow=GradientFlow({condition})"  # the user passes a flow to the choice that it stands for
    raise ValueError(
        f"ts ends in inf, which {dynamics.name} "
        + (f"reaches only with a condition to stop at: give {condition}, or" if condition else "does not reach: give")
        + " a finite last time"
    )


def are_times(ts: Float[Array, " times"], dynamics: AbstractDynamics) -> Bool[Array, ""]:
    """True if traced times pass the checks for which `read_times` and `require_end` raise."""
    # Comparisons with NaN are false.
    sorted_times = jnp.all(ts >= 0) & jnp.all(ts[1:] >= ts[:-1])
    if isinstance(dynamics, AbstractMarching) and condition_of(dynamics) is None:
        return sorted_times & jnp.isfinite(ts[-1])
    return sorted_times
