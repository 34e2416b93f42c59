"""A deep linear network: its kernels beside those of the rich and of the lazy limit."""

from typing import Any

import numpy as np

from ...nets import linear
from ...plot import COLORS
from .._claim import bars, Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._mean_field import agreement, Training


TRAINING = Training(samples=20, dimension=40, rate=0.025, steps=100, depth=5, activation=linear, every=11)
LAYERS = range(1, TRAINING.depth + 1)
RICHNESSES = np.array([0.25, 0.75, 1.5])
WIDTH = by_scale(1000, 2200)
SEEDS = by_scale(3, 5)


class Figure(AbstractFigure):
    title = "Five linear hidden layers: kernels of networks, of the rich limit and of the lazy limit"
    ours = (
        "The settings and inputs of the authors' notebook `Linear_DMFT`, at three of its richnesses; width 1000 in "
        "place of 2200 at small scale. Kernels are compared at equal times, theirs at all pairs of times."
    )
    size = (7.0, 3.4)
    hours = by_scale(0.03, 0.3)

    def run(self, runs: Runs) -> Data:
        return TRAINING.measured(runs, RICHNESSES, [WIDTH[runs.scale]], SEEDS[runs.scale], batch_size=1)

    def draw(self, figure: Picture, data: Data) -> None:
        networks, limit = data["networks"].isel(width=0), data["limit"].isel(width=0, seed=0)
        lazy = limit.isel(t=[0])
        split: Any = figure.subfigures(1, 2, width_ratios=(1, 1.7))
        left, right = split
        ax = left.subplots()
        styles = zip(COLORS, "os", (limit, lazy.isel(t=0, drop=True)), ("rich limit", "lazy limit"), strict=False)
        for color, marker, one, name in styles:
            cells = agreement(networks, one, *LAYERS)
            ax.errorbar(RICHNESSES, *bars(cells), color=color, marker=marker, label=name)
        ax.set(xlabel=r"richness $\gamma_0$", ylabel="cosine of kernels, mean over layers", ylim=(None, 1.02))
        ax.legend(frameon=False, fontsize=8)
        panels = right.subplots(3, TRAINING.depth)
        rows = {"network": networks.isel(seed=0, t=-1), "rich limit": limit.isel(t=-1), "lazy limit": lazy.isel(t=0)}
        for row, (name, run) in enumerate(rows.items()):
            for layer in LAYERS:
                ax = panels[row, layer - 1]
                ax.imshow(run[f"feature_kernel_{layer}"].isel(richness=-1), cmap="cividis")
                ax.set(xticks=[], yticks=[])
                if row == 0:
                    ax.set_title(rf"$H^{layer}$", fontsize=8)
            panels[row, 0].set_ylabel(name, fontsize=8)

    def claims(self, data: Data) -> Claims:
        networks, limit = data["networks"].isel(width=0), data["limit"].isel(width=0, seed=0)
        rich = agreement(networks, limit, *LAYERS)
        lazy = agreement(networks, limit.isel(t=0, drop=True), *LAYERS)
        for richness in RICHNESSES:
            said = f"Richness {richness:g}: cosine between kernels of networks and of the rich limit, mean over layers."
            number, least = ("0.995", 0.985) if richness == RICHNESSES[-1] else ("0.99 or more", 0.99)
            yield Claim(said, number, (least, 1.0), *mean_over(rich.sel(richness=richness)))
        said = f"Richness {RICHNESSES[-1]:g}: the same with the lazy limit."
        yield Claim(said, "0.764", (0.73, 0.8), *mean_over(lazy.isel(richness=-1)))
        falls = (lazy.isel(richness=0) - lazy.isel(richness=-1)).values
        yield Claim("The lazy limit is the worse, the richer: loss of cosine.", *POSITIVE, *mean_over(falls))
