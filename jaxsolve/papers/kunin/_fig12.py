"""Figure 12: the steps to grok over overall scale tau and alpha."""

from .._claim import Claim, Claims, mean_over, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._kunin_grokking import grokking, settings, sooner_upstream, steps_to


class Figure(AbstractFigure):
    title = "Figure 12: steps to grok, and test accuracy at the end, over tau and alpha"
    ours = settings()
    size = (6.8, 2.8)
    hours = by_scale(0.03, 10.0)  # little after figure 6 (d), whose runs these are
    shares = "grokking"

    def run(self, runs: Runs) -> Data:
        return {"runs": grokking(runs)}

    def draw(self, figure: Picture, data: Data) -> None:
        runs = data["runs"].mean("seed").transpose("tau", "alpha", "t")
        end = float(runs["t"].max())
        steps = steps_to(data["runs"]).fillna(end).mean("seed").transpose("tau", "alpha")
        last = 100 * runs["test_accuracy"].isel(t=-1)
        names = (f"steps to {100 * data['runs'].attrs['grokked']:g} % (end: {end:g})", "test accuracy at the end (%)")
        for ax, values, name in zip(figure.subplots(1, 2, sharey=True), (steps, last), names, strict=True):
            image = ax.imshow(values, cmap="cividis", origin="lower", aspect="auto")
            ax.set_xticks(range(values.sizes["alpha"]), [f"{alpha:g}" for alpha in values["alpha"].values])
            ax.set_yticks(range(values.sizes["tau"]), [f"{tau:g}" for tau in values["tau"].values])
            ax.set(xlabel=r"$\alpha$ (upstream to the right)")
            figure.colorbar(image, ax=ax, label=name)
        figure.axes[0].set_ylabel(r"overall scale $\tau$")

    def claims(self, data: Data) -> Claims:
        runs = data["runs"]
        gain, upstream = sooner_upstream(runs), float(runs["alpha"].max())
        said = f"steps to grok at alpha = {upstream:g} over those at 1, or to the end: their logarithm."
        for tau in runs["tau"].values[runs["tau"].values != 1]:  # figure 6 (d) has that of tau = 1
            yield Claim(f"tau = {tau:g}: {said}", *NEGATIVE, *mean_over(gain.sel(tau=tau)))
