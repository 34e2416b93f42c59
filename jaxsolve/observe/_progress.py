"""The share of training that is complete, from the remaining gradient of the loss."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._core import Problem, Quantity, View
from .._numerics import nonzero, norm
from ._linearized import is_start, outputs_at, seen_size
from ._observable import Observable


# Once the parameters' gradient is below this share of its initial norm, the remaining residual will stay.
ENDED = 0.01


class Pull(NamedTuple):
    """The gradient of the loss in the outputs, and its effect on the parameters.

    Attributes:
        outputs: f.
        slope: dL/df over its norm.
        size: the norm of dL/df.
        pull: |sqrt(eta) J^T slope|. Gradient flow lowers the loss at the rate (size * pull)^2.
    """

    outputs: Float[Array, "n out"]
    slope: Float[Array, "n out"]
    size: Float[Array, ""]
    pull: Float[Array, ""]


def pull_at(problem: Problem, params: PyTree, eta: PyTree, f: Float[Array, "n out"] | None = None) -> Pull:
    """The `Pull` at these parameters and outputs f; None computes the outputs."""
    f = outputs_at(problem, params) if f is None else f
    return _pull(problem, params, eta, f)


@eqx.filter_jit
def _pull(problem: Problem, params: PyTree, eta: PyTree, f: Float[Array, "n out"]) -> Pull:
    slope = problem.loss.gradient(f, problem.y)
    size = norm(slope)
    # Backpropagated at norm 1 and multiplied by its size afterwards, so that small products do not round to zero.
    slope = slope / nonzero(size)
    return Pull(f, slope, size, seen_size(problem, params, eta, slope))


@eqx.filter_jit
def progress_between(start: Pull, now: Pull) -> Float[Array, ""]:
    """The share of training that is complete: how far the loss's gradient in the outputs has fallen since the start.

    1 - |dL/df_t|/|dL/df_0|, or 0 if the initial gradient is 0. But 1 if the remaining gradient no longer reaches the
    parameters, as with noise in the targets that the network cannot fit. Parameters of rate 0 do not count.
    """
    pull_before, pull = start.size * start.pull, now.size * now.pull
    done = (pull_before > 0) & (pull <= ENDED * pull_before) & (now.size <= start.size)
    return jnp.where(done, 1.0, jnp.where(start.size > 0, 1 - now.size / nonzero(start.size), 0.0))


def progress() -> Observable:
    """1 - |dL/df|/|dL/df_0|: the share of training that is complete. 0 at the start, below 0 if the gradient grows.

    But 1 if the parameters' gradient has fallen to 1 % of its initial norm and |dL/df| has not grown: the network
    cannot fit the rest, such as noise in the targets.

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
