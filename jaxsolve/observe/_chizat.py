"""Chizat's ratio along an optimizer's next step."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._core import Problem, Quantity, View
from .._numerics import nonzero, norm, unit
from ._observable import Observable
from ._optimizers import is_step, StaticOptimizer, step_at


class Curvature(NamedTuple):
    """Chizat's ratio along one direction in parameter space, by two nested jvps.

    Attributes:
        ratio: |D^2 f[u, u]| s/(2 |D f[u]|), where s is the distance along u at which the loss, extrapolated linearly,
            has fallen by its absolute value (to 0, if it is positive). NaN if the loss does not fall.
        second: |D^2 f[u, u]| for u of norm 1.
    """

    ratio: Float[Array, ""]
    second: Float[Array, ""]


@eqx.filter_jit
def curvature(problem: Problem, params: PyTree, update: PyTree) -> Curvature:
    """Chizat's ratio along an update; for MSE and u = -grad L it is the criterion of the paper.

    The ratio does not depend on the size of the update, which is scaled to norm 1 against over- and underflow.
    """
    flat, shaped = ravel_pytree(update)
    along = shaped(unit(flat))
    slope = lambda p: jax.jvp(problem.outputs, (p,), (along,))
    # A jvp of a jvp along the same direction u: f, D f[u] and D^2 f[u, u] in one pass.
    (f, first), (_, second) = jax.jvp(slope, (params,), (along,))
    loss = problem.loss.value(f, problem.y)
    falls = -jnp.sum(problem.loss.gradient(f, problem.y) * first)
    # The s of `Curvature.ratio`: |loss| over its slope along u.
    length = jnp.where(falls > 0, jnp.abs(loss) / nonzero(falls), jnp.nan)
    one, two = norm(first), norm(second)
    return Curvature(length * two / (2 * nonzero(one)), two)


@dataclasses.dataclass(frozen=True)
class _ChizatRatio:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    optimizer: StaticOptimizer

    def __call__(self, view: View):
        _, update = step_at(view, self.optimizer.held)
        found = curvature(view.problem, view.params, update)
        return jnp.where(is_step(update) & (found.second != 0), found.ratio, jnp.nan)


def chizat_ratio(optimizer: optax.GradientTransformation) -> Observable:
    """|D^2 f[u, u]| s/(2 |D f[u]|) along the optimizer's next step u: how nonlinear learning is, to second order.

    s is the distance along u at which the loss, extrapolated linearly, would be 0. In the networks of docs/diagnose.md,
    the kernel hardly moves if the ratio is below 0.008 at the start. NaN if there is no step, if it does not lower the
    loss, or if the second derivative of the outputs along it is 0. It costs two forward passes and a gradient.

    Source: Chizat, Oyallon and Bach 2019, "On lazy training in differentiable programming", with u the gradient.

    Arguments:
        optimizer: the optax transformation. If it has a state, the run must provide it, as `js.Descent(...,
            keep_state=True)` and `js.Monitor` do.

    Example:
        >>> import optax
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.chizat_ratio(optax.sgd(1e-3))(view) > 0))
        True

    Raises:
        TypeError: optimizer is not an optax transformation.
        ValueError: when used, if the optimizer has a state and the view lacks it.
    """
    return Observable("chizat_ratio", _ChizatRatio(StaticOptimizer(optimizer)), Quantity.PARAMS)
