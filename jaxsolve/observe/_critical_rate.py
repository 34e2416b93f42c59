"""The critical multiple of an optimizer's next step."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from .._core import Problem, Quantity, View
from .._numerics import nonzero
from .._programs import channels_last
from ._observable import Observable
from ._optimizers import is_step, Slope, StaticOptimizer, step_at


TRIALS = 8


@eqx.filter_jit
def critical_multiple(problem: Problem, params: PyTree, update: PyTree, slope: Slope) -> Float[Array, ""]:
    """The multiple s of an update u with L(theta + s u) = L(theta), by 8 forward passes and the slope at theta.

    The first trial is s = 1. Then s grows or shrinks by factors of 4, 16, 256, ... until it brackets the root, and the
    bracket is bisected in log s. For a quadratic loss and u = -eta g, s = 2 |g|^2/(eta g^T H g) >= 2/(eta lambda_max).
    s is inf if even the largest multiple tried does not raise the loss. It is 0 if even the smallest one does, or if
    the slope along the update is positive, which rounding would hide at small multiples. It is NaN if the slope is NaN,
    or if loss and slope are 0, as at a minimum or when both round to zero.
    """
    at = channels_last(lambda scale: problem.objective(jax.tree.map(lambda p, u: p + scale * u, params, update)))
    one = jnp.ones((), problem.dtype)
    start = slope.value
    upward = sum(jax.tree.leaves(jax.tree.map(lambda g, u: jnp.sum(g * u), slope.gradient, update)), 0 * one)

    def trial(k, carry):
        low, high = carry  # `low` lowers the loss, `high` raises it
        # 4, 16, 256, ... from k = 1 on; the first trial is 1.
        factor = 4.0 ** (2.0 ** (jnp.asarray(k, one.dtype) - 1))
        # The geometric mean as a product of roots, as the product itself could overflow; used only inside a bracket.
        between = jnp.sqrt(nonzero(low)) * jnp.sqrt(jnp.where(jnp.isinf(high), 1, high))
        outside = jnp.where(low > 0, low * factor, jnp.where(jnp.isinf(high), one, high / factor))
        scale = jnp.where((low > 0) & ~jnp.isinf(high), between, outside)
        lowers = at(scale) <= start  # False for NaN
        return jnp.where(lowers, scale, low), jnp.where(lowers, high, scale)

    low, high = jax.lax.fori_loop(0, TRIALS, trial, (0 * one, jnp.inf * one))
    both = (low > 0) & ~jnp.isinf(high)
    middle = jnp.sqrt(nonzero(low)) * jnp.sqrt(jnp.where(jnp.isinf(high), 1, high))
    found = jnp.where(upward > 0, 0, jnp.where(both, middle, jnp.where(low > 0, jnp.inf, 0)))
    return jnp.where(jnp.isnan(upward) | ((start == 0) & (upward == 0)), jnp.nan, found)


@dataclasses.dataclass(frozen=True)
class _CriticalRate:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    optimizer: StaticOptimizer

    def __call__(self, view: View):
        slope, update = step_at(view, self.optimizer.held)
        return jnp.where(is_step(update), critical_multiple(view.problem, view.params, update, slope), jnp.nan)


def critical_rate(optimizer: optax.GradientTransformation) -> Observable:
    """The multiple of the optimizer's next step that leaves the loss unchanged: below 1 the step raises the loss.

    This is the critical rate in units of the rate, for any optimizer, from nine passes through the network. It is
    accurate to a factor of 1.1 between 1/4 and 4, and of 1.6 farther off. inf if no multiple tried raises the loss; 0
    if the step goes uphill. NaN if there is no step, or if loss and slope are 0.

    Source: Kalra and Barkeshli 2024, arXiv:2406.09405, who call it the critical learning rate.

    Arguments:
        optimizer: the optax transformation. If it has a state, the run must provide it, as `js.Descent(...,
            keep_state=True)` and `js.Monitor` do.

    Example:
        >>> import optax
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.critical_rate(optax.sgd(1e-3))(view) > 100))
        True

    Raises:
        TypeError: optimizer is not an optax transformation.
        ValueError: when used, if the optimizer has a state and the view lacks it.
    """
    return Observable("critical_rate", _CriticalRate(StaticOptimizer(optimizer)), Quantity.PARAMS)
