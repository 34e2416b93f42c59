"""Figure 9: with ReLU the kernel changes by three power laws."""

from math import inf

import numpy as np

from ...nets import relu
from ...observe import test_kernel_change
from ...plot import collapse
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale
from .._geiger import AtScale, guide, measure, parity, power, SETTING


WIDTHS = by_scale([16, 48], [30, 100, 300], [30, 100, 300, 1000])
SCALES = by_scale(10.0 ** np.array([-3, -2, -1, 0.5, 1, 1.5, 2, 4, 6, 7]), np.geomspace(1e-4, 1e9, 27))
SEEDS = by_scale(3, 5, 3)
TESTS = 50
# sqrt(h) alpha of the three regimes, by our choice: neurons switch on some of the n samples until it is of order n h.
REGIMES = {
    "small": (slice(0.0, 0.02), "-1.7", (-2.0, -1.4)),
    "intermediate": (slice(3.0, 110.0), "-1/2", (-0.65, -0.35)),
    "large": (slice(9e5, inf), "-1", (-1.1, -0.9)),
}


class Figure(AbstractFigure):
    title = "Figure 9: change of the kernel of ReLU networks, over sqrt(h) alpha"
    ours = (
        f"{SETTING} The windows of sqrt(h) alpha: the paper does not print the bounds of its three regimes. The middle "
        "one begins in the crossover from the first, which steepens its exponent."
    )
    size = (3.6, 2.9)
    hours = by_scale(0.04, 20.0, 5000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        tests = TESTS if runs.scale is Scale.SMALL else 20 * TESTS
        scales = SCALES[runs.scale]
        axes = {"width": WIDTHS[runs.scale], "scale": scales, "seed": range(SEEDS[runs.scale])}
        make = AtScale(parity(runs.scale, tests), activation=relu)
        return {"flow": measure(runs, "flow", make, axes, [inf], test_kernel_change())}

    def draw(self, figure: Picture, data: Data) -> None:
        change = data["flow"]["test_kernel_change"].isel(t=0)
        ax = figure.subplots()
        collapse(change, "scale", "width", ax=ax)
        for regime, (where, paper, _) in REGIMES.items():
            part = change.sel(scale=where)
            ends = [float(part["scale"][0]), float(part["scale"][-1])]
            slope = {"small": -1.7, "intermediate": -0.5, "large": -1.0}[regime]
            guide(ax, ends, 2.0 * float(part.isel(scale=0).max()), slope, f"${paper}$")
        ax.set(xlabel=r"$\sqrt{h}\,\alpha$", ylabel=r"$|\Theta - \Theta_0|/|\Theta_0|$")
        ax.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        change = data["flow"]["test_kernel_change"].isel(t=0)
        for regime, (where, paper, accepted) in REGIMES.items():
            part = change.sel(scale=where)
            window = " to ".join(f"{end:.3g}" for end in part["scale"].values[[0, -1]])
            said = f"Exponent of sqrt(h) alpha in the change of the kernel, {regime} sqrt(h) alpha: {window}."
            yield Claim(said, paper, accepted, *power(part, "scale"))
        logs = change.copy(data=np.log10(change.values)).sel(scale=slice(0.0, 1.0))
        spread = (logs.max("width") - logs.min("width")).mean("scale")
        said = "Curves of all widths agree up to sqrt(h) alpha = 1: their mean distance, in decades."
        yield Claim(said, "0", (0, 0.3), *mean_over(spread))
