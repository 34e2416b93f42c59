"""Where a march stops: what all of them do with `until`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._checks import describe
from .._core import View
from .._results import RESULTS
from ..until import AbstractCondition


def check_until(until: Any) -> AbstractCondition | None:
    """Returns a condition or None; raises TypeError for anything else."""
    if until is not None and not isinstance(until, AbstractCondition):
        raise TypeError(f"until must be a condition such as until.loss_below(1e-5), or None, got {describe(until)}")
    return until


def at_last_time(until: AbstractCondition | None) -> RESULTS:
    """How a run that reached its last time has ended."""
    return RESULTS.successful if until is None else RESULTS.max_time


def is_met(until: AbstractCondition | None, view: Callable[[], View]) -> Bool[Array, ""]:
    """Whether the condition holds; without one nothing is computed."""
    if until is None:
        return jnp.array(False)
    value = until.value(view())
    if jnp.shape(value):
        raise ValueError(f"the value of a condition must be one number, got {describe(value)}")
    return value <= 0
