"""Figure 2 and its appendix: in deep ReLU networks too, small starts align the layers and large ones do not."""

from typing import NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset, Images
from ...dynamics import Descent
from ...losses import CrossEntropy
from ...nets import MLP, Scaling
from ...observe import accuracy, layer_alignment
from ...plot import COLORS, MARKERS
from .._claim import Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale
from .._images import draw_of, drawn, images


DEPTHS = {3: "four layers", 5: "six layers"}  # hidden layers, as `MLP` counts
SIGMAS = [0.5, 0.7, 1.0, 1.4, 2.0]
WIDTHS = by_scale(64, 512)
SAMPLES = by_scale(200, 5000, 60_000)
SEEDS = by_scale(4, 5)
STEPS = by_scale(2000, 10_000, 50_000)
BATCH, RATE = 50, 0.02
SAVED = 16


class Figure(AbstractFigure):
    title = "Figure 2: layer alignment of four- and six-layer ReLU networks on MNIST, under cross entropy"
    ours = (
        f"Cross entropy, SGD of rate {RATE:g}, batches of {BATCH}, the scales sigma of Kaiming's start: the paper's "
        f"own are lost. At small scale width {WIDTHS[Scale.SMALL]}, {SAMPLES[Scale.SMALL]} images, "
        f"{STEPS[Scale.SMALL]} steps."
    )
    size = (6.8, 4.4)
    hours = by_scale(0.03, 3.0, 20.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        axes = {"depth": list(DEPTHS), "sigma": SIGMAS, "seed": range(SEEDS[runs.scale])}
        end = STEPS[runs.scale] * RATE
        ts = [0.0, *np.geomspace(end / 500, end, SAVED)]
        sgd = Descent(optax.sgd(RATE), batch_size=BATCH, key=jax.random.key(0))
        watched = [layer_alignment(), accuracy()]
        request = {"n_train": SAMPLES[runs.scale], "n_test": 0}
        draw = lambda key: images(Images.MNIST, runs.scale, flatten=True, key=key, **request)
        data = drawn(SEEDS[runs.scale], draw)
        make = _Problems(WIDTHS[runs.scale], data)
        return {
            name: runs.sweep(name, make, axes | {"depth": [depth]}, sgd, ts, observe=watched)
            for depth, name in zip(DEPTHS, ("four", "six"), strict=True)
        }

    def draw(self, figure: Picture, data: Data) -> None:
        grid = figure.subplots(2, 2, sharex="col")
        for (left, right), name, title in zip(grid, data, DEPTHS.values(), strict=True):
            zeta = data[name]["layer_alignment"].isel(depth=0)
            for pair in range(zeta.sizes["pair"]):
                style = {"color": COLORS[pair], "marker": MARKERS[pair], "ms": 3}
                curve = zeta.isel(pair=pair).sel(sigma=1.0).mean("seed")
                left.plot(curve["t"], curve, label=f"layers {pair + 1}, {pair + 2}", **style)
                for time, line in ((-1, "-"), (0, "--")):
                    at = zeta.isel(pair=pair, t=time)
                    bars = [mean_over(at.sel(sigma=sigma)).uncertainty for sigma in SIGMAS]
                    right.errorbar(SIGMAS, at.mean("seed"), bars if time else None, ls=line, lw=1.2, **style)
            left.set(ylabel=r"layer alignment $\zeta$", title=rf"{title}, $\sigma = 1$", xscale="symlog")
            right.set(title=f"{title}, end (solid), start (dashed)", xscale="log")
            left.title.set_fontsize(9)
            right.title.set_fontsize(9)
            left.legend(frameon=False, fontsize=7)
        grid[1, 0].set_xlabel("time $t$ (steps times rate)")
        grid[1, 1].set_xlabel(r"scale $\sigma$ of the start")
        grid[1, 1].set_xticks(SIGMAS, [f"{sigma:g}" for sigma in SIGMAS], minor=False)
        grid[1, 1].minorticks_off()

    def claims(self, data: Data) -> Claims:
        small, large = SIGMAS[0], SIGMAS[-1]
        for name, layers in zip(data, DEPTHS.values(), strict=True):
            runs = data[name].isel(depth=0)
            zeta = runs["layer_alignment"].mean("pair")
            rise = zeta.isel(t=-1) - zeta.isel(t=0)
            end = zeta.isel(t=-1)
            said = f"{layers}: layers align during training from a start of scale 1. Mean change of zeta."
            yield Claim(said, *POSITIVE, *mean_over(rise.sel(sigma=1.0)))
            said = f"{layers}: smaller starts align more. Final zeta at sigma = {small:g} less that at {large:g}."
            yield Claim(said, *POSITIVE, *mean_over(end.sel(sigma=small) - end.sel(sigma=large)))
            said = f"{layers}: a start of scale {large:g} keeps its alignment. Its change, as a share of that at "
            share = mean_over(rise.sel(sigma=large) / rise.sel(sigma=small))
            yield Claim(f"{said}{small:g}.", "0", (-0.1, 0.1), *share)


class _Problems(NamedTuple):
    """Networks from Kaiming's start, times sigma, on images of ten classes, under cross entropy."""

    width: int
    data: Dataset

    def __call__(self, depth: int, sigma: Array, seed: Array) -> Problem:
        data = draw_of(self.data, seed)
        net = MLP(
            in_size=data.x.shape[1],
            out_size=10,
            width_size=self.width,
            depth=depth,
            activation="relu",
            scaling=Scaling.kaiming(sigma=sigma),
            key=jax.random.key(seed),
        )
        return Problem(net, *data.train, loss=CrossEntropy())
