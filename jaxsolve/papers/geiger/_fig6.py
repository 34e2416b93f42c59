"""Figure 6: how far the weights move."""

from ...plot import collapse
from .._claim import Claim, Claims
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Values
from .._geiger import collapsing_power, FEATURE, guide, LAZY, logarithm, over_alpha, over_seeds, power, SETTING


class Figure(AbstractFigure):
    title = "Figure 6: relative change of all weights, times sqrt(h)"
    ours = SETTING + " The runs are those of Figure 3."
    size = (6.8, 2.8)
    hours = by_scale(0.05, 20.0, 5000.0)
    shares = "over_alpha"
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        return {"flow": over_alpha(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        rescaled = _rescaled(data)
        left, right = figure.subplots(1, 2, sharey=True)
        collapse(rescaled, "alpha", "width", ax=left)
        collapse(rescaled, "alpha", "width", power=0.5, ax=right)
        narrow = rescaled.isel(width=0)
        for regime, times, slope in ((FEATURE, 1.6, -0.23), (LAZY, 5.0, -1.0)):
            part = narrow.sel(alpha=regime)
            ends = float(part["width"]) ** 0.5 * part["alpha"].values[[0, -1]]
            start = times * float(part.isel(alpha=0).mean("seed"))
            guide(right, ends, start, slope, f"slope ${slope:g}$")
        left.set(xlabel=r"output scale $\alpha$", ylabel=r"$\sqrt{h}\,|w - w_0|/|w_0|$")
        right.set(xlabel=r"$\sqrt{h}\,\alpha$")
        left.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        rescaled = _rescaled(data)
        lazy, accepted = rescaled.sel(alpha=LAZY), (0.16, 0.30)  # as in table 1
        slope = power(1 / rescaled.sel(alpha=FEATURE), "alpha")
        said = "Exponent b of 1/alpha, feature learning (eq. 28)."
        yield Claim(said, "0.23, predicted 0.17", accepted, *slope)
        yield Claim("Exponent of alpha, lazy (eq. 27).", "-1", (-1.05, -0.95), *power(lazy, "alpha"))
        said = "Exponent of h in sqrt(h) |w - w_0|/|w_0| at a given alpha, lazy (eq. 27)."
        yield Claim(said, "-1/2", (-0.65, -0.35), *power(lazy, "width"))
        together = over_seeds(lambda one: collapsing_power(one.mean("seed")), logarithm(rescaled))
        yield Claim("The rescaled curves collapse over h^p alpha: p.", "1/2", (0.3, 0.7), *together)


def _rescaled(data: Data) -> Values:
    change = data["flow"]["weight_change"].isel(t=-1)
    return change * change["width"] ** 0.5
