"""Figure 10: the grid of both scales at every checkpoint: when kernels, patterns and parameters move."""

from math import inf

import numpy as np

from .._claim import Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale
from .._kunin_grid import across_delta, draw_map, grid, MEASURES, of_size


class Figure(AbstractFigure):
    title = "Figure 10: test error, kernel, Hamming and parameter distance over the grid of scales, at each checkpoint"
    ours = f"At small scale {of_size(Scale.SMALL)}; at the paper's scale 1e5 steps, as in Figure 1, in place of 1e6."
    size = (7.6, 6.6)
    hours = by_scale(0.03, 1.2, 80.0)
    shares = "grid"

    def run(self, runs: Runs) -> Data:
        return {"grid": grid(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        runs = data["grid"]
        times = runs["t"].values[1:]
        axes = figure.subplots(len(MEASURES), len(times), sharex=True, sharey=True)
        for row, (measure, label) in zip(axes, MEASURES.items(), strict=True):
            for ax, t in zip(row, times, strict=True):
                error = measure == "test_loss"
                draw_map(ax, runs[measure].sel(t=t) * (2 if error else 1), f"{label}, $t = {t:g}$", log=error)
                ax.title.set_fontsize(7)
            row[0].set_ylabel(r"relative scale $\delta$")
        for ax in axes[-1]:
            ax.set_xlabel(r"overall scale $\tau$")

    def claims(self, data: Data) -> Claims:
        runs = data["grid"]
        least = runs.isel(tau=0)
        kernel, high, low = least["kernel_distance"], least["delta"].values[-1], least["delta"].values[0]
        most, less = ("most of it", (0.5, inf)), ("less than half", (-inf, 0.5))
        for delta, name, expected in ((high, "upstream", most), (0.0, "balanced", less), (low, "downstream", less)):
            of = kernel.sel(delta=delta, method="nearest")
            said = f"At the smallest tau, {name}: share of the kernel's last distance at the first checkpoint."
            yield Claim(said, *expected, *mean_over(of.isel(t=1) / of.isel(t=-1)))
        said = "At the smallest tau and the first checkpoint more patterns change at delta = 1 than at -1. Difference."
        yield Claim(said, *POSITIVE, *across_delta(runs["hamming_distance"].isel(t=1), -1.0, 1.0))
        error = runs["test_loss"].isel(tau=-1, t=-1)
        said = "At the largest tau delta does not matter: change of the error from delta = -1 to 1 (decades)."
        change = np.log10(error.isel(delta=-1).values / error.isel(delta=0).values)
        yield Claim(said, "about 0", (-0.1, 0.1), *mean_over(change))
