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
    """Chizat's ratio along one direction of the parameters, by two nested jvps.

    Attributes:
        ratio: |D^2 f[u, u]| s/(2 |D f[u]|), with the s at which the loss, falling as it does at first, would have
            fallen by its size: to 0, if it is positive. NaN where the loss does not fall.
        second: |D^2 f[u, u]| with u of norm 1.
    """

    ratio: Float[Array, ""]
    second: Float[Array, ""]


@eqx.filter_jit
def curvature(problem: Problem, params: PyTree, update: PyTree) -> Curvature:
    """Chizat's ratio along an update; for MSE and u = -grad L it is the criterion of his paper.

    The size of the update drops out: one of norm 1 stands for it, whose products neither overflow nor vanish.
    """
    flat, shaped = ravel_pytree(update)
    along = shaped(unit(flat))
    slope = lambda p: jax.jvp(problem.outputs, (p,), (along,))
    # A jvp of a jvp along the same direction u: f, D f[u] and D^2 f[u, u] in one pass.
    (f, first), (_, second) = jax.jvp(slope, (params,), (along,))
    loss = problem.loss.value(f, problem.y)
    falls = -jnp.sum(problem.loss.gradient(f, problem.y) * first)
    # s of the text: the size of the loss over its slope along u, by which a straight line would have fallen so far.
    length = jnp.where(falls > 0, jnp.abs(loss) / nonzero(falls), jnp.nan)
    one, two = norm(first), norm(second)
    return Curvature(length * two / (2 * nonzero(one)), two)


@dataclasses.dataclass(frozen=True)
class _ChizatRatio:
    # A class, not a closure: equal for equal arguments, so that a fresh observable does not recompile.
    optimizer: StaticOptimizer

    def __call__(self, view: View):
        _, update = step_at(view, self.optimizer.held)
        found = curvature(view.problem, view.params, update)
        return jnp.where(is_step(update) & (found.second != 0), found.ratio, jnp.nan)


def chizat_ratio(optimizer: optax.GradientTransformation) -> Observable:
    """|D^2 f[u, u]| s/(2 |D f[u]|) along the optimizer's next step u: how far from linear learning is, to second order.

    s is where the loss, falling as it does at first, would be 0. At the start, below 0.008, the kernel hardly moves in
    the networks that docs/diagnose.md tells of. NaN where there is no step, it does not lower the loss, or outputs
    have no second derivative along it. It costs two passes forward, a gradient besides.

    Source: Chizat, Oyallon and Bach 2019, "On lazy training in differentiable programming", with u the gradient.

    Arguments:
        optimizer: the optax transformation. Where it has a state, the run must show it: `js.Descent(...,
            keep_state=True)` and `js.Monitor` do.

    Example:
        >>> import optax
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> print(bool(js.observe.chizat_ratio(optax.sgd(1e-3))(view) > 0))
        True

    Raises:
        TypeError: optimizer is no optax transformation.
        ValueError: when used, if the optimizer has a state and the view does not.
    """
    return Observable("chizat_ratio", _ChizatRatio(StaticOptimizer(optimizer)), Quantity.PARAMS)
