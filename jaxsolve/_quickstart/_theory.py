"""The theory for the quickstart's cells, and its agreement with gradient flow."""

from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from .. import losses, nets, observe, theory
from .._compare import compare, Comparison
from .._core import Problem
from ..dynamics import GradientFlow
from ._measure import COMPONENTS, LEARNED, SIGMAS, WIDTHS


class Prediction(NamedTuple):
    """The prediction of theory for a typical start of a two-layer linear network, on a grid of (eta, gamma)."""

    gammas: np.ndarray
    etas: np.ndarray
    half: np.ndarray  # half-loss time, shape (eta, gamma)
    change: np.ndarray  # relative kernel change once learned


def predict(line: tuple[Array, Array]) -> dict[tuple[int, float], Prediction]:
    """The closed form for every (width, sigma), at the mean of P and Q over starts (u.v = 0, |a| = |b|)."""
    gammas, etas = np.logspace(-2.25, 2.25, 91), np.logspace(-4.5, 5.5, 101)
    return {(width, sigma): _predict_one(line, width, sigma, gammas, etas) for width in WIDTHS for sigma in SIGMAS}


def _predict_one(line, width: int, sigma: float, gammas: np.ndarray, etas: np.ndarray) -> Prediction:
    x, y = (np.asarray(array, float) for array in line)
    rho = np.sqrt(np.mean(np.sum(x**2, axis=1)))
    along = x @ (x[0] / np.linalg.norm(x[0]))
    target = abs(np.mean(along * y[:, 0])) / rho
    floor = np.mean(y**2) - target**2  # twice the loss that no linear function on the line can remove
    eta, gamma = np.meshgrid(etas, gammas, indexing="ij")
    k = jnp.asarray(gamma * eta * rho / np.sqrt(COMPONENTS * width))
    size = jnp.asarray(width * sigma**2 / eta)
    reduced = theory.ReducedLine.from_pq(size, size, jnp.zeros_like(size), k, jnp.full_like(size, target))

    half = _half_time(reduced, 0.5 * (floor + target**2) - floor)
    f_learned = target - np.sqrt(max(LEARNED * (floor + target**2) - floor, 0.0))
    pq = np.asarray(k * size)
    return Prediction(gammas, etas, np.asarray(half), np.sqrt((f_learned / pq) ** 2 + 1) - 1)


@jax.jit
def _half_time(reduced: theory.ReducedLine, squared_residual: float) -> Array:
    """The time at which the squared residual falls to this value, by bisection."""

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = reduced.residual(middle) ** 2 > squared_residual
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    # Up to a factor, the residual falls at least at the rate k R of its start.
    latest = 100 / reduced.rate
    return jax.lax.fori_loop(0, 60, halve, (jnp.zeros_like(latest), latest))[1]


def theory_vs_flow(line: tuple[Array, Array]) -> dict[str, Comparison]:
    """Comparisons, from three starts on the projected digits, of the closed form with gradient flow in the weights."""
    x, _ = line
    direction = x[0] / jnp.linalg.norm(x[0])
    along = jnp.where(jnp.mean(line[1][:, 0] * (x @ direction)) > 0, 1.0, -1.0) * direction
    width = WIDTHS[1]
    starts = {
        "kernel": (nets.Scaling.ntk(10.0, eta=0.01), nets.Gaussian()),
        "alignment": (nets.Scaling.ntk(1.0, sigma=0.3, eta=4.0), nets.Gaussian()),
        "disalignment": (nets.Scaling.ntk(1.0, sigma=1.2), nets.NearParallel(0.3, along)),
    }
    fine = x.dtype == jnp.float64
    rtol, atol = (1e-10, 1e-13) if fine else (1e-5, 1e-8)
    flow = GradientFlow(diffrax.Dopri8(), rtol=rtol, atol=atol, land_on_ts=True)
    closed = theory.TwoLayerLine()
    ts = np.geomspace(1e-2, 1e2, 49)
    watched = [observe.loss(), observe.outputs(), observe.layer_alignment(), observe.kernel_change()]
    comparisons = {}
    for name, (scaling, init) in starts.items():
        net = nets.TwoLayerLinear(in_size=COMPONENTS, width_size=width, scaling=scaling, init=init, key=jr.key(3))
        problem = Problem(net, *line, loss=losses.MSE())
        comparisons[name] = compare(problem, [closed, flow], ts, observe=watched)
    return comparisons
