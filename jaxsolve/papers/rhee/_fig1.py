"""Figure 1: matrix factorization by Muon and by gradient descent: order of modes, stability, what is conserved."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import Descent
from ...nets import Gaussian, Given
from ...observe import loss, outputs, parameters
from ...plot import COLORS
from ...theory import MuonModes
from .._claim import Claim, Claims, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs, Values
from .._rhee import drift, factorization, muon, N, over_strength, sizes_of, speeds_of, STRENGTHS, times_of


SEEDS = by_scale(8, 10)
START, RATE, STEPS = 5e-3, 5e-3, 1000
CRITICAL = 1 / STRENGTHS[0]  # 2 over the sharpness 2 s_1 of the balanced solution
SLOW, LATE, END = 5e-4, 400, 1200  # the rate at which conservation is measured, and between which steps


class Figure(AbstractFigure):
    title = "Figure 1: factorization of a matrix by Muon and by gradient descent"
    ours = (
        "Size, target, start, rates and steps of the authors' notebook `fig1`, with exact polar factors and without "
        "momentum, as there; eight starts in place of one. Modes are entries of the product in the frame of the "
        "target, and have come when they are 0.9 of it. Stability at twice the critical rate, theirs over a range. "
        "Conserved matrices from step 400, when the layers are aligned, to step 1200."
    )
    size = (7.0, 2.8)
    hours = by_scale(0.01, 0.02)

    def run(self, runs: Runs) -> Data:
        seeds = {"seed": range(SEEDS[runs.scale])}
        modes, watched = _Problems(START), outputs()
        found = {}
        ts = np.arange(0, STEPS + 1, 2)
        for name, make, rate in (("muon", muon, RATE), ("descent", optax.sgd, 3 * RATE)):
            found[name] = runs.sweep(name, modes, seeds, Descent(make(rate), rate=rate), ts * rate, observe=watched)
        one = {"start": np.array([START])}
        found["theory"] = runs.sweep("theory", _aligned, one, MuonModes(), ts * RATE, observe=watched)
        rate = 2 * CRITICAL
        for name, make in (("fast_muon", muon), ("fast_descent", optax.sgd)):
            descent = Descent(make(rate), rate=rate)
            found[name] = runs.sweep(name, _Problems(0.1), seeds, descent, [0.0, 500 * rate], observe=loss())
        for name, make, rate in (("slow_muon", muon, SLOW), ("slow_descent", optax.sgd, 5 * SLOW)):
            ts, descent = np.array([LATE, END]) * rate, Descent(make(rate), rate=rate)
            found[name] = runs.sweep(name, modes, seeds, descent, ts, observe=parameters())
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3)
        shown = [0, 1, 3, 7, 15, 31]
        for ax, name, title in zip(panels, ("muon", "descent"), ("Muon", "gradient descent"), strict=False):
            sizes = sizes_of(data[name]).isel(seed=0)
            for mode, color in zip(shown, COLORS, strict=False):
                ax.plot(sizes["t"], sizes.isel(mode=mode), color=color, label=f"$s = {STRENGTHS[mode]:.2g}$")
                if name == "muon":
                    ax.plot(sizes["t"], sizes_of(data["theory"]).isel(start=0, mode=mode), "k--", lw=0.8)
            ax.set(title=title, xlabel="time $t$ (steps times rate)", ylabel="size of the mode in a layer")
        panels[0].plot([], [], "k--", lw=0.8, label="MuonModes")
        legend_below(figure, panels[0], 7)
        for name, label, color in zip(("muon", "descent"), ("Muon", "gradient descent"), COLORS, strict=False):
            panels[2].loglog(STRENGTHS, times_of(data[name]).mean("seed"), "o", ms=3, color=color, label=label)
        panels[2].loglog(STRENGTHS, times_of(data["theory"]).isel(start=0), "k--", lw=0.8, label="MuonModes")
        panels[2].set(xlabel="strength $s$", ylabel="time of the mode")
        panels[2].legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        times = {name: times_of(data[name]) for name in ("muon", "descent", "theory")}
        said = "Muon: smaller modes converge first. Exponent of their times in the strength."
        yield Claim(said, *POSITIVE, *over_strength(times["muon"]))
        said = "Gradient descent: larger modes converge first. The same exponent."
        yield Claim(said, *NEGATIVE, *over_strength(times["descent"]))
        said = "Muon: singular values of a layer grow by the rate at every step. Growth over rate, mean over modes."
        speeds = speeds_of(data["muon"])
        yield Claim(said, "1", (0.95, 1.05), *mean_over(speeds.mean("mode")))
        said = "Muon: so all modes are learned at the same rate. Exponent of this growth in the strength."
        yield Claim(said, "0", (-0.05, 0.05), *over_strength(speeds))
        said = "Muon: the times are those of aligned layers, `theory.MuonModes`. Ratio, mean over modes."
        ratio = (times["muon"] / times["theory"].isel(start=0)).mean("mode")
        yield Claim(said, "1", (0.95, 1.05), *mean_over(ratio))
        end = {name: _last(data[f"fast_{name}"]) for name in ("muon", "descent")}
        said = "Muon stays stable beyond the critical rate: at twice that, the loss at the end over that at the start."
        yield Claim(said, "< 1", (0.0, 1.0), *mean_over(end["muon"]))
        said = "Gradient descent does not: share of runs at this rate that diverge."
        diverged = (~(end["descent"] < 1)).where(data["fast_descent"]["result"] >= 0)  # NaN where nothing has run
        yield Claim(said, "1", (1.0, 1.0), float(diverged.mean()))
        said = "Muon, layers aligned, conserves sqrt(P^T P) - sqrt(Q^T Q): its change over that of sqrt(P^T P)."
        yield Claim(said, "0", (0.0, 0.05), *drift(data["slow_muon"], root=True))
        said = "Gradient descent conserves P^T P - Q^T Q: its change over that of P^T P."
        yield Claim(said, "0", (0.0, 0.05), *drift(data["slow_descent"], root=False))


class _Problems(NamedTuple):
    """Normal weights of one size."""

    sigma: float

    def __call__(self, seed: Array) -> Problem:
        return factorization(jnp.asarray(STRENGTHS), N, Gaussian(), self.sigma, jax.random.key(seed))


def _aligned(start: Array) -> Problem:
    return factorization(jnp.asarray(STRENGTHS), N, Given([start * jnp.eye(N)] * 2), 1.0, jax.random.key(0))


def _last(run: Any) -> Values:
    return run["loss"].isel(t=1) / run["loss"].isel(t=0)
