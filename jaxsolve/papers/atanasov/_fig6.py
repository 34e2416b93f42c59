"""Figure 6: anisotropic images spoil silent alignment; whitening brings it back."""

from math import inf
from typing import final, TYPE_CHECKING

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import test_accuracy
from ...plot import COLOURS, MARKERS
from .._claim import Claim, mean_over
from .._figure import AbstractFigure, Data, Images, Runs, Scale
from .._silent import rise_time, TIME
from .._silent_images import ImageTask, machine_correlations, machine_errors, MLPOnImages, regressions, WATCHED


if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, SIGMA = 100, 0.1
GAMMAS = [0.0, 0.5, 1.0]
SIZES = {Scale.SMALL: (60, 100, 40), Scale.MEDIUM: (1000, 1000, 500), Scale.PAPER: (1000, 1000, 500)}
SEEDS = {Scale.SMALL: 3, Scale.MEDIUM: 5, Scale.PAPER: 5}
TIMES = np.concatenate([[0.0], np.geomspace(0.05, 150.0, 50)])
CURVES = {
    "loss": "(a) loss / initial loss",
    "error": "(b) test error",
    "kernel_norm": r"(c) $|K|$ / final $|K|$",
    "kernel_alignment": "(d) kernel alignment",
}


@final
class Fig6(AbstractFigure):
    """Two-layer relu networks on images that are whitened by part."""

    title = "Figure 6: relu networks on images between whitened (gamma = 0) and as they are (gamma = 1)"
    ours = (
        "Gradient flow in place of Adam; sigma = 0.1, and |X| of one size at every gamma. At small scale 60 images "
        "and 40 principal components; the paper's numbers are lost."
    )
    hours = {Scale.SMALL: 0.025, Scale.MEDIUM: 2.0, Scale.PAPER: 2.0}
    images = Images.CIFAR10

    def run(self, runs: Runs) -> Data:
        problems = MLPOnImages(ImageTask(Images.CIFAR10, runs.scale, (0, 1), *SIZES[runs.scale]), WIDTH)
        axes = {"gamma": np.array(GAMMAS), "sigma": np.array([SIGMA]), "seed": range(SEEDS[runs.scale])}
        flow = GradientFlow(Tsit5(), rtol=1e-5, atol=1e-8)
        return {"runs": runs.sweep("runs", problems, axes, flow, TIMES, observe=[*WATCHED, test_accuracy()])}

    def draw(self, data: Data) -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.0, 4.6), layout="constrained")
        grid = figure.subplots(2, 3).ravel()
        runs = data["runs"].isel(sigma=0, seed=0)
        runs = runs.assign(error=1 - runs["test_accuracy"])
        ends = {"loss": 0, "kernel_norm": -1}
        for ax, (name, title) in zip(grid, CURVES.items(), strict=False):
            for gamma, colour in zip(GAMMAS, COLOURS, strict=False):
                curve = runs[name].sel(gamma=gamma)
                ax.plot(TIMES, curve / curve[ends[name]] if name in ends else curve, color=colour)
            ax.set(xscale="log", xlim=(0.05, TIMES[-1]), xlabel=TIME)
            ax.set_title(title, fontsize=9)
        for ax, gamma, letter in ((grid[4], GAMMAS[0], "e"), (grid[5], GAMMAS[-1], "f")):
            one, index = runs.sel(gamma=gamma), GAMMAS.index(gamma)
            outputs = one["test_outputs"].isel(t=-1).values.ravel()
            ax.plot(*[[outputs.min(), outputs.max()]] * 2, color="0.6", lw=0.8)
            found, style = regressions(one, -1).ravel(), {"ms": 2.5, "mfc": "none", "ls": ""}
            ax.plot(outputs, found, marker=MARKERS[index], color=COLOURS[index], **style)
            ax.set(xlabel="network, test points", ylabel="regression, final kernel")
            ax.set_title(rf"({letter}) $\gamma = {gamma:g}$", fontsize=9)
        labels = [rf"$\gamma = {gamma:g}$" for gamma in GAMMAS]
        figure.legend(grid[0].get_lines(), labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return figure

    def claims(self, data: Data) -> list[Claim]:
        runs = data["runs"].isel(sigma=0).transpose("gamma", "seed", "t", ...)
        errors = np.array([machine_errors(runs.isel(gamma=index)) for index in range(3)])
        likeness = np.array([machine_correlations(runs.isel(gamma=index)) for index in range(3)])
        late = _late(runs["loss"].values, runs["kernel_alignment"].values)
        found = [
            Claim(
                "(e) Whitened: the final network is kernel regression with its final kernel: relative error on test "
                "points.",
                "small",
                (0.0, 0.15),
                *mean_over(errors[0]),
            ),
            Claim("(e) Whitened: correlation of the two.", "near 1", (0.98, inf), *mean_over(likeness[0])),
        ]
        for index in (1, 2):
            said = f"Anisotropy spoils it: error at gamma = {GAMMAS[index]:g} over that at {GAMMAS[index - 1]:g}."
            found.append(Claim(said, "> 1", (1.0, inf), *mean_over(errors[index] / errors[index - 1])))
        for index in (1, 2):
            said = (
                "(d) The alignment varies more while the loss falls from 90 % to 10 %: its range at gamma = "
                f"{GAMMAS[index]:g} less that at 0."
            )
            found.append(Claim(said, "> 0", (0.0, inf), *mean_over(late[index] - late[0])))
        return found


def _late(loss: np.ndarray, alignment: np.ndarray) -> np.ndarray:
    """The range of the alignment while the loss falls; to the end of the run where a tenth is never reached."""
    begin, end = (rise_time(TIMES, 1 - loss / loss[..., :1], fall)[..., None] for fall in (0.1, 0.9))
    inside = (begin <= TIMES) & (end >= TIMES)
    return np.where(inside, alignment, -inf).max(-1) - np.where(inside, alignment, inf).min(-1)


FIGURE = Fig6()
