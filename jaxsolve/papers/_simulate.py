"""The flow of the weights of linear networks: the truth that the errata are measured against.

Nothing here uses a closed form. Results are NumPy arrays; weight matrices are counted from the input.
"""

import math
from collections.abc import Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import kernels, nets, until
from .._core import March, march, Problem
from .._results import RESULTS
from .._solve import SolveError
from ..dynamics import GradientFlow


Layers = tuple[Float[np.ndarray, "..."], ...]


def draw(seed: int, *shape: int) -> Float[np.ndarray, "..."]:
    """Standard normal numbers, the same in every run."""
    count = math.prod(shape)
    drawn = max(1024, 2 ** math.ceil(math.log2(count)))  # few sizes, so few programs to compile
    return np.asarray(jax.random.normal(jax.random.key(seed), (drawn,), jnp.float64))[:count].reshape(shape)


def unit(vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The direction of a vector."""
    return vector / np.linalg.norm(vector)


def linear_problem(weights: Sequence[Any], x: Any, y: Any, eta: Any) -> Problem:
    """f(x) = W_L ... W_1 x from these weights, under the mean over samples of |f - y|^2/2.

    For a loss summed over n samples (Kunin et al., and eq. 1 of Atanasov et al.), multiply eta by n.
    """
    layers = tuple(np.asarray(w, float) for w in weights)
    width, in_size = layers[0].shape
    scaling = nets.Scaling(np.ones(len(layers)), np.ones(len(layers)), np.asarray(eta, float))
    options: Any = {"scaling": scaling, "init": nets.Given(layers), "key": jax.random.key(0)}
    if len(layers) == 2:
        net = nets.TwoLayerLinear(in_size=in_size, out_size=layers[-1].shape[0], width_size=width, **options)
    else:
        net = nets.DeepLinear(
            in_size=in_size, out_size=layers[-1].shape[0], width_size=width, depth=len(layers) - 1, **options
        )
    return Problem(net, np.asarray(x, float), np.asarray(y, float))


def _reference(**options: Any) -> GradientFlow:
    # The smallest weights below are 1e-10.
    return GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-18, **options)


@eqx.filter_jit
def _march(problem: Problem, flow: GradientFlow, ts: Float[Array, " times"]) -> March:
    return march(problem, flow, ts)


def _run(problem: Problem, flow: GradientFlow, ts: Any, wanted: RESULTS) -> March:
    run = _march(problem, flow, jnp.asarray(ts, jnp.float64))
    if not bool(run.result == wanted):
        raise SolveError(f"a simulation behind the errata ended at t = {float(run.t_end):.3g}: {RESULTS[run.result]}")
    return run


TIMES = 8  # minimum; runs that differ only in their times then share a program


def follow(problem: Problem, ts: Any) -> Layers:
    """The weights at the times ts (two or more), each of shape (times, out, in)."""
    ts = np.asarray(ts, float)
    filled = np.concatenate([ts[:-1], np.linspace(ts[-2], ts[-1], max(TIMES - len(ts), 0) + 2)[1:]])
    run = _run(problem, _reference(land_on_ts=True), filled, RESULTS.successful)
    kept = [*range(len(ts) - 1), -1]
    return tuple(np.asarray(w)[kept] for w in run.saved.weights)


def time_of_loss(problem: Problem, loss: float) -> float:
    """The time at which the training loss has fallen to this value."""
    run = _run(problem, _reference(until=until.loss_below(loss)), [np.inf], RESULTS.event)
    return float(run.t_end)


@eqx.filter_jit
def _velocity(problem: Problem):
    gradient = jax.grad(problem.objective)(problem.params)
    return tuple(-rate * g for rate, g in zip(problem.eta.weights, gradient.weights, strict=True))


def velocity(problem: Problem) -> Layers:
    """dW_l/dt at the problem's start."""
    return tuple(np.asarray(w) for w in _velocity(problem))


@eqx.filter_jit
def _kernel(problem: Problem, eta: tuple[Array, ...], x: Float[Array, "n in"]):
    rates = eqx.tree_at(lambda tree: tree.weights, problem.eta, eta)
    return kernels.empirical(problem.net, x, eta=rates).ntk


def kernel(weights: Sequence[Any], x: Any, eta: Any) -> Float[np.ndarray, "n out n out"]:
    """The NTK with these weights and rates on the inputs x, shape (n, out, n, out)."""
    x = np.asarray(x, float)
    problem = linear_problem(weights, x, np.zeros((len(x), len(weights[-1]))), np.ones(len(weights)))
    return np.asarray(_kernel(problem, tuple(jnp.asarray(rate, jnp.float64) for rate in eta), jnp.asarray(x)))
