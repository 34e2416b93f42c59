"""Figure D.4: the final kernel of deep linear networks turns to the classes, the more the deeper they are."""

from math import inf

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import kernel, kernel_alignment, loss, outputs
from ...plot import COLORS, gram
from .._claim import Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale, Table, Values
from .._silent import ImageTask, INPUTS, MLPOnImages, TARGETS, TIME


WIDTH, SIGMA, GAMMA = 50, 0.1, 0.25
DEPTHS = [1, 2, 3]  # hidden layers
SIZES = by_scale((60, 1, 59), (100, 1, 99))
SEEDS = by_scale(3, 8)
WATCHED = (loss(), kernel_alignment(), kernel(), outputs(), INPUTS)
TIMES = np.concatenate([[0.0], np.geomspace(0.1, 5e3, 60)])


class Figure(AbstractFigure):
    title = "Figure D.4: kernel alignment of linear networks of three depths, and their kernels, ordered by class"
    ours = (
        f"Two classes of images; sigma = {SIGMA:g}, width {WIDTH}, two to four layers, which are lost. At small scale "
        f"{SIZES[Scale.SMALL][0]} images in place of 100."
    )
    size = (7.2, 2.3)
    hours = by_scale(0.025, 0.1)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        found = {}
        for depth in DEPTHS:
            task = ImageTask.here(Images.CIFAR10, runs.scale, (0, 1), SIZES[runs.scale], SEEDS[runs.scale])
            axes = {"gamma": [GAMMA], "sigma": [SIGMA], "seed": range(SEEDS[runs.scale])}
            flow, watched = GradientFlow(Tsit5(), rtol=1e-5), [*WATCHED, TARGETS]
            name = f"layers_{depth + 1}"
            data = runs.sweep(name, MLPOnImages(task, WIDTH, depth, "linear"), axes, flow, TIMES, observe=watched)
            found[name] = data.isel(gamma=0, sigma=0)
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        left, *panels = figure.subplots(1, 5, width_ratios=[1.6, 1, 1, 1, 1])
        for (name, runs), color in zip(data.items(), COLORS, strict=False):
            label = f"$L = {name.removeprefix('layers_')}$"
            left.plot(TIMES, runs["kernel_alignment"].isel(seed=0), color=color, label=label)
        left.set(xscale="log", xlim=(0.1, TIMES[-1]), xlabel=TIME)
        left.set_title("(a) alignment", fontsize=9)
        left.legend(frameon=False, fontsize=7)
        grams = {"$K_0$, $L = 2$": _kernel(data["layers_2"], 0)}
        grams |= {f"$K_\\infty$, $L = {name[-1]}$": _kernel(runs, -1) for name, runs in data.items()}
        for ax, (title, of), letter in zip(panels, grams.items(), ("(b) ", "", "", ""), strict=True):
            gram(*of, ax=ax)
            ax.set_title(letter + title, fontsize=9)
            ax.set(xlabel="", ylabel="")
        panels[0].set(xlabel="sample, by class", ylabel="sample, by class")

    def claims(self, data: Data) -> Claims:
        ends = [runs["kernel_alignment"].isel(t=-1).values for runs in data.values()]
        steps = [mean_over(after - before) for before, after in zip(ends, ends[1:], strict=False)]
        said = "(a) The final alignment grows with depth: smallest step from one depth to the next."
        yield Claim(said, *POSITIVE, *min(steps, key=lambda one: one.value - one.uncertainty))
        for name, runs in data.items():
            layers = int(name.removeprefix("layers_"))
            off = [_off(runs.isel(seed=seed, t=-1), layers) for seed in range(runs.sizes["seed"])]
            said = f"(b) L = {layers}: distance of the final kernel from (L - 1) f f^T + |beta|^2 X X^T, in its size."
            yield Claim(said, "0", (-inf, 0.1), *mean_over(off))


def _kernel(runs: Table, t: int) -> tuple[Values, np.ndarray]:
    """The kernel of the first lane, and the samples' classes."""
    one = runs.isel(seed=0, t=t)
    return one["kernel"], (one["targets"].values[:, 0] > 0).astype(int)


def _off(last: Table, layers: int) -> float:
    """The relative distance of the last kernel from that of balanced layers, up to its scale; NaN for a failed run."""
    matrix, inputs, f = last["kernel"].values[:, 0, :, 0], last["inputs"].values, last["outputs"].values
    if not np.isfinite(inputs).all():
        return np.nan
    squared = float((f.T @ np.linalg.pinv(inputs, rcond=1e-9) @ f)[0, 0])  # |beta|^2
    expected = (layers - 1) * f @ f.T + squared * inputs
    scaled = expected * np.sum(matrix * expected) / np.sum(expected**2)
    return float(np.linalg.norm(matrix - scaled) / np.linalg.norm(matrix))
