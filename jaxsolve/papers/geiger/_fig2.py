"""Figure 2: how much networks differ that started elsewhere, and what their average is worth."""

from math import inf

import numpy as np

from ...observe import test_outputs
from ...plot import COLORS, MARKERS
from ...sweeps import ensemble_variance
from .._claim import Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, legend_below, Picture, Runs, Values
from .._geiger import AtScale, errors, guide, measure, parity, SETTING, width_axis


WIDTHS = by_scale([24, 48, 96], [10, 30, 100, 300], [10, 30, 100, 300, 1000])
SCALES = by_scale([1e-2, 1.0, 1e6], [1e-2, 1e-1, 1.0, 1e1, 1e2, 1e6])
DRAWS = by_scale(6, 5)
SEEDS = by_scale(6, 20, 26)
TESTS = 2000
FEATURE, LAZY = 1e-2, 1e6  # the paper's sqrt(h) alpha of both regimes
REGIMES = {FEATURE: "feature learning", LAZY: "lazy"}


class Figure(AbstractFigure):
    title = "Figure 2: variance over starts, and test error of single networks (lines) and of their average (dashed)"
    ours = SETTING + " Panel (d), a convolutional network, is in geiger/fig1b."
    size = (7.2, 3.0)
    hours = by_scale(0.04, 20.0, 5000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        digits = parity(runs.scale, TESTS, DRAWS[runs.scale])
        ensembles = {"draw": range(DRAWS[runs.scale]), "seed": range(SEEDS[runs.scale])}
        axes = {"width": WIDTHS[runs.scale], "scale": np.array(SCALES[runs.scale]), **ensembles}
        found = measure(runs, "trained", AtScale(digits), axes, [inf], test_outputs())
        return {"trained": found.assign(targets=(("draw", "test_sample", "output"), np.asarray(digits.y_test)))}

    def draw(self, figure: Picture, data: Data) -> None:
        variance, single, average = (values.mean("draw") for values in _read(data))
        widths, scales = single["width"].values, single["scale"].values
        a, b, c = figure.subplots(1, 3)
        for (scale, name), color, marker in zip(REGIMES.items(), COLORS, MARKERS, strict=False):
            style = {"color": color, "marker": marker, "ms": 3, "lw": 1.0}
            a.plot(widths, variance.sel(scale=scale), **style, label=name)
            c.plot(widths, single.sel(scale=scale), **style, label=name)
            c.plot(widths, average.sel(scale=scale), **style, ls="--", mfc="none")
        guide(a, (widths[0], widths[-1]), 1.4 * float(variance.isel(width=0).max()), -1.0, "$h^{-1}$")
        for width, color, marker in zip(widths, COLORS, MARKERS, strict=False):
            style = {"color": color, "marker": marker, "ms": 3, "lw": 1.0}
            b.plot(scales, single.sel(width=width), **style, label=f"$h = {width}$")
            b.plot(scales, average.sel(width=width), **style, ls="--", mfc="none")
        a.set(yscale="log", title="(a)")
        a.set_ylabel(r"variance of $\alpha(f - f_0)$ over starts")
        b.set(xscale="log", xlabel=r"$\sqrt{h}\,\alpha$", ylabel="test error", title="(b)")
        c.set(ylabel="test error", title="(c)")
        c.legend(frameon=False, fontsize=7, loc="upper right")
        for ax in (a, c):
            width_axis(ax, widths)
        for style, name in (("-", "single networks"), ("--", "their average")):
            b.plot([], [], color="0.3", ls=style, lw=1.0, label=name)
        legend_below(figure, b, 6, fontsize=7)

    def claims(self, data: Data) -> Claims:
        variance, single, average = _read(data)
        fall = lambda error: error.isel(width=0) - error.isel(width=-1)
        for scale, name in REGIMES.items():
            slope = exponent(variance["width"], variance.sel(scale=scale).transpose("draw", "width"))
            yield Claim(f"(a) Exponent of h in the variance over starts, {name}.", "-1", (-1.3, -0.7), *slope)
        for scale, name in REGIMES.items():
            one, together = single.sel(scale=scale), average.sel(scale=scale)
            said = f"(c) The average is better, {name}: error of single networks less its."
            yield Claim(said, *POSITIVE, *mean_over((one - together).mean("width")))
            said = f"(c) The error of the average does not depend on h, {name}: at the smallest less at the largest."
            yield Claim(said, "0", (-0.005, 0.005), *mean_over(fall(together)))
            ahead = one.isel(width=-1) - together.isel(width=1)
            said = f"(c) The average of narrow networks (the second width) is no worse than a single wide one, {name}."
            yield Claim(f"{said} Error of the wide one less its.", ">= 0", (0.0, 1.0), *mean_over(ahead))
        worse = average.sel(scale=LAZY).mean("width") / average.sel(scale=FEATURE).mean("width")
        said = "(c) Averages of feature-learning networks are slightly better: error of the lazy one over theirs."
        yield Claim(said, "1.02", (1.0, 1.1), *mean_over(worse))


def _read(data: Data) -> tuple[Values, Values, Values]:
    """The variance over starts, the error of one network and that of the average, of each draw of the digits."""
    outputs, targets = data["trained"]["test_outputs"].isel(t=0), data["trained"]["targets"]
    return ensemble_variance(outputs), *errors(outputs, targets)
