"""Figure 9: with ReLU the kernel changes by three power laws."""

from fractions import Fraction
from math import inf

import numpy as np

from ...nets import relu
from ...observe import test_kernel_change
from ...plot import collapse
from ...sweeps import broken_power_law
from ...sweeps._internal import FittedBrokenPowerLaw
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale, Values
from .._geiger import AtScale, guide, measure, parity, SETTING


WIDTHS = by_scale([16, 48], [30, 100, 300], [30, 100, 300, 1000])
EXPONENTS = [*np.arange(-2.0, 5.1, 0.5), 6, 7]
SCALES = by_scale(10.0 ** np.array(EXPONENTS), np.geomspace(1e-4, 1e9, 27))
SEEDS = by_scale(4, 8)
TESTS = 50
# The paper's exponents, and what counts as the same, by the number of the fitted regime. The one between the last two
# is of few samples: fewer than one neuron switches on any of them.
REGIMES = {
    "small": (0, "-1.7", (-2.0, -1.4)),
    "intermediate": (1, "-1/2", (-0.65, -0.35)),
    "large": (3, "-1", (-1.1, -0.9)),
}


class Figure(AbstractFigure):
    title = "Figure 9: change of the kernel of ReLU networks, over sqrt(h) alpha"
    ours = (
        f"{SETTING} The borders of the three regimes, which the paper does not print, are fitted with the exponents; "
        "the bands are their 95 % intervals. Before the last one there is a fourth, in which fewer than one neuron "
        "switches on any of so few samples."
    )
    size = (3.6, 2.9)
    hours = by_scale(0.08, 20.0, 5000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        tests = TESTS if runs.scale is Scale.SMALL else 20 * TESTS
        scales = SCALES[runs.scale]
        axes = {"width": WIDTHS[runs.scale], "scale": scales, "seed": range(SEEDS[runs.scale])}
        make = AtScale(parity(runs.scale, tests, SEEDS[runs.scale]), activation=relu)
        return {"flow": measure(runs, "flow", make, axes, [inf], test_kernel_change())}

    def draw(self, figure: Picture, data: Data) -> None:
        change = data["flow"]["test_kernel_change"].isel(t=0)
        ax, law = figure.subplots(), _law(change)
        collapse(change, "scale", "width", ax=ax)
        ends = np.concatenate([change["scale"].values[:1], law.borders, change["scale"].values[-1:]])
        highest = np.log(change.max(["seed", "width"]).values)
        height = lambda scale: float(np.exp(np.interp(np.log(scale), np.log(change["scale"].values), highest)))
        for at, paper, _ in REGIMES.values():
            start, end = ends[at : at + 2]
            guide(ax, (start, end), 2.0 * height(start), float(Fraction(paper)), f"${paper}$")
        for low, high in law.border_intervals:
            ax.axvspan(low, high, color="0.85", lw=0)
        ax.set(xlabel=r"$\sqrt{h}\,\alpha$", ylabel=r"$|\Theta - \Theta_0|/|\Theta_0|$")
        ax.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        change = data["flow"]["test_kernel_change"].isel(t=0)
        law = _law(change)
        ends = ["", *(f"{border:.3g}" for border in law.borders), ""]
        for regime, (at, paper, accepted) in REGIMES.items():
            low, high = ends[at : at + 2]
            place = " ".join(part for part in (low and f"from {low}", high and f"to {high}") if part)
            said = f"Exponent of sqrt(h) alpha in the change of the kernel, {regime} sqrt(h) alpha ({place}, fitted)."
            yield Claim(said, paper, accepted, float(law.exponents[at]), float(law.uncertainties[at]))
        logs = change.copy(data=np.log10(change.values)).sel(scale=slice(0.0, 1.0))
        spread = (logs.max("width") - logs.min("width")).mean("scale")
        said = "Curves of all widths agree up to sqrt(h) alpha = 1: their mean distance, in decades."
        yield Claim(said, "0", (0.0, 0.3), *mean_over(spread))


def _law(change: Values) -> FittedBrokenPowerLaw:
    """The laws of all four regimes: of a task and start, the mean over widths."""
    return broken_power_law(change, "scale", 3)
