"""Figure 6 (d): upstream starts grok addition sooner."""

from math import inf

from ...plot import COLORS
from .._claim import Claim, Claims, exponent, mean_over, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._kunin_grokking import grokking, settings, sooner_upstream, steps_to


class Figure(AbstractFigure):
    title = "Figure 6 (d): grokking of modular addition by a one-layer transformer, against alpha"
    ours = settings()
    size = (6.8, 2.8)
    hours = by_scale(0.03, 10.0)
    shares = "grokking"

    def run(self, runs: Runs) -> Data:
        return {"runs": grokking(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        curves, times = figure.subplots(1, 2)
        runs = data["runs"].sel(tau=1.0)
        for alpha, color in zip(runs["alpha"].values, COLORS, strict=False):
            for name, style in (("accuracy", ":"), ("test_accuracy", "-")):
                mean = 100 * runs[name].sel(alpha=alpha).mean("seed")
                label = rf"$\alpha = {alpha:g}$" if style == "-" else None
                curves.plot(runs["t"][1:], mean[1:], color=color, ls=style, lw=1.2, label=label)
        curves.plot([], [], color="0.3", ls=":", lw=1.2, label="training")
        curves.set(xscale="log", xlabel="steps", ylabel="accuracy (%)", ylim=(0, 103))
        curves.legend(frameon=False, fontsize=7, loc="lower right")
        end = float(runs["t"].max())
        steps = steps_to(runs).fillna(end).transpose("seed", "alpha")
        for row in steps.values:
            times.plot(runs["alpha"], row, color="0.7", lw=0.8, marker=".")
        times.plot(runs["alpha"], steps.mean("seed"), color=COLORS[0], marker="o", ms=4)
        times.axhline(end, color="0.6", ls=":", lw=0.8)
        times.set(xscale="log", yscale="log", xlabel=r"$\alpha$ (upstream to the right)")
        times.set_ylabel(f"steps to {100 * runs.attrs['grokked']:g} % (dotted: the end)")

    def claims(self, data: Data) -> Claims:
        runs = data["runs"].sel(tau=1.0)
        alphas, end = runs["alpha"].values, float(runs["t"].max())
        steps = steps_to(runs)
        known = steps.fillna(end).where(steps.notnull().any("alpha")).transpose("seed", "alpha")
        upstream = float(alphas.max())
        said = f"Upstream networks (alpha = {upstream:g}) grok: share of starts."
        grokked = steps.notnull().where(runs["test_accuracy"].isel(t=-1).notnull())
        yield Claim(said, "1", (0.99, inf), float(grokked.sel(alpha=upstream).mean()))
        said = (
            f"Upstream starts grok sooner: steps at alpha = {upstream:g} over those at 1, those at the end where a "
            "run has not grokked: their logarithm."
        )
        yield Claim(said, *NEGATIVE, *mean_over(sooner_upstream(runs)))
        yield Claim("Exponent of alpha in the steps to grok.", *NEGATIVE, *exponent(alphas, known.values))
