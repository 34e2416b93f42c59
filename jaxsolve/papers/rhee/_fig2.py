"""Figure 2: two scalar layers by gradient flow and by Muon: what is conserved, and how steps end."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import Descent, GradientFlow, MuonFlow
from ...nets import Given
from ...observe import loss, parameters
from ...plot import COLORS
from .._claim import Claim, Claims
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._rhee import factorization, muon


STARTS = by_scale(30, 100)
LOW, HIGH = -0.2, 2.0  # starts are drawn between them
ENDS = {"flow": 20.0, "muon_flow": 4.0}
SHARES = np.linspace(0.0, 1.0, 201)
START, STEPS = 0.06, 12
RATES = {"descent": 0.4, "muon": 0.11}
FLOWS = {"flow": ("gradient flow", "$p^2 - q^2$"), "muon_flow": ("Muon flow", "$|p| - |q|$")}
STEPPED = {"descent": "gradient descent", "muon": "Muon"}


class Figure(AbstractFigure):
    title = "Figure 2: a product of two numbers by gradient flow and by Muon"
    ours = (
        f"Loss (1 - pq)^2/2, area, rates, steps and start p = q = {START:g} of the authors' notebook `fig2`; flows "
        f"from random starts in this area, to t = {ENDS['flow']:g} and {ENDS['muon_flow']:g}, in place of arrows."
    )
    size = (7.0, 2.8)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        seeds, one = {"seed": range(STARTS[runs.scale])}, {"seed": range(1)}
        found = {
            name: runs.sweep(name, _drawn, seeds, dynamics, ENDS[name] * SHARES, observe=[parameters(), loss()])
            for name, dynamics in (("flow", GradientFlow(rtol=1e-8)), ("muon_flow", MuonFlow(eps=1e-6)))
        }
        for name, make in (("descent", optax.sgd), ("muon", muon)):
            rate = RATES[name]
            ts, descent = np.arange(STEPS + 1) * rate, Descent(make(rate), rate=rate)
            found[name] = runs.sweep(name, _Equal(START), one, descent, ts, observe=[parameters(), loss()])
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3)
        p = np.linspace(0.5, HIGH, 100)
        for ax, (name, (title, conserved)) in zip(panels, FLOWS.items(), strict=False):
            for path in _paths(data[name]):
                ax.plot(*path.T, color=COLORS[0], lw=0.8)
                ax.plot(*path[0], "o", ms=2.5, color=COLORS[1])
            ax.plot(p, 1 / p, "k--", lw=1, label="minimizers")
            ax.plot([], [], color=COLORS[0], lw=0.8, label="path")
            ax.plot([], [], "o", ms=2.5, color=COLORS[1], label="start")
            ax.set(title=f"{title}: {conserved}", xlabel="$p$", ylabel="$q$", xlim=(LOW, HIGH), ylim=(LOW, HIGH))
            ax.set_aspect("equal")
        legend_below(figure, panels[0], 3)
        for color, (name, label) in zip(COLORS, STEPPED.items(), strict=False):
            panels[2].plot(_paths(data[name])[0, :, 0], "o-", ms=3, lw=0.8, color=color, label=label)
        panels[2].axhline(1, color="k", ls="--", lw=1)
        panels[2].set(title="steps from $p = q$", xlabel="step", ylabel="$p$", ylim=(-0.3, 1.15))
        panels[2].legend(frameon=False, fontsize=8, loc="lower right")

    def claims(self, data: Data) -> Claims:
        said = "Gradient flow conserves p^2 - q^2: its change over that of p^2, largest of all starts."
        yield Claim(said, "0", (0.0, 0.01), float(_drift(_paths(data["flow"]) ** 2).max()))
        said = "Muon conserves |p| - |q|: its change over that of |p|, largest of all starts."
        yield Claim(said, "0", (0.0, 0.01), float(_drift(np.abs(_paths(data["muon_flow"]))).max()))
        for name, (label, _) in FLOWS.items():
            left = data[name]["loss"].isel(t=-1) / data[name]["loss"].isel(t=0)
            said = f"{label.capitalize()} ends at a minimizer: loss at the end over that at the start, largest of all."
            yield Claim(said, "0", (0.0, 1e-3), float(left.max()))
        far = {name: np.abs(_paths(data[name])[0, :, 0] - 1) for name in STEPPED}
        said = f"Gradient descent converges: |p - 1| after {STEPS} steps over that two steps before."
        yield Claim(said, "< 1", (0.0, 0.99), float(far["descent"][-1] / far["descent"][-3]))
        said = f"Muon comes straight: steps until |p - 1| is below its rate, {RATES['muon']:g}."
        needed = float(np.ceil((1 - START) / RATES["muon"]) - 1)
        came = np.append(np.flatnonzero(far["muon"] < RATES["muon"]), np.nan)[0]
        yield Claim(said, f"{needed:g}", (needed, needed), float(came))
        said = f"Muon then oscillates: |p - 1| after {STEPS} steps over that two steps before."
        yield Claim(said, "1", (0.99, 1.01), float(far["muon"][-1] / far["muon"][-3]))


def _at(p: Array, q: Array) -> Problem:
    return factorization(jnp.ones(1), 1, Given([p.reshape(1, 1), q.reshape(1, 1)]), 1.0, jax.random.key(0))


def _drawn(seed: Array) -> Problem:
    return _at(*jax.random.uniform(jax.random.key(seed), (2,), minval=LOW, maxval=HIGH))


class _Equal(NamedTuple):
    """Both layers start at one number."""

    start: float

    def __call__(self, seed: Array) -> Problem:
        del seed
        return _at(jnp.asarray(self.start), jnp.asarray(self.start))


def _paths(run: Any) -> np.ndarray:
    """p and q, of shape (seeds, times, 2)."""
    return run["parameters"].transpose("seed", "t", ...).values


def _drift(terms: np.ndarray) -> np.ndarray:
    """The largest change of the terms' difference over that of the first, by start."""
    change = terms - terms[:, :1]
    return np.abs(change[..., 0] - change[..., 1]).max(1) / np.abs(change[..., 0]).max(1)
