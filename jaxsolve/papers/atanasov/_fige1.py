"""Figure E.1: what a learnt kernel is worth on another task, by equations 44 to 48 (corrected) and by regression."""

from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import FrozenKernel
from ...nets import Given, Scaling, TwoLayerLinear
from ...observe import test_loss
from ...plot import COLORS, MARKERS
from ...theory import transfer_error
from .._claim import bars, Claim, Claims, mean_over, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs


SIZE, TESTS = 40, 400
SAMPLES = [4, 8, 16, 24, 32]
FEATURES, TASKS = [0.0, 1.0, 10.0, 100.0], [0.0, 0.5, 0.9, 1.0]  # A and alpha
SEEDS = by_scale(30, 1000)
MAP = np.geomspace(0.1, 100.0, 40), np.linspace(0.0, 1.0, 41)
MAP_SAMPLES = 8


class Figure(AbstractFigure):
    title = "Figure E.1: transfer error of a learnt linear kernel, in theory (lines) and by kernel regression (points)"
    ours = f"{SIZE} dimensions, the sample sizes, A and alpha: the paper does not say its own."
    size = (7.0, 2.5)
    hours = by_scale(0.02, 0.1)

    def run(self, runs: Runs) -> Data:
        axes = {"samples": SAMPLES, "feature": FEATURES, "task": TASKS, "seed": range(SEEDS[runs.scale])}
        regression = runs.sweep("regression", _problem, axes, FrozenKernel(), [inf], observe=test_loss())
        return {"regression": regression}

    def draw(self, figure: Picture, data: Data) -> None:
        errors = 2 * data["regression"]["test_loss"].isel(t=0)
        a, b, c = figure.subplots(1, 3)
        for ax, axis, fixed, title in (
            (a, "feature", {"task": 0.9}, r"(a) $\alpha = 0.9$"),
            (b, "task", {"feature": 1.0}, r"(b) $A = 1$"),
        ):
            letter = {"feature": "A", "task": r"\alpha"}[axis]
            for value, color, marker in zip(errors[axis].values, COLORS, MARKERS, strict=False):
                cells = errors.sel({axis: value} | fixed)
                every = np.arange(1, SIZE)
                ax.plot(every, _theory(every, **{axis: value}, **fixed), color=color, lw=1.0)
                style = {"ls": "", "marker": marker, "ms": 3, "color": color, "mfc": "none"}
                ax.errorbar(SAMPLES, *bars(cells), label=rf"${letter} = {value:g}$", **style)
            ax.set(xlabel="samples $P$", ylabel="error", title=title, ylim=(0, None))
            ax.legend(frameon=False, fontsize=7)
        image = c.pcolormesh(*MAP, _theory(MAP_SAMPLES, *np.meshgrid(*MAP)), cmap="cividis", shading="nearest")
        c.set(xscale="log", xlabel="$A$", ylabel=r"$\alpha$", title=f"(c) theory, $P = {MAP_SAMPLES}$")
        figure.colorbar(image, ax=c, label="error")

    def claims(self, data: Data) -> Claims:
        errors = 2 * data["regression"]["test_loss"].isel(t=0)
        cells = [(p, A, alpha) for p in SAMPLES for A in FEATURES for alpha in TASKS]
        found = [mean_over(errors.sel(samples=p, feature=A, task=alpha)) for p, A, alpha in cells]
        theory = np.asarray(_theory(*np.array(cells).T))
        means, halves = np.array(found).T
        inside = np.where(np.isfinite(means), np.abs(means - theory) <= halves + 1e-9, np.nan)
        few = errors.sel(samples=SAMPLES[0], task=0.9)
        one_task = errors.sel(samples=MAP_SAMPLES, feature=1.0)
        right = errors.sel(samples=MAP_SAMPLES, task=1.0)
        table = _theory(MAP_SAMPLES, *np.meshgrid(*MAP, indexing="ij"))
        lowest = np.unravel_index(int(np.argmin(table)), table.shape)
        every = errors.sel(samples=MAP_SAMPLES).stack(cell=["feature", "task"]).transpose("cell", "seed").values
        ahead = every[-1] - every[:-1]  # of the largest A and alpha, on the same inputs
        said = "Equations 44 to 48: share of cells in whose 95 % interval theory lies."
        yield Claim(said, "1", (0.88, 1.0), mean_over(inside).value)
        said = (
            "(a) With few samples of a related task (0.9), more feature learning is better: error at A = 100 less "
            "that at 0."
        )
        yield Claim(said, *NEGATIVE, *mean_over(few.sel(feature=100.0) - few.sel(feature=0.0)))
        said = "(b) At A = 1 related tasks are easier: error at alpha = 1 less that at 0."
        yield Claim(said, *NEGATIVE, *mean_over(one_task.sel(task=1.0) - one_task.sel(task=0.0)))
        said = "For the old task the error falls strictly with A: largest step from one A to the next."
        steps = right.diff("feature").transpose("feature", "seed")
        yield Claim(said, *NEGATIVE, *max(map(mean_over, steps), key=sum))
        said = (
            "(c) The lowest error is where A and alpha are both largest: error there less that of any other "
            "simulated cell, the largest difference."
        )
        yield Claim(said, *NEGATIVE, *max(map(mean_over, ahead), key=sum))
        said = "(c) So it is on the map, by theory alone: share of both ranges at the lowest error, the smaller."
        share = min(lowest[0] / (len(MAP[0]) - 1), lowest[1] / (len(MAP[1]) - 1))
        yield Claim(said, "1", (1.0, 1.0), float(share))


@jax.jit
def _theory(samples: Any, feature: Any, task: Any) -> Array:
    """The error at every cell, in the shape that the arguments have together."""
    one = lambda p, A, alpha: transfer_error(SIZE, p, feature=A, alignment=alpha).error
    return jnp.vectorize(one)(*map(jnp.asarray, (samples, feature, task)))


def _problem(samples: int, feature: Array, task: Array, seed: Array) -> Problem:
    """A frozen first layer holds the learnt features, so that the last one regresses with the kernel A bb^T + I."""
    x = jax.random.normal(jax.random.key(seed), (samples + TESTS, SIZE))
    features = jnp.eye(SIZE).at[0, 0].set(jnp.sqrt(1 + feature))
    scaling = Scaling(multiplier=jnp.ones(2), sigma=jnp.ones(2), eta=jnp.array([0.0, 1.0]))
    init = Given([features, jnp.zeros((1, SIZE))])
    net = TwoLayerLinear(in_size=SIZE, width_size=SIZE, scaling=scaling, init=init, key=jax.random.key(0))
    y = task * x[:, :1] + jnp.sqrt(1 - task**2) * x[:, 1:2]
    return Problem(net, x[:samples], y[:samples], test=(x[samples:], y[samples:]))
