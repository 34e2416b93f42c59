"""Figures 1 (b) and 2 (d): convolutional networks, whose error differs in both regimes."""

from math import inf
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset
from ...dynamics import StochasticFlow
from ...losses import SoftHinge
from ...nets import ConvNet, Scaling
from ...observe import test_outputs
from ...plot import COLORS, MARKERS
from ...until import margin_above
from .._claim import bars, Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale, Values
from .._geiger import BETA, errors, width_axis
from .._images import draw_of, pictures


WIDTHS = by_scale([4, 12], [4, 12, 36, 108], [4, 12, 36, 108, 324])
ALPHAS = by_scale([0.1, 1.0, 100.0], [1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e4])
SAMPLES = by_scale(32, 1000, 10_000)
TESTS = by_scale(500, 5000, 50_000)
DRAWS = by_scale(4, 5)
SEEDS = by_scale(2, 10, 20)
TAU = 10.0
TEMPERATURE = 1e-3
CHANGE = by_scale((1e-3, 1e-1), (1e-4, 1e-2))  # eq. 18


class Figure(AbstractFigure):
    title = "Figures 1 (b) and 2 (d): test error of convolutional networks under stochastic momentum, by output scale"
    ours = (
        f"The temperature {TEMPERATURE:g}, and the hinge rounded over a margin of 1/{BETA:g}. No biases. At small "
        f"scale {SAMPLES[Scale.SMALL]} images of half the resolution in place of 10000, narrower networks, and steps "
        f"changing outputs by {CHANGE[Scale.SMALL][0]:g} to {CHANGE[Scale.SMALL][1]:g}, ten times the paper's; float32."
    )
    size = (6.4, 2.8)
    hours = by_scale(0.07, 40.0, 50_000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        request = {"task": "parity", "official_split": False}  # the official one has 10,000 tests
        digits = pictures(Images.MNIST, runs.scale, SAMPLES, TESTS, halvings=1, draws=DRAWS[runs.scale], **request)
        options = {"change": CHANGE[runs.scale], "until": margin_above(1.0), "max_steps": 100_000}
        flow = StochasticFlow(TEMPERATURE, tau=TAU, key=jax.random.key(1), **options)
        alphas = np.array(ALPHAS[runs.scale])
        axes = {
            "width": WIDTHS[runs.scale],
            "alpha": alphas,
            "draw": range(len(digits.x)),
            "seed": range(SEEDS[runs.scale]),
        }
        found = runs.sweep("runs", _Networks(digits), axes, flow, [inf], observe=test_outputs())
        return {"runs": found.assign(targets=(("draw", "test_sample", "output"), np.asarray(digits.y_test)))}

    def draw(self, figure: Picture, data: Data) -> None:
        single, average = _read(data)
        b, d = figure.subplots(1, 2, sharey=True)
        widths, alphas = single["width"].values, single["alpha"].values
        for alpha, color, marker in zip(alphas, COLORS, MARKERS, strict=False):
            style = {"color": color, "marker": marker, "ms": 3.5, "lw": 1.0}
            b.errorbar(widths, *bars(single.sel(alpha=alpha), "draw"), **style, label=rf"$\alpha = {alpha:g}$")
            if alpha in (alphas[0], alphas[-1]):
                d.plot(widths, single.mean("draw").sel(alpha=alpha), **style)
                d.plot(widths, average.mean("draw").sel(alpha=alpha), **style, ls="--", mfc="none")
        for line, name in (("-", "single networks"), ("--", "their average")):
            d.plot([], [], color="0.3", ls=line, lw=1.0, label=name)
        b.set(ylabel="test error", title="1 (b)", ylim=(0, None))
        d.set(title="2 (d)")
        for ax in (b, d):
            width_axis(ax, widths)
            ax.legend(frameon=False, fontsize=7, loc="lower left")

    def claims(self, data: Data) -> Claims:
        single, average = _read(data)
        gap = single.isel(alpha=-1) - single.isel(alpha=0)
        fall = single.isel(width=0) - single.isel(width=-1)
        said = "Feature learning outperforms lazy training at the {}: error at the largest alpha less at the smallest."
        yield Claim(f"1 (b). {said.format('smallest width')}", *POSITIVE, *mean_over(gap.isel(width=0)))
        yield Claim(f"1 (b). {said.format('largest width, too')}", *POSITIVE, *mean_over(gap.isel(width=-1)))
        for place, name in ((0, "feature learning"), (-1, "lazy")):
            said = f"1 (b). Wider networks are better, {name}: fall of the error."
            yield Claim(said, *POSITIVE, *mean_over(fall.isel(alpha=place)))
        for place, name in ((0, "feature learning"), (-1, "lazy")):
            said = f"2 (d). The average is better than single networks, {name}: their error less its."
            yield Claim(said, *POSITIVE, *mean_over((single - average).isel(alpha=place).mean("width")))
        better = average.isel(alpha=-1) - average.isel(alpha=0)
        said = "2 (d). Averages differ, too: error of the lazy one less that of the feature-learning one, widest."
        yield Claim(said, *POSITIVE, *mean_over(better.isel(width=-1)))


def _read(data: Data) -> tuple[Values, Values]:
    """The error of a network, averaged over starts, and of the average of networks, of each draw of the images."""
    outputs, targets = data["runs"]["test_outputs"].isel(t=0), data["runs"]["targets"]
    return errors(outputs, targets)


class _Networks(NamedTuple):
    """Convolutional networks with alpha (f - f_0), the loss over alpha^2."""

    digits: Dataset

    def __call__(self, width: int, alpha: Array, draw: Array, seed: Array) -> Problem:
        digits = draw_of(self.digits, draw)
        _, channels, height, across = digits.x.shape
        scaling, key = Scaling.lazy(alpha, gain=True), jax.random.key(seed)
        size, dtype = (channels, height, across), digits.x.dtype
        net = ConvNet(in_shape=size, out_size=1, width_size=width, scaling=scaling, key=key, dtype=dtype)
        return Problem(net, *digits.train, test=digits.test, loss=SoftHinge(BETA), centered=True)
