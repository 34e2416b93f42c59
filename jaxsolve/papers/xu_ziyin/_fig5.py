"""Figure 5: at a fixed width too, unbalanced starts of growing scale lead into the kernel phase."""

from math import inf
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset, Images
from ...plot import COLORS, MARKERS
from ...sweeps import Zip
from .._claim import bars, Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._image_classifier import classifier, RATE, SETTING, ten_classes, trained, TwoLayerScaling


WIDTH = 128
# Exponents of kappa in the variances of u and w.
MODELS = {"balanced, $c_u = c_w = 1$": (1.0, 1.0), "$c_u = 0, c_w = 1$": (0.0, 1.0), "$c_u = 1, c_w = 0$": (1.0, 0.0)}
KAPPAS = [1.0, 10.0, 100.0, 1000.0]
SEEDS = by_scale(4, 5, 3)
AXIS = "c_u_c_w"


class Figure(AbstractFigure):
    title = "Figure 5: a two-layer ReLU network of fixed width on CIFAR-10 in both phases"
    ours = (
        f"Width {WIDTH}, kappa and its exponents, SGD of rate {RATE:g} times the scaling's own: the paper's values are "
        f"lost. {SETTING}"
    )
    size = (7.0, 2.7)
    hours = by_scale(0.03, 3.0, 500.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        models = Zip(c_u=[u for u, _ in MODELS.values()], c_w=[w for _, w in MODELS.values()])
        axes = [models, {"kappa": KAPPAS, "seed": range(SEEDS[runs.scale])}]
        return {"runs": trained(runs, _Problems(ten_classes(runs.scale, SEEDS[runs.scale])), axes)}

    def draw(self, figure: Picture, data: Data) -> None:
        runs = data["runs"]
        shown = {
            "training accuracy (%)": 100 * runs["accuracy"].max("t"),
            "best test accuracy (%)": 100 * runs["test_accuracy"].max("t"),
            r"$|\theta - \theta_0|/|\theta_0|$": runs["weight_change"].isel(t=-1),
        }
        panels = figure.subplots(1, 3, sharex=True)
        for ax, (label, values) in zip(panels, shown.items(), strict=True):
            for index, name in enumerate(MODELS):
                cells = values.isel({AXIS: index})
                style = {"color": COLORS[index], "marker": MARKERS[index], "ls": "-" if index else "--"}
                ax.errorbar(KAPPAS, *bars(cells), label=name, ms=3.5, lw=1.2, **style)
            ax.set(xscale="log", xlabel=r"scale $\kappa$ of the start", ylabel=label)
        panels[2].set(yscale="log", ylim=(1e-3, 2))
        legend_below(figure, panels[0], 3)

    def claims(self, data: Data) -> Claims:
        runs = data["runs"]
        distance = runs["weight_change"].isel(t=-1).transpose(AXIS, "seed", "kappa")
        fitted, best = (100 * runs[name].max("t").isel(kappa=-1) for name in ("accuracy", "test_accuracy"))
        last = f"at kappa = {KAPPAS[-1]:g}"
        said = f"Balanced: the training accuracy reaches 100 % {last}."
        yield Claim(said, "100 %", (99.5, inf), *mean_over(fitted.isel({AXIS: 0})))
        for index, name in enumerate(MODELS):
            law = exponent(KAPPAS, distance.isel({AXIS: index}))
            if index == 0:
                said = "Balanced: weights move as far at any kappa. Exponent of kappa in the relative distance."
                yield Claim(said, "0", (-0.25, 0.25), *law)
                continue
            gaps = [mean_over(values.isel({AXIS: 0}) - values.isel({AXIS: index})) for values in (fitted, best)]
            yield Claim(f"{name}: weights hardly move. Exponent of kappa.", "< 0", (-inf, -0.25), *law)
            yield Claim(f"{name}: lower training accuracy than balanced {last}, in points.", *POSITIVE, *gaps[0])
            yield Claim(f"{name}: lower test accuracy than balanced {last}, in points.", *POSITIVE, *gaps[1])


class _Problems(NamedTuple):
    """The output scale keeps the first output of one size, and the rate the kernel: condition (28)."""

    data: Dataset

    def __call__(self, c_u: Array, c_w: Array, kappa: Array, seed: Array) -> Problem:
        eta = kappa ** jnp.minimum(c_u, c_w)
        scaling = TwoLayerScaling(kappa ** (c_u / 2), kappa ** (c_w / 2), eta, (kappa ** (c_u + c_w) * WIDTH) ** -0.5)
        return classifier(self.data, scaling, WIDTH, seed)
