"""Figure 1: the test error, by width and output scale, and the error that the frozen kernel reaches."""

from math import inf

import numpy as np

from ...dynamics import FrozenKernel
from ...observe import test_accuracy
from ...plot import COLORS, MARKERS
from ...sweeps import padded
from .._claim import Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, legend_below, Picture, Runs, Values
from .._geiger import AtAlpha, collapsing_power, flow, measure, over_seeds, parity, SETTING, width_axis


WIDTHS = by_scale([8, 24, 72], [10, 30, 100, 300], [10, 30, 100, 300, 1000])
ALPHAS = by_scale(10.0 ** np.array([-2, -1, -0.5, 0, 0.5, 1, 2]), np.geomspace(1e-4, 1e4, 17))
SEEDS = by_scale(12, 10)
TESTS = 2000


class Figure(AbstractFigure):
    title = "Figure 1(a), (c), (d): test error by width and output scale; feature learning and lazy training"
    ours = SETTING + " Panel (b), a convolutional network, is in geiger/fig1b."
    size = (7.2, 3.1)
    hours = by_scale(0.06, 20.0, 5000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        make = AtAlpha(parity(runs.scale, TESTS, SEEDS[runs.scale]))
        alphas = ALPHAS[runs.scale]
        axes = {"width": WIDTHS[runs.scale], "alpha": alphas, "seed": range(SEEDS[runs.scale])}
        trained = measure(runs, "trained", make, axes, [inf], test_accuracy())
        once = padded(make, axes | {"alpha": np.ones(1)}, "width")  # the frozen kernel is the same for every alpha
        frozen = runs.sweep("frozen", *once, FrozenKernel(flow=flow()), [inf], observe=test_accuracy())
        return {"trained": trained, "frozen": frozen}

    def draw(self, figure: Picture, data: Data) -> None:
        from matplotlib import colormaps

        error, frozen = _errors(data)
        a, c, d = figure.subplots(1, 3)
        widths, alphas = error["width"].values, error["alpha"].values
        shades = colormaps["cividis"](np.linspace(0.0, 0.95, len(alphas)))
        for alpha, shade in zip(alphas, shades, strict=True):
            a.plot(widths, error.sel(alpha=alpha).mean("seed"), color=shade, marker="o", ms=3, lw=1.0)
            a.plot([], [], color=shade, lw=3.0, label=rf"$\alpha = 10^{{{np.log10(alpha):g}}}$")
        a.plot(widths, frozen.mean("seed"), color="black", lw=1.5, ls="--", label="frozen kernel")
        a.set(ylabel="test error", title="(a)")
        width_axis(a, widths)
        legend_below(figure, a, 4, fontsize=7)
        rescaled = _rescaled(error.mean("seed"))
        for width, color, marker in zip(widths, COLORS, MARKERS, strict=False):
            style = {"color": color, "marker": marker, "ms": 3, "lw": 1.0, "label": f"$h = {width}$"}
            c.plot(alphas, error.sel(width=width).mean("seed"), **style)
            d.plot(width**0.5 * alphas, rescaled.sel(width=width), **style)
        c.set(xscale="log", xlabel=r"output scale $\alpha$", ylabel="test error", title="(c)")
        d.set(xscale="log", xlabel=r"$\sqrt{h}\,\alpha$", ylabel="test error, rescaled", title="(d)")
        c.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        error, frozen = _errors(data)
        lazy, feature = error.isel(alpha=-1), error.isel(alpha=0)
        gap = lazy - feature
        said = "(a) At the largest alpha the error is that of the frozen kernel. Difference, all widths."
        yield Claim(said, "0", (-0.005, 0.005), *mean_over((lazy - frozen).mean("width")))
        said = (
            "(a) Feature learning outperforms lazy training at the smallest width: error at the largest alpha less "
            "that at the smallest."
        )
        yield Claim(said, *POSITIVE, *mean_over(gap.isel(width=0)))
        yield Claim("(a) So it does at the largest width.", *POSITIVE, *mean_over(gap.isel(width=-1)))
        said = "(a) The difference diminishes with the width: at the smallest width less at the largest."
        yield Claim(said, *POSITIVE, *mean_over(gap.isel(width=0) - gap.isel(width=-1)))
        for name, cells in (("lazy", lazy), ("feature-learning", feature)):
            fall = mean_over(cells.isel(width=0) - cells.isel(width=-1))
            yield Claim(f"(a) Wider {name} networks are better: fall of the error.", *POSITIVE, *fall)
        power = over_seeds(lambda runs: collapsing_power(_rescaled(runs.mean("seed"))), error)
        yield Claim("(d) The curves collapse over h^p alpha: p.", "1/2", (0.3, 0.7), *power)


def _errors(data: Data) -> tuple[Values, Values]:
    """The test errors of trained networks and of frozen kernels."""
    return 1 - data["trained"]["test_accuracy"].isel(t=0), 1 - data["frozen"]["test_accuracy"].isel(t=0, alpha=0)


def _rescaled(error: Values) -> Values:
    """Between 0 and 1 along alpha."""
    low, high = error.min("alpha"), error.max("alpha")
    return (error - low) / (high - low)
