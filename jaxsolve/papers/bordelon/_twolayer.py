"""Two layers of relu at four richnesses: the loss, and the kernel of the hidden layer."""

from typing import Any

import numpy as np

from ...nets import relu
from ...plot import COLORS
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._mean_field import agreement, Training


TRAINING = Training(samples=25, dimension=40, rate=0.075, steps=200, depth=1, activation=relu)
WIDTH, SEEDS = 3000, 8
# The mean square error after 100 and after 199 steps, as read off their figure.
READ = {0.2: (0.64, 0.40), 1.0: (0.515, 0.11), 2.0: (0.24, 0.01), 3.0: (0.07, 0.005)}
LINE = 0.02  # half of how exactly that can be done


class Figure(AbstractFigure):
    title = "Two layers of relu, richness 0.2 to 3: loss and kernel of networks and of their limit"
    ours = "Settings and inputs of the authors' notebook `two_layer_nonlinear_DMFT`; eight networks in place of one."
    size = (7.0, 2.9)
    hours = by_scale(0.02, 0.02)

    def run(self, runs: Runs) -> Data:
        return TRAINING.measured(runs, list(READ), [WIDTH], SEEDS)

    def draw(self, figure: Picture, data: Data) -> None:
        networks, limit = data["networks"].isel(width=0, seed=0), data["limit"].isel(width=0, seed=0)
        split: Any = figure.subfigures(1, 2)
        left, right = split
        ax = left.subplots()
        for color, richness in zip(COLORS, READ, strict=False):
            steps = np.arange(TRAINING.steps)
            ax.plot(steps, 2 * networks["loss"].sel(richness=richness), color=color, label=f"{richness:g}")
            ax.plot(steps, 2 * limit["loss"].sel(richness=richness), "k--", lw=1)
        ax.plot([], [], "k--", lw=1, label="limit")
        ax.set(xlabel="step", ylabel="mean squared error", ylim=(0, None))
        ax.legend(title=r"richness $\gamma_0$", frameon=False, fontsize=8)
        panels = right.subplots(2, len(READ))
        for column, richness in enumerate(READ):
            for row, run in enumerate((networks, limit)):
                kernel = run["feature_kernel_1"].sel(richness=richness).isel(t=-1)
                panels[row, column].imshow(kernel, cmap="cividis")
                panels[row, column].set(xticks=[], yticks=[])
            panels[0, column].set_title(rf"$\gamma_0 = {richness:g}$", fontsize=8)
        for row, name in enumerate(("network", "limit")):
            panels[row, 0].set_ylabel(rf"$\Phi^1$, {name}", fontsize=8)

    def claims(self, data: Data) -> Claims:
        networks, limit = data["networks"].isel(width=0), data["limit"].isel(width=0, seed=0)
        error, far = 2 * limit["loss"], 2 * abs(networks["loss"] - limit["loss"]).max("t")
        for richness, read in READ.items():
            for step, value in zip((100, 199), read, strict=True):
                said = f"Richness {richness:g}: mean squared error of the limit after {step} steps, of theirs read off."
                accepted = (value - LINE, value + LINE)
                yield Claim(said, f"{value:g}", accepted, float(error.sel(richness=richness).isel(t=step)))
            said = f"Richness {richness:g}: largest distance between the losses of a network and of the limit."
            yield Claim(said, "hidden by the line", (0.0, 2 * LINE), *mean_over(far.sel(richness=richness)))
            alike = agreement(networks, limit, 1).sel(richness=richness)
            said = f"Richness {richness:g}: cosine between the kernels of networks and of the limit, at equal times."
            yield Claim(said, "1, by eye", (0.98, 1.0), *mean_over(alike))
