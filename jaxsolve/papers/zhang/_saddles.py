"""Linear attention with separate keys and queries of rank one: from saddle to saddle, by gradient flow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import Problem
from ...data import in_context_moments
from ...dynamics import AlternatingFlow, GradientFlow
from ...nets import LinearAttention, Scaling
from ...plot import COLORS
from ...theory import in_context_losses
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs


EIGENVALUES, CONTEXT, HEADS = np.array([0.4, 0.3, 0.2, 0.1]), 31, 8
SIZES = [1e-2, 1e-3]  # of the weights
SEEDS = by_scale(6, 16)
TIMES = np.geomspace(10, 1e6, 400)


class Figure(AbstractFigure):
    title = "Linear attention in context: one principal component after another"
    ours = (
        f"Four dimensions with eigenvalues 0.4, 0.3, 0.2 and 0.1, {HEADS} heads, contexts of {CONTEXT} pairs; gradient "
        "flow on the moments of all sequences from Gaussian weights of two sizes, at times that are 3 % apart."
    )
    size = (5.0, 3.2)
    hours = by_scale(0.05, 0.2)

    def run(self, runs: Runs) -> Data:
        axes = {"size": np.array(SIZES), "seed": range(SEEDS[runs.scale])}
        limit = AlternatingFlow(drops=len(EIGENVALUES))
        return {
            "runs": runs.sweep("runs", _problem, axes, GradientFlow(), TIMES),
            "limit": runs.sweep("limit", _problem, axes, limit, TIMES),
        }

    def draw(self, figure: Picture, data: Data) -> None:
        ax = figure.subplots()
        for color, size in zip(COLORS, SIZES, strict=False):
            for seed, run in enumerate(2 * data["runs"]["loss"].sel(size=size).transpose("seed", "t").values):
                ax.plot(TIMES, run, color=color, lw=0.8, label=f"weights of {size:g}" if seed == 0 else None)
            limit = 2 * data["limit"]["loss"].sel(size=size).transpose("seed", "t").values[0]
            ax.plot(TIMES, limit, "k--", lw=0.6, label="alternating flows" if size == SIZES[0] else None)
        for level in _levels():
            ax.axhline(level, color="gray", lw=0.5, ls="dotted")
        ax.set(xscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="mean squared error")
        ax.legend(frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        flow, limit = (2 * data[name]["loss"].isel(size=-1).transpose("seed", "t").values for name in ("runs", "limit"))
        for m in range(1, len(_levels())):
            said = (
                f"Weights of {SIZES[-1]:g}: error where it rests with {m} components learnt, over that of the saddle."
            )
            yield Claim(said, "1", (0.98, 1.02), *mean_over([_rest(run, m) / _levels()[m] for run in flow]))
        for m in range(1, len(_levels())):
            late = [_drop(one, m) / _drop(other, m) for one, other in zip(flow, limit, strict=True)]
            said = f"Weights of {SIZES[-1]:g}: time of drop {m} over that of alternating flows (arXiv 2506.06489)."
            yield Claim(said, "1", (0.8, 1.2), *mean_over(late))


@functools.cache
def _levels() -> Float[np.ndarray, " saddles"]:
    return np.asarray(in_context_losses(EIGENVALUES, CONTEXT))


def _between(m: int) -> float:
    """A mean squared error between those of saddles m and m + 1."""
    levels = _levels()
    return float(np.sqrt(levels[m] * levels[m + 1])) if m + 1 < len(levels) else 0.0


def _drop(run: Float[np.ndarray, " times"], m: int) -> float:
    """The time at which the error falls from saddle m - 1 to saddle m."""
    below = np.flatnonzero(run < _between(m - 1))
    return float(TIMES[below[0]]) if below.size else np.nan


def _rest(run: Float[np.ndarray, " times"], m: int) -> float:
    """The error at which it falls slowest, in the logarithm of time, between the drops before and after saddle m."""
    near = run[(run < _between(m - 1)) & (run > _between(m))]
    falls = near[:-1] - near[1:]
    return float(near[np.argmin(falls)]) if falls.size else np.nan


def _problem(size: Array, seed: Array) -> Problem:
    data = in_context_moments(jnp.asarray(EIGENVALUES), CONTEXT)
    scaling = Scaling(jnp.ones(3), sigma=size * jnp.ones(3), eta=jnp.ones(3))
    shape = data.x.shape[1:]
    net = LinearAttention(in_shape=shape, heads=HEADS, rank=1, scaling=scaling, key=jax.random.key(seed))
    return Problem(net, *data.train)
