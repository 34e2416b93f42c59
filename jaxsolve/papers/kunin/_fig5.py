"""Figure 5: upstream students change many activation patterns while their parameters move little."""

from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset, teacher_student
from ...dynamics import Descent
from ...observe import accuracy, hamming_distance, parameter_distance, test_outputs
from ...sweeps import Zip
from .._claim import Claim, Claims, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale
from .._kunin_grid import across_delta, draw_map, grid, MEASURES, of_size, student


STARTS = {"tau": [0.1, 0.1, 0.1, 2.0], "delta": [0.9999, 0.0, -0.9999, 0.0]}
NAMES = ["upstream", "balanced", "downstream", "lazy"]
SAMPLES, WIDTH, SIDE, SEEDS = 40, 50, 61, 4
STEP, STEPS = 5e-4, 20_000
MAPS = ("hamming_distance", "parameter_distance")
LAYOUT: Any = [NAMES, [MAPS[0]] * 2 + [MAPS[1]] * 2]


class Figure(AbstractFigure):
    title = "Figure 5: (a) surfaces of students on an XOR-like task; (b) Hamming and parameter distance over the grid"
    ours = (
        f"(a) The whole task, which no copy describes: {SAMPLES} points on the unit circle in two dimensions, whose "
        f"target is the sign of x_1 x_2; {WIDTH} neurons, {STEPS} steps of {STEP:g}/tau^2. (b) At small scale "
        f"{of_size(Scale.SMALL)}: the runs of Figure 1."
    )
    size = (7.2, 4.2)
    hours = by_scale(0.015, 0.05)  # after figure 1
    shares = "grid"

    def run(self, runs: Runs) -> Data:
        x = np.linspace(-1, 1, SIDE)
        plane = jnp.asarray(np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2))
        drawn = teacher_student(_xor, 2, SAMPLES, sphere=True, key=jax.random.key(15))
        task = Dataset(*drawn.train, plane, jax.vmap(_xor)(plane)[:, None])
        watched = [accuracy(), hamming_distance(), parameter_distance(), test_outputs()]
        axes = [Zip(**STARTS), {"seed": range(100, 100 + SEEDS)}]
        ends = [0.0, STEP * STEPS]
        return {
            "surfaces": runs.sweep("surfaces", _Students(task), axes, Descent(optax.sgd(STEP)), ends, observe=watched),
            "grid": grid(runs),
        }

    def draw(self, figure: Picture, data: Data) -> None:
        axes = figure.subplot_mosaic(LAYOUT)
        shown = data["surfaces"].isel(seed=0, t=-1)
        for index, name in enumerate(NAMES):
            ax = axes[name]
            values = shown["test_outputs"].isel(tau_delta=index, output=0).values.reshape(SIDE, SIDE)
            ax.imshow(values, cmap="PuOr", vmin=-1.5, vmax=1.5, origin="lower", extent=(-1, 1, -1, 1))
            ax.contour(
                np.linspace(-1, 1, SIDE), np.linspace(-1, 1, SIDE), values, levels=[0.0], colors="k", linewidths=0.8
            )
            ax.set_title(name, fontsize=9)
            ax.set(xlabel="$x_1$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axes[NAMES[0]].set_ylabel("(a) $x_2$")
        figure.colorbar(axes[NAMES[-1]].images[0], ax=axes[NAMES[-1]], label="$f$")
        last = data["grid"].isel(t=-1)
        for measure in MAPS:
            draw_map(axes[measure], last[measure], MEASURES[measure])
            axes[measure].set_xlabel(r"overall scale $\tau$")
        axes[MAPS[0]].set_ylabel("(b) relative scale $\\delta$")

    def claims(self, data: Data) -> Claims:
        end, last = data["surfaces"].isel(t=-1), data["grid"].isel(t=-1)
        at = lambda name, of: end[name].isel(tau_delta=NAMES.index(of))
        gap = lambda name, one, other: mean_over(at(name, one) - at(name, other))
        said = "(a) Rich students learn the task: least training accuracy of the three, in per cent."
        yield Claim(
            said, "100 %", (99.0, inf), *mean_over(100 * end["accuracy"].isel(tau_delta=slice(0, 3)).min("tau_delta"))
        )
        for other in ("downstream", "lazy"):
            said = f"(a) Upstream more activation patterns change than in the {other} student. Difference."
            yield Claim(said, *POSITIVE, *gap("hamming_distance", "upstream", other))
        said = "(a) Upstream the parameters move less than downstream. Difference."
        yield Claim(said, *NEGATIVE, *gap("parameter_distance", "upstream", "downstream"))
        ratio = last["hamming_distance"] / last["parameter_distance"]
        said = "(b) At the smallest tau, patterns changed per parameter distance at delta = 1 less those at {}."
        for delta in (0, -1):
            yield Claim(said.format(delta), *POSITIVE, *across_delta(ratio, float(delta), 1.0))


def _xor(x: Array) -> Array:
    return jnp.sign(x[0] * x[1])


class _Students(NamedTuple):
    task: Dataset

    def __call__(self, tau: Array, delta: Array, seed: Array) -> Problem:
        return student(self.task, WIDTH, tau, delta, jax.random.key(seed))
