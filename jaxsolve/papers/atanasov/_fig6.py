"""Figure 6: anisotropic images spoil silent alignment; whitening brings it back."""

from math import inf

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import test_accuracy
from ...plot import COLORS, MARKERS
from .._claim import ABOVE_ONE, Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale
from .._silent import (
    ImageTask,
    INPUTS,
    machine_correlations,
    machine_errors,
    MLPOnImages,
    rise_time,
    SIZE,
    TIME,
    TURN,
    WATCHED,
)


WIDTH, SIGMA = 100, 0.1
GAMMAS = [0.0, 0.5, 1.0]
SIZES = by_scale((60, 100, 59), (1000, 1000, 999))
SEEDS = by_scale(10, 8)
TIMES = np.concatenate([[0.0], np.geomspace(0.05, 150.0, 50)])
CURVES = {
    "loss": "(b) loss / initial loss",
    "error": "(c) test error",
    "kernel_norm": r"(d) $|K|$ / final $|K|$",
    "kernel_alignment": "(e) kernel alignment",
}


class Figure(AbstractFigure):
    title = "Figure 6: relu networks on images between whitened (gamma = 0) and as they are (gamma = 1)"
    ours = (
        "Gradient flow in place of Adam, and |X| of one size at every gamma; the width, sigma and gamma, which are "
        "lost. At small scale 60 images in place of 1000; all of their principal components."
    )
    size = (7.0, 4.6)
    hours = by_scale(0.02, 2.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        seeds = SEEDS[runs.scale]
        problems = MLPOnImages(ImageTask.here(Images.CIFAR10, runs.scale, (0, 1), SIZES[runs.scale], seeds), WIDTH)
        axes = {"gamma": np.array(GAMMAS), "sigma": np.array([SIGMA]), "seed": range(seeds)}
        flow = GradientFlow(Tsit5(), rtol=1e-5, atol=1e-8)
        return {"runs": runs.sweep("runs", problems, axes, flow, TIMES, observe=[*WATCHED, INPUTS, test_accuracy()])}

    def draw(self, figure: Picture, data: Data) -> None:
        grid = figure.subplots(2, 3).ravel()
        runs = data["runs"].isel(sigma=0, seed=0)
        runs = runs.assign(error=1 - runs["test_accuracy"])
        ends = {"loss": 0, "kernel_norm": -1}
        for gamma, color in zip(GAMMAS, COLORS, strict=False):
            gram = runs["inputs"].sel(gamma=gamma).isel(t=0).values
            grid[0].plot(np.linalg.eigvalsh(gram)[::-1][: SIZES[Scale.SMALL][2]] / len(gram), color=color)
        grid[0].set(yscale="log", xlabel="principal component")
        grid[0].set_title("(a) variance of the inputs", fontsize=9)
        for ax, (name, title) in zip(grid[1:], CURVES.items(), strict=False):
            for gamma, color in zip(GAMMAS, COLORS, strict=False):
                curve = runs[name].sel(gamma=gamma)
                ax.plot(TIMES, curve / curve[ends[name]] if name in ends else curve, color=color)
            ax.set(xscale="log", xlim=(0.05, TIMES[-1]), xlabel=TIME)
            ax.set_title(title, fontsize=9)
        every = data["runs"].isel(sigma=0).transpose("gamma", "seed", ...)
        for at, label, marker in ((-1, "final kernel", MARKERS[0]), (0, "first kernel", MARKERS[1])):
            mean, bar = zip(
                *(mean_over(machine_errors(every.isel(gamma=index), at)) for index in range(3)), strict=True
            )
            style = {"marker": marker, "ms": 4, "lw": 1.0, "capsize": 2, "label": label}
            grid[5].errorbar(GAMMAS, mean, bar, color=TURN if at else SIZE, **style)
        grid[5].set(ylim=(0, 0.6), xlabel=r"$\gamma$", xticks=GAMMAS)
        grid[5].set_title("(f) error of kernel regression", fontsize=9)
        grid[5].legend(frameon=False, fontsize=7)
        labels = [rf"$\gamma = {gamma:g}$" for gamma in GAMMAS]
        figure.legend(grid[1].get_lines(), labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        runs = data["runs"].isel(sigma=0).transpose("gamma", "seed", "t", ...)
        final, first = (np.array([machine_errors(runs.isel(gamma=index), at) for index in range(3)]) for at in (-1, 0))
        likeness = np.array([machine_correlations(runs.isel(gamma=index)) for index in range(3)])
        loss, size = runs["loss"].values, runs["kernel_norm"].values
        falls = _spread(1 - loss / loss[..., :1])
        grows = _spread((size - size[..., :1]) / (size[..., -1:] - size[..., :1]))
        late = _late(loss, runs["kernel_alignment"].values)
        said = "(b) Anisotropy spreads the fall of the loss: decades from 10 to 90 %, gamma = 1 less 0."
        yield Claim(said, *POSITIVE, *mean_over(falls[2] - falls[0]))
        said = "(d) It slows the kernel's growth: decades from 10 to 90 % of it, gamma = 1 less 0."
        yield Claim(said, *POSITIVE, *mean_over(grows[2] - grows[0]))
        for index in (1, 2):
            said = (
                "(e) The alignment varies more while the loss falls from 90 % to 10 %: its range at gamma = "
                f"{GAMMAS[index]:g} less that at 0."
            )
            yield Claim(said, *POSITIVE, *mean_over(late[index] - late[0]))
        said = (
            "(f) Whitened: the final network is kernel regression with its final kernel: relative error on test points."
        )
        yield Claim(said, "small", (0.0, 0.15), *mean_over(final[0]))
        yield Claim("(f) Whitened: correlation of the two.", "near 1", (0.99, inf), *mean_over(likeness[0]))
        for index in (1, 2):
            said = f"(f) Anisotropy spoils it: error at gamma = {GAMMAS[index]:g} over that at {GAMMAS[index - 1]:g}."
            yield Claim(said, *ABOVE_ONE, *mean_over(final[index] / final[index - 1]))
        said = "(f) At gamma = 1 the final kernel is still the better model: error of the first over its."
        yield Claim(said, *ABOVE_ONE, *mean_over(first[2] / final[2]))


def _spread(rise: np.ndarray) -> np.ndarray:
    """Decades of time from 10 to 90 % of a rise."""
    early, late = (rise_time(TIMES, rise, level) for level in (0.1, 0.9))
    return np.log10(late / early)


def _late(loss: np.ndarray, alignment: np.ndarray) -> np.ndarray:
    """The range of the alignment while the loss falls; to the end of the run where a tenth is never reached."""
    begin, end = (rise_time(TIMES, 1 - loss / loss[..., :1], fall)[..., None] for fall in (0.1, 0.9))
    inside = (begin <= TIMES) & (end >= TIMES)
    return np.where(inside, alignment, -inf).max(-1) - np.where(inside, alignment, inf).min(-1)
