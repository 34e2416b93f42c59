"""Figures 6 (b) and 11: the first filters of a residual network become the smoother, the more upstream it starts."""

from math import inf
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ..._core import Problem, Quantity, View
from ...data import Dataset
from ...dynamics import Descent
from ...losses import CrossEntropy
from ...nets import BatchNorm, Scaling, WideResNet
from ...observe import accuracy, Observable, test_accuracy
from ...plot import COLORS, MARKERS
from .._claim import bars, Claim, Claims, exponent, mean_over, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale
from .._images import draw_of, pictures


ALPHAS = by_scale([0.1, 1.0, 10.0], [0.1, 0.3, 1.0, 3.0, 10.0])
WINDOWS = by_scale(5, 15)
WIDENINGS = by_scale(1, 4)
SAMPLES = by_scale(64, 5000, 50_000)
TESTS = by_scale(200, 2000, 10_000)
EPOCHS = by_scale(60, 24)
BATCH = by_scale(32, 128, 512)
SEEDS = by_scale(3, 3)
RATE, MOMENTUM = 0.05, 0.9
DELTA = np.array([[-0.25, -0.5, -0.25], [-0.5, 2.0, -0.5], [-0.25, -0.5, -0.25]])
SHOWN = 8  # filters of each alpha


class Figure(AbstractFigure):
    title = "Figures 6 (b) and 11: first filters of a residual network with wide windows, and how smooth they become"
    ours = (
        "A WRN-10 in place of another small residual network, of all of whose convolutions the start is divided by "
        f"alpha; SGD of rate {RATE:g} with momentum {MOMENTUM:g} and no weight decay. The filter of differences, whose "
        "entries add up to -1 as printed, is applied inside of the window. At small scale windows of "
        f"{WINDOWS[Scale.SMALL]} x {WINDOWS[Scale.SMALL]} pixels in place of 15 x 15, {SAMPLES[Scale.SMALL]} images of "
        f"8 x 8 pixels, {EPOCHS[Scale.SMALL]} epochs in batches of {BATCH[Scale.SMALL]}, no widening, float32."
    )
    size = (7.2, 2.6)
    hours = by_scale(0.03, 10.0, 500.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        data = pictures(Images.CIFAR10, runs.scale, SAMPLES, TESTS, halvings=2, draws=SEEDS[runs.scale])
        batch = BATCH[runs.scale]
        steps = EPOCHS[runs.scale] * (SAMPLES[runs.scale] // batch)
        sgd = optax.sgd(optax.cosine_decay_schedule(RATE, steps), momentum=MOMENTUM)
        descent = Descent(sgd, rate=1.0, batch_size=batch, key=jax.random.key(1))  # times are counts of steps
        first = Observable("filters", _filters, Quantity.PARAMS, ("filter", "channel", "row", "column"), "weight")
        rough = Observable("roughness", lambda view: jnp.mean(roughness(_filters(view))), Quantity.PARAMS)
        axes = {"alpha": ALPHAS[runs.scale], "seed": range(SEEDS[runs.scale])}
        make = _Networks(data, WINDOWS[runs.scale], WIDENINGS[runs.scale])
        watched = [accuracy(), test_accuracy(), first, rough]
        return {"runs": runs.sweep("runs", make, axes, descent, [0.0, steps], observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        runs = data["runs"]
        alphas = runs["alpha"].values
        pictures, right = figure.add_gridspec(1, 2, width_ratios=[1.7, 1])
        grid = pictures.subgridspec(len(alphas), SHOWN).subplots(squeeze=False)
        for row, alpha in zip(grid, alphas, strict=True):
            filters = (
                runs["filters"].sel(alpha=alpha).isel(seed=0, t=-1).transpose("filter", "row", "column", "channel")
            )
            for ax, one in zip(row, filters.transpose(..., "channel").values, strict=False):
                ax.imshow(0.5 + 0.5 * one / np.abs(one).max())
                ax.set(xticks=[], yticks=[])
            row[0].set_ylabel(rf"$\alpha = {alpha:g}$", fontsize=8)
        grid[0, SHOWN // 2].set_title("6 (b): filters of the first layer", fontsize=9)
        ax = figure.add_subplot(right)
        for t, label, color, marker in zip((0, -1), ("start", "trained"), COLORS, MARKERS, strict=False):
            cells = runs["roughness"].isel(t=t)
            ax.errorbar(alphas, *bars(cells), color=color, marker=marker, ms=4, lw=1.0, label=label)
        ax.set(xscale="log", xlabel=r"$\alpha$ (upstream to the right)", ylabel="roughness of a filter", ylim=(0, None))
        ax.set_title("11", fontsize=9)
        ax.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        rough = data["runs"]["roughness"].transpose("seed", "alpha", "t")
        first, last = rough.isel(t=0), rough.isel(t=-1)
        at = lambda alpha: last.sel(alpha=alpha)
        moved = abs(last - first).sel(alpha=0.1) / first.sel(alpha=0.1)
        said = "6 (b). The more upstream, the smoother: exponent of alpha in the roughness."
        yield Claim(said, *NEGATIVE, *exponent(rough["alpha"], last))
        rows = [
            (
                "6 (b). Upstream (10) filters are smoother than downstream (0.1): difference of roughness",
                at(10) - at(0.1),
            ),
            ("11. Upstream (10) they are smoother than in the standard start (1): difference", at(10) - at(1)),
        ]
        for said, values in rows:
            yield Claim(f"{said}.", *NEGATIVE, *mean_over(values))
        said = "6 (b). Downstream (0.1) filters look as at the start: change of their roughness, in that of the start."
        yield Claim(said, "0", (-inf, 0.1), *mean_over(moved))


def roughness(filters: Float[Array, "*some size size"]) -> Float[Array, "*some"]:
    """|(w/|w|) * Delta|^2 of each window w, inside of it (eqs. 132 and 133); small for smooth ones."""
    size = filters.shape[-1]
    unit = filters / jnp.linalg.norm(filters, axis=(-2, -1), keepdims=True)
    inner = [unit[..., i : size - 2 + i, j : size - 2 + j] for i in range(3) for j in range(3)]
    turned = sum(weight * part for weight, part in zip(DELTA.ravel(), inner, strict=True))
    return jnp.sum(turned**2, axis=(-2, -1))


def _filters(view: View) -> Float[Array, "filters channels size size"]:
    return view.params.weights[0]


class _Networks(NamedTuple):
    """Kaiming's start, all convolutions divided by alpha."""

    data: Dataset
    window: int
    widening: int

    def __call__(self, alpha: Array, seed: Array) -> Problem:
        data = draw_of(self.data, seed)
        _, channels, height, width = data.x.shape
        sigma = jnp.full(11 - (self.widening == 1), 1 / alpha).at[-1].set(1.0)
        options = {"window": self.window, "normalization": BatchNorm(), "dtype": data.x.dtype}
        made = {"scaling": Scaling.kaiming(sigma=sigma), "key": jax.random.key(seed), **options}
        shape = (channels, height, width)
        net, state = eqx.nn.make_with_state(WideResNet)(in_shape=shape, out_size=10, k=self.widening, b=1, **made)
        return Problem(net, *data.train, test=data.test, loss=CrossEntropy(), state=state)
