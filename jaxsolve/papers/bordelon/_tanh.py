"""A deep network of tanh: its kernels go to those of the limit as it grows wide."""

from ...nets import tanh
from ...plot import COLORS, MARKERS
from .._claim import ABOVE_ONE, bars, Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._mean_field import agreement, Training


TRAINING = Training(samples=10, dimension=25, rate=0.1, steps=100, depth=3, activation=tanh, slope=0.8, every=11)
# The cosine of layer kernels by width, as read off their figure: the least and the largest of the three layers.
READ = {10: (0.69, 0.76), 25: (0.88, 0.92), 100: (0.955, 0.975), 250: (0.985, 0.985), 1000: (0.995, 0.995)}
LINE = 0.02
SEEDS = 10


class Figure(AbstractFigure):
    title = "Three hidden layers of tanh: kernels of networks against those of the limit, over the width"
    ours = (
        "The settings and inputs of the authors' notebook `deep_nonlinear_DMFT`, 10 networks per width. Kernels are "
        "compared at equal times, theirs at all pairs of times."
    )
    size = (7.0, 2.9)
    hours = by_scale(0.05, 0.05)

    def run(self, runs: Runs) -> Data:
        return TRAINING.measured(runs, [1.0], list(READ), SEEDS)

    def draw(self, figure: Picture, data: Data) -> None:
        networks, limit = data["networks"].isel(richness=0), data["limit"].isel(richness=0, width=0, seed=0)
        a, b = figure.subplots(1, 2)
        steps = TRAINING.seen
        for color, width in zip(COLORS, READ, strict=False):
            a.plot(steps, 2 * networks["loss"].sel(width=width).mean("seed"), color=color, label=f"{width}")
        a.plot(steps, 2 * limit["loss"], "k--", lw=1, label="limit")
        a.set(xlabel="step", ylabel="mean squared error")
        a.legend(title="width $N$", frameon=False, fontsize=8)
        for layer, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=False), 1):
            if layer > TRAINING.depth:
                break
            cells = agreement(networks, limit, layer)
            style = {"color": color, "marker": marker, "ms": 4, "label": f"layer {layer}"}
            b.errorbar(cells["width"], *bars(cells), **style)
        b.set(xscale="log", xlabel="width $N$", ylabel=r"cosine of $\Phi^l$, network and limit")
        b.legend(frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        networks, limit = data["networks"].isel(richness=0), data["limit"].isel(richness=0, width=0, seed=0)
        mean = agreement(networks, limit, *range(1, TRAINING.depth + 1))
        for width, (low, high) in READ.items():
            said = f"Width {width}: cosine between the kernels of networks and of the limit, mean over layers."
            paper = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            accepted = (low - LINE, min(high + LINE, 1.0))
            yield Claim(said, paper, accepted, *mean_over(mean.sel(width=width)))
        off = 2 * abs(networks["loss"].mean("seed") - limit["loss"]).max("t")
        ratio = float(off.sel(width=10) / off.sel(width=1000))
        said = "The loss, averaged over networks, comes nearer to that of the limit from width 10 to 1000: by a factor."
        yield Claim(said, *ABOVE_ONE, ratio)
