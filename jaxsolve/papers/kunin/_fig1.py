"""Figure 1: a small overall scale and a large relative scale make rapid feature learning, and the best students."""

import numpy as np
import optax

from ...dynamics import Descent
from ...observe import hamming_distance, loss, neuron_direction, neuron_radius
from ...plot import neurons
from ...sweeps import Zip
from .._claim import Claim, Claims, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale
from .._kunin_grid import across_delta, draw_map, grid, MEASURES, of_size, Students


STARTS = {"tau": [0.1, 2.0, 0.1, 0.1], "delta": [0.0, 0.0, 0.9999, -0.9999]}
NAMES = ["balanced", "lazy", "upstream", "downstream"]
PLANE = Students(in_size=2, width=50, samples=20, tests=100)
STEP = 2e-4
TIMES = STEP * np.unique(np.concatenate([[0], np.round(np.geomspace(1, 20_000, 40))]))


class Figure(AbstractFigure):
    title = "Figure 1: (a) neurons of four students in the plane; (b) four measures over the grid of scales"
    ours = (
        f"(a) {len(TIMES)} checkpoints in {TIMES[-1]:g} units of time, rates 2/tau^2. (b) At small scale "
        f"{of_size(Scale.SMALL)}. The teachers and students are other draws than theirs."
    )
    size = (7.2, 4.2)
    hours = by_scale(0.04, 1.2, 80.0)
    shares = "grid"

    def run(self, runs: Runs) -> Data:
        watched = [neuron_radius(), neuron_direction(), hamming_distance(), loss()]
        axes = [Zip(**STARTS), {"seed": range(100, 112)}]
        plane = runs.sweep("plane", PLANE, axes, Descent(optax.sgd(STEP)), TIMES, observe=watched)
        return {"plane": plane, "grid": grid(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        axes = figure.subplots(2, 4)
        runs = data["plane"].isel(seed=0)
        for index, (ax, name, tau, delta) in enumerate(zip(axes[0], NAMES, *STARTS.values(), strict=True)):
            lane = runs.isel(tau_delta=index)
            neurons(lane["neuron_radius"], lane["neuron_direction"], ax=ax)
            ax.set_title(rf"{name}" + "\n" + rf"$\tau = {tau:g}$, $\delta = {round(delta):g}$", fontsize=8)
            ax.set_ylabel("")
            ax.locator_params(nbins=3)
            ax.tick_params(labelsize=7)
        axes[0, 0].set_ylabel(r"(a) $(a_k w_k)_2$")
        last = data["grid"].isel(t=-1)
        for ax, (measure, title) in zip(axes[1], MEASURES.items(), strict=True):
            draw_map(ax, last[measure] * (2 if measure == "test_loss" else 1), title, log=measure == "test_loss")
            ax.set_xlabel(r"overall scale $\tau$")
        axes[1, 0].set_ylabel("(b) relative scale $\\delta$")

    def claims(self, data: Data) -> Claims:
        runs = data["grid"]
        last, early = runs.isel(t=-1), runs["kernel_distance"].isel(t=1)
        flips, moved = last["hamming_distance"], last["parameter_distance"]
        error = last["test_loss"].copy(data=np.log10(last["test_loss"].values))
        said = "(b) At the smallest tau and delta = {} the error is smaller than at the largest: decades of difference."
        for delta in (-1, 0, 1):
            at = error.sel(delta=delta, method="nearest")
            fall = mean_over(at.isel(tau=0) - at.isel(tau=-1))
            yield Claim(said.format(delta), *NEGATIVE, *fall)
        best = error.min("tau").idxmin("delta")
        balanced = error.isel(tau=0).sel(delta=1, method="nearest") - error.isel(tau=0).sel(delta=0, method="nearest")
        mixed, alike = (mean_over(balanced.values[runs["mixed"].values == kind]) for kind in (True, False))
        rows = [
            ("Error at delta = 1 less that at -1, in decades", across_delta(error, -1.0, 1.0), NEGATIVE),
            ("Error at delta = 1 less that at 0, in decades", across_delta(error, 0.0, 1.0), NEGATIVE),
            ("Early, the kernel has moved farther at delta = 1 than at -1", across_delta(early, -1.0, 1.0), POSITIVE),
            ("Early, the kernel has moved farther at delta = 1 than at 0", across_delta(early, 0.0, 1.0), POSITIVE),
            ("More activation patterns change at delta = 1 than at -1", across_delta(flips, -1.0, 1.0), POSITIVE),
            ("Parameters move less at delta = 1 than at -1", across_delta(moved, -1.0, 1.0), NEGATIVE),
        ]
        for said, measured, sign in rows:
            yield Claim(f"(b) At the smallest tau: {said}. Difference.", *sign, *measured)
        said = "(b) The least error of a task's whole grid is at a positive delta: which one, mean over tasks."
        yield Claim(said, *POSITIVE, *mean_over(best))
        said = "(b) Teachers whose read-outs have both signs: error at delta = 1 less that at 0, in decades."
        yield Claim(said, *NEGATIVE, *mixed)
        said = "(b) Found here: teachers of one sign make it otherwise, error at delta = 1 less that at 0, in decades."
        yield Claim(said, "< 0, of no special teacher", NEGATIVE[1], *alike, corrected=POSITIVE[1])
        kernel = last["kernel_distance"].sel(delta=0, method="nearest")
        said = "(b) Large tau is lazy: kernel distance at the largest tau over that at the smallest, delta = 0."
        yield Claim(said, "0", (0.0, 0.1), *mean_over(kernel.isel(tau=-1) / kernel.isel(tau=0)))
        flips = data["plane"]["hamming_distance"].isel(t=-1)
        for index, name in ((2, "upstream"), (0, "balanced")):
            said = f"(a) {name}: more patterns change than in the lazy student. Difference of Hamming distances."
            yield Claim(said, *POSITIVE, *mean_over(flips[index] - flips[1]))
