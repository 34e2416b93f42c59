"""When to stop a run before its last time."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._checks import concrete
from .._dynamics import View


class AbstractCondition(eqx.Module):
    """Met when `value` falls to zero or below."""

    @abc.abstractmethod
    def value(self, view: View) -> Float[Array, ""]:
        """A continuous function of the state, positive until the condition is met."""


class _LossBelow(AbstractCondition):
    threshold: Float[Array, ""]

    def value(self, view: View) -> Float[Array, ""]:
        return view.loss - self.threshold.astype(view.loss.dtype)


class _LossFraction(AbstractCondition):
    fraction: Float[Array, ""]

    def value(self, view: View) -> Float[Array, ""]:
        problem = view.problem
        return view.loss - self.fraction.astype(view.loss.dtype) * problem.objective(problem.params)


def _positive(value: ArrayLike, name: str) -> Float[Array, ""]:
    known = concrete(value)
    if known is not None and not (known.ndim == 0 and known > 0):
        raise ValueError(f"{name} must be one number > 0, got {value}")
    return jnp.asarray(value, jnp.result_type(float))


def loss_below(threshold: Float[ArrayLike, ""]) -> AbstractCondition:
    """Stops when the training loss is at or below `threshold` (> 0)."""
    return _LossBelow(_positive(threshold, "threshold"))


def loss_fraction(fraction: Float[ArrayLike, ""]) -> AbstractCondition:
    """Stops when the training loss is at or below `fraction` (> 0) of its initial value."""
    return _LossFraction(_positive(fraction, "fraction"))
