"""How much of a training is done, by what the loss still pulls on."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._core import Problem, Quantity, View
from .._numerics import nonzero, norm
from ._linearized import is_start, outputs_at, seen_size
from ._observable import Observable


# Where the gradient of the parameters is a smaller share of that at the start, what is left in the outputs stays.
ENDED = 0.01


class Pull(NamedTuple):
    """The pull of the loss on a network.

    Attributes:
        outputs: f.
        slope: dL/df over its norm.
        size: that norm.
        pull: |sqrt(eta) J^T slope|; times the size, the square root of the rate at which gradient flow lowers the loss.
    """

    outputs: Float[Array, "n out"]
    slope: Float[Array, "n out"]
    size: Float[Array, ""]
    pull: Float[Array, ""]


def pull_at(problem: Problem, params: PyTree, eta: PyTree, f: Float[Array, "n out"] | None = None) -> Pull:
    """The pull of the loss on parameters where the outputs are f, those of these parameters if None."""
    f = outputs_at(problem, params) if f is None else f
    slope, size = _slope(problem, f)
    return Pull(f, slope, size, seen_size(problem, params, eta, slope))


@eqx.filter_jit
def _slope(problem: Problem, f: Float[Array, "n out"]) -> tuple[Float[Array, "n out"], Float[Array, ""]]:
    slope = problem.loss.gradient(f, problem.y)
    size = norm(slope)
    # It is sent back at norm 1 and its size multiplied in afterwards, so that small products do not vanish.
    return slope / nonzero(size), size


@eqx.filter_jit
def progress_between(start: Pull, now: Pull) -> Float[Array, ""]:
    """The share of a training that is done: how much of the loss's gradient in the outputs is gone since the start.

    1 - |dL/df_t|/|dL/df_0|, and 0 if there was none. But 1 where parameters no longer see what is left of it, as of
    noise in the targets that the network cannot fit: then training has come to its end. Those of rate 0 do not count.
    """
    pull_before, pull = start.size * start.pull, now.size * now.pull
    done = (pull_before > 0) & (pull <= ENDED * pull_before) & (now.size <= start.size)
    return jnp.where(done, 1.0, jnp.where(start.size > 0, 1 - now.size / nonzero(start.size), 0.0))


def progress() -> Observable:
    """1 - |dL/df|/|dL/df_0|: the share of a training that is done. 0 at the start, below 0 where the loss grows.

    But 1 where the parameters' gradient has fallen to 1 % of that at the start: what is left, such as noise in the
    targets, the network cannot fit.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 50.0], observe=js.observe.progress())
        >>> print(*(f"{share:.2f}" for share in run["progress"]))
        0.00 1.00
    """
    return Observable("progress", _progress, Quantity.PARAMS)


def _progress(view: View) -> Float[Array, ""]:
    problem, eta = view.problem, view.problem.eta
    start = pull_at(problem, problem.params, eta)
    found = progress_between(start, pull_at(problem, view.params, eta, view.outputs))
    return jnp.where(is_start(view), 0, found)
