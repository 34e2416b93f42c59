"""Table 1: the exponents of kernel and weights in the feature-learning regime, for two depths."""

from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset
from ...observe import test_kernel_change, weight_change
from ...plot import COLORS, power_law
from ...theory import lazy_scaling
from .._claim import Claim, Claims, Measured
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale, Values
from .._geiger import AtScale, flow, parity, power, SETTING


DEPTHS = [5, 2]
WIDTHS = by_scale(32, 200, 1000)
SCALES = np.geomspace(1e-3, 3e-2, 4)
SEEDS = by_scale(12, 10)
TESTS = 50
# What the paper measures, and half the width of what counts as the same.
KERNEL = {5: (1.7, 0.15), 2: (1.25, 0.15)}
WEIGHTS = {5: (0.23, 0.07), 2: (0.35, 0.07)}


class Figure(AbstractFigure):
    title = "Table 1: exponents of kernel and weights in the feature-learning regime, for five and two hidden layers"
    ours = (
        SETTING
        + f" sqrt(h) alpha from {SCALES[0]:g} to {SCALES[-1]:g}; one width, {WIDTHS[Scale.SMALL]} at small scale."
    )
    size = (6.8, 3.0)
    hours = by_scale(0.05, 5.0, 2000.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        make = _Problems(parity(runs.scale, TESTS, SEEDS[runs.scale]), WIDTHS[runs.scale])
        axes = {"depth": DEPTHS, "scale": SCALES, "seed": range(SEEDS[runs.scale])}
        return {"flow": runs.sweep("flow", make, axes, flow(), [inf], observe=[test_kernel_change(), weight_change()])}

    def draw(self, figure: Picture, data: Data) -> None:
        panels = zip(
            figure.subplots(1, 2),
            ("test_kernel_change", "weight_change"),
            (r"$|\Theta - \Theta_0|/|\Theta_0|$", "$|w - w_0|/|w_0|$"),
            (KERNEL, WEIGHTS),
            strict=True,
        )
        for ax, name, label, printed in panels:
            for depth, color in zip(DEPTHS, COLORS, strict=False):
                printed_law = f"paper $-{printed[depth][0]:g}$, predicted $-{_predicted(name, depth):.2f}$"
                said = f"{printed_law}\n$L = {depth}$"
                power_law(data["flow"][name].isel(t=-1).sel(depth=depth), "scale", label=said, color=color, ax=ax)
            ax.set(xlabel=r"$\sqrt{h}\,\alpha$", ylabel=label)
            ax.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        for name, what, printed in (
            ("test_kernel_change", "kernel: a", KERNEL),
            ("weight_change", "weights: b", WEIGHTS),
        ):
            for depth in DEPTHS:
                value, width = printed[depth]
                measured = _exponent(data["flow"][name].isel(t=-1).sel(depth=depth))
                paper = f"{value:g}, predicted {_predicted(name, depth):.2f}"
                said = f"L = {depth}, change of the {what}."
                yield Claim(said, paper, (value - width, value + width), *measured)


def _exponent(cells: Values) -> Measured:
    """a in cells ~ scale^-a."""
    slope = power(cells, "scale")
    return Measured(-slope.value, slope.uncertainty)


def _predicted(name: str, depth: int) -> float:
    laws = lazy_scaling(depth)
    return -(laws.kernel_change_feature if name == "test_kernel_change" else laws.weight_change_feature).alpha


class _Problems(NamedTuple):
    """Networks of one width."""

    data: Dataset
    width: int

    def __call__(self, depth: int, scale: Array, seed: Array) -> Problem:
        return AtScale(self.data, depth)(self.width, scale, seed)
