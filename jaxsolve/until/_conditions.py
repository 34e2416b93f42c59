"""Conditions that stop a run before its last time."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from .._checks import concrete, describe, is_real, one_number, require_settings
from .._core import Problem, View


class AbstractCondition(eqx.Module):
    """A stopping condition, met when its `value` falls to zero or below. To define one, implement `value`.

    Example:
        >>> class OutputAbove(js.until.AbstractCondition):  # some output exceeds 2
        ...     def value(self, view):
        ...         return 2.0 - view.outputs.max()
        >>> flow = js.GradientFlow(until=OutputAbove())
    """

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
        return view.loss - self.fraction.astype(view.loss.dtype) * problem.training_loss(problem.params)


class _MarginAbove(AbstractCondition):
    threshold: Float[Array, ""]

    def value(self, view: View) -> Float[Array, ""]:
        y = view.problem.y
        return self.threshold.astype(y.dtype) - jnp.min(y * view.outputs)


def fits(condition: AbstractCondition | None, problem: Problem) -> Bool[Array, ""]:
    """True if a condition suits a problem, or is None: margins need targets -1 or +1.

    Raises:
        ValueError: it does not, and the targets are concrete. Traced targets never raise; such a run is `invalid`.
    """
    if not isinstance(condition, _MarginAbove):
        return jnp.array(True)
    known = concrete(problem.y)
    labels = jnp.issubdtype(problem.y.dtype, jnp.integer)
    if known is not None and (labels or not np.all(np.abs(known) == 1)):
        raise ValueError(
            f"margin_above needs targets -1 or +1, got values {np.unique(known)[:5].tolist()}; "
            "for other targets use until.loss_below(...)"
        )
    return jnp.all(jnp.abs(problem.y) == 1)


def loss_below(threshold: Float[ArrayLike, ""]) -> AbstractCondition:
    """Stops when the training loss is at or below `threshold` (> 0).

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> run = js.solve(problem, js.GradientFlow(until=js.until.loss_below(1e-3)), float("inf"))
        >>> print(f"{run['loss']:.4f}", run.result == js.RESULTS.event)
        0.0010 True

    Raises:
        ValueError: `threshold` is not one finite number > 0.
        TypeError: it is not a number.
    """
    return _LossBelow(one_number(threshold, "threshold"))


def loss_fraction(fraction: Float[ArrayLike, ""]) -> AbstractCondition:
    """Stops when the training loss is at or below `fraction` (> 0) times its initial value.

    Example:
        >>> half = js.GradientFlow(until=js.until.loss_fraction(0.5))  # run.t_end is then the half-loss time

    Raises:
        ValueError: `fraction` is not one finite number > 0.
        TypeError: it is not a number.
    """
    return _LossFraction(one_number(fraction, "fraction"))


def margin_above(threshold: Float[ArrayLike, ""] = 1.0) -> AbstractCondition:
    """Stops when the smallest margin, min_i y_i f_i over training samples and outputs, is at or above `threshold`.

    At a threshold of 1, the hinge losses have reached 0: this is the time t_2 of Geiger et al. 2020.

    A flow under plain `js.losses.Hinge` slides along margins of 1 on its way, and its velocity jumps there. The number
    of steps then grows like 1/rtol, and the relative error of t_2 is about rtol: 1e-3 is a good choice. With
    `js.losses.SoftHinge(1000.0)`, `js.integrators.FunctionSpace` finds t_2 to within 0.5 % in a hundredth of the steps
    that `diffrax.Tsit5` takes at 1e-4 (ten samples, networks of 16 neurons).

    Arguments:
        threshold: one finite number of either sign.

    Example:
        >>> flow = js.GradientFlow(until=js.until.margin_above(1.0))  # for targets -1 and +1

    Raises:
        ValueError: the threshold is not one finite number; when used, if the targets are not -1 or +1 (if they are
            traced, as in a sweep, the run is `invalid` instead).
        TypeError: the threshold is not a number.
    """
    require_settings(threshold, "threshold")
    known = concrete(threshold)
    if known is not None and not is_real(known):
        raise TypeError(f"threshold must be one finite number, got {describe(threshold)}")
    if known is not None and not (known.ndim == 0 and np.isfinite(known)):
        raise ValueError(f"threshold must be one finite number, got {threshold}")
    return _MarginAbove(jnp.asarray(threshold, jnp.result_type(float)))
