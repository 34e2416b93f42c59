"""Figure 5: the kernel before and after training, and what both are worth."""

from math import inf

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import View
from ...dynamics import FrozenKernel, RunEnd
from ...observe import Observable, test_accuracy
from ...plot import COLORS, gram, MARKERS
from ...sweeps import padded
from .._claim import bars, Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Values
from .._geiger import AtAlpha, flow, measure, parity, SETTING, width_axis


WIDTHS = by_scale([8, 20, 50], [10, 30, 100], [10, 30, 100, 300])
SEEDS = by_scale(12, 10)
ALPHA = 0.1
DEPTH = 2
NEAR = (-0.005, 0.005)  # errors that count as the same: the start's kernel is worse by more
TESTS, SHOWN = 2000, 60  # test samples, and those of the pictures


class Figure(AbstractFigure):
    title = "Figure 5: the kernel before and after training, and the test error of training under either"
    ours = (
        f"{SETTING} Fully connected networks of {DEPTH} hidden layers with alpha = {ALPHA:g} learn the parity of "
        "digits, in place of a wide residual network with alpha = 1 and CIFAR-10."
    )
    size = (7.2, 2.6)
    hours = by_scale(0.06, 5.0, 500.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        digits = parity(runs.scale, TESTS, SEEDS[runs.scale])
        make = AtAlpha(digits, DEPTH)
        axes = {"width": WIDTHS[runs.scale], "alpha": np.array([ALPHA]), "seed": range(SEEDS[runs.scale])}
        kernel = Observable("gram", _gram, dims=("shown", "shown_2"), unit="output^2 / (loss time)")
        trained = measure(runs, "trained", make, axes, [0.0, inf], [test_accuracy(), kernel])
        lanes = padded(make, axes, "width")
        start, end = FrozenKernel(flow=flow()), FrozenKernel(at=RunEnd(flow()), flow=flow())
        frozen = {
            name: runs.sweep(name, *lanes, dynamics, [inf], observe=test_accuracy()).isel(alpha=0)
            for name, dynamics in (("start", start), ("end", end))
        }
        labels = np.asarray(digits.y_test)[:, :SHOWN, 0]
        return {"trained": trained.isel(alpha=0).assign(labels=(("seed", "shown"), labels)), **frozen}

    def draw(self, figure: Picture, data: Data) -> None:
        trained, errors = data["trained"], _errors(data)
        kernels = trained["gram"].isel(width=-1, seed=0)
        classes = -trained["labels"].isel(seed=0).values.astype(int)  # the paper has y = 1 first
        a, b, c = figure.subplots(1, 3)
        for ax, t, title in ((a, 0, "(a) before"), (b, 1, "(b) after training")):
            gram(kernels.isel(t=t), classes, ax=ax)
            ax.set_title(title)
            figure.colorbar(ax.images[0], ax=ax, label=r"$\Theta$", shrink=0.8)
        a.set_ylabel("test sample, $y = 1$ first")
        for (name, cells), color, marker in zip(errors.items(), COLORS, MARKERS, strict=False):
            style = {"color": color, "marker": marker, "ms": 4, "lw": 1.0, "label": name}
            c.errorbar(cells["width"], *bars(cells), **style)
        c.set(ylabel="test error", title="(c)")
        width_axis(c, trained["width"].values)
        c.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        vanilla, start, end = _errors(data).values()
        labels, grams = data["trained"]["labels"].values, data["trained"]["gram"].transpose("seed", "width", "t", ...)
        sizes = np.linalg.norm(grams.values, axis=(-2, -1))
        same = (labels[:, :, None] == labels[:, None, :])[:, None, None]  # of each draw of the digits
        within = lambda where: np.mean(grams.values, axis=(-2, -1), where=where)
        # The mean within a class less that between classes, in units of the size of an entry.
        contrast = (within(same) - within(~same)) / (sizes / SHOWN)
        growth, sharper = np.log10(sizes[..., 1] / sizes[..., 0]), contrast[..., 1] - contrast[..., 0]
        full, better = (
            (one - other).transpose("seed", "width").values for one, other in ((end, vanilla), (start, end))
        )
        over_widths = lambda values: mean_over(values.mean(-1))
        yield Claim("(b) The kernel inflates: decimal logarithm of its growth.", *POSITIVE, *over_widths(growth))
        said = "(b) It does so by classes: growth of the mean within less that between, over the size of an entry."
        yield Claim(said, *POSITIVE, *over_widths(sharper))
        said = "(c) The kernel of the end has the full performance: its error less that of training."
        yield Claim(said, "0", NEAR, *over_widths(full))
        said = "(c) The kernel of the start has not: its error less that of the end's."
        yield Claim(said, *POSITIVE, *over_widths(better))


def _gram(view: View) -> Float[Array, "shown shown"]:
    return view.problem.kernel(view.params, jnp.asarray(view.problem.x_test)[:SHOWN])[:, 0, :, 0]


def _errors(data: Data) -> dict[str, Values]:
    """The test errors of training, and of the kernels of its start and of its end."""
    start, end = (1 - data[name]["test_accuracy"].isel(t=0) for name in ("start", "end"))
    vanilla = 1 - data["trained"]["test_accuracy"].isel(t=-1)
    return {"training": vanilla, "kernel of the start": start, "kernel of the end": end}
