"""Figure 4: output scale and rates turn every start into the kernel phase or the feature-learning phase."""

from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset, Images
from ...plot import COLORS, MARKERS
from ...sweeps import Zip
from ...theory import table_1
from .._claim import bars, Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._image_classifier import classifier, RATE, SETTING, ten_classes, trained, TwoLayerScaling


LEAST = 32  # the width at which both models of a pair are one
# By the entry of Table 1: its scaling and what chose it; then gamma and eta at the least width; does it learn features?
MODELS = {
    "NTK": ("NTK", "standard", LEAST**-0.5, 1.0, False),
    "mean field": ("mean field", "Corollary 1", LEAST**-0.5, 1.0, True),
    "Kaiming-": ("Kaiming", "Corollary 3", 1.0, 2 / LEAST, False),
    "Kaiming+": ("Kaiming", "Corollary 2", 1.0, 2 / LEAST, True),
    "Xavier-": ("Xavier", "Corollary 3", 1.0, 1.0, False),
    "Xavier+": ("Xavier", "Corollary 2", 1.0, 1.0, True),
}
PAIRS = [("mean field", "NTK"), ("Kaiming+", "Kaiming-"), ("Xavier+", "Xavier-")]
WIDTHS = by_scale([LEAST, 128, 512], [LEAST, 128, 512, 2048], [LEAST, 128, 512, 2048, 8192])
SEEDS = by_scale(4, 5, 3)
AXIS = "gamma_eta_c_gamma_c_u_c_w_c_eta_u"
MOVES = -0.25  # the exponent of the width above which weights go on moving


class Figure(AbstractFigure):
    title = "Figure 4: two-layer ReLU networks on CIFAR-10 in both phases, from three starts"
    ours = (
        f"Pairs agree at width {LEAST}, SGD of rate {RATE:g} times the scaling's own: the paper's widths, prefactors "
        f"and rates are lost. {SETTING}"
    )
    size = (6.8, 2.8)
    hours = by_scale(0.03, 10.0, 5000.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        entries = {(entry.scaling, entry.chosen_by): entry.exponents for entry in table_1()}
        chosen = [entries[scaling, by] for scaling, by, *_ in MODELS.values()]
        read = lambda field: np.array([float(getattr(exponents, field)) for exponents in chosen])
        models = Zip(
            gamma=[gamma for _, _, gamma, _, _ in MODELS.values()],
            eta=[eta for _, _, _, eta, _ in MODELS.values()],
            **{f"c_{field}": read(field) for field in ("gamma", "u", "w", "eta_u")},
        )
        axes = [models, {"width": WIDTHS[runs.scale], "seed": range(SEEDS[runs.scale])}]
        return {"runs": trained(runs, _Problems(ten_classes(runs.scale, SEEDS[runs.scale])), axes)}

    def draw(self, figure: Picture, data: Data) -> None:
        runs = data["runs"]
        left, right = figure.subplots(1, 2, sharex=True)
        for ax, values in ((left, 100 * runs["test_accuracy"].max("t")), (right, runs["weight_change"].isel(t=-1))):
            for index, (name, (*_, learns)) in enumerate(MODELS.items()):
                cells = values.isel({AXIS: index})
                style = {"color": COLORS[index // 2], "marker": MARKERS[index // 2], "ls": "--" if learns else "-"}
                ax.errorbar(runs["width"], *bars(cells), label=name, ms=3.5, lw=1.2, **style)
            ax.set(xscale="log", xlabel="width $d$")
            ax.set_xticks(runs["width"].values, [str(int(width)) for width in runs["width"]], minor=False)
            ax.minorticks_off()
        left.set_ylabel("best test accuracy (%)")
        right.set(ylabel=r"$|\theta - \theta_0|/|\theta_0|$", yscale="log")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        runs, names = data["runs"], list(MODELS)
        distance = runs["weight_change"].isel(t=-1).transpose(AXIS, "seed", "width")
        best = runs["test_accuracy"].max("t").isel(width=-1)
        for index, (name, (*_, learns)) in enumerate(MODELS.items()):
            phase = "feature learning" if learns else "kernel phase"
            said = f"{name}: {phase}. Exponent of the width in the relative distance from the start."
            expected = ("0", (MOVES, -MOVES)) if learns else ("< 0", (-inf, MOVES))
            yield Claim(said, *expected, *exponent(runs["width"], distance.isel({AXIS: index})))
        for feature, kernel in PAIRS:
            gap = 100 * (best.isel({AXIS: names.index(feature)}) - best.isel({AXIS: names.index(kernel)}))
            said = f"{feature} has a higher test accuracy than {kernel} at the largest width. Difference in points."
            yield Claim(said, *POSITIVE, *mean_over(gap))


class _Problems(NamedTuple):
    """Output scale and rates are powers of width/32, with variances that are powers of the width."""

    data: Dataset

    def __call__(
        self,
        gamma: Array,
        eta: Array,
        c_gamma: Array,
        c_u: Array,
        c_w: Array,
        c_eta_u: Array,
        width: int,
        seed: Array,
    ) -> Problem:
        kappa = width / LEAST
        scaling = TwoLayerScaling(width ** (c_u / 2), width ** (c_w / 2), eta * kappa**c_eta_u, gamma * kappa**c_gamma)
        return classifier(self.data, scaling, width, seed)
