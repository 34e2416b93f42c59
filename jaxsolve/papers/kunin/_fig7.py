"""Figure 7: one neuron that starts near the stable manifold of the saddle waits there, and may go either way."""

from math import inf, nan
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...plot import COLORS
from ...theory import SingleNeuronFlow
from .._claim import ABOVE_ONE, Claim, Claims
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._kunin_neuron import beta, neuron, WATCHED, WHITENED


TARGET = (1.0, 0.25)
DELTAS = (0.0, -2.0, -10.0)
NUDGES = (-1e-3, 1e-3)
TIMES = np.concatenate([[0.0], np.geomspace(0.01, 200, 400)])


class _Neurons(NamedTuple):
    """a = -4 + nudge, and the w that at a = -4 lies on the manifold (footnote 4) with a^2 - |w|^2 = delta."""

    def __call__(self, delta: Array, nudge: Array) -> Problem:
        target = jnp.asarray(TARGET)
        size = jnp.linalg.norm(target)
        along = 2 * (delta + jnp.sqrt(delta**2 + 4 * size**2)) / size
        across = jnp.sqrt(jnp.maximum(16 - delta - along**2, 0))
        unit = target / size
        w = along * unit + across * jnp.stack([-unit[1], unit[0]])
        return neuron(WHITENED.x, TARGET, -4 + nudge, w)


class Figure(AbstractFigure):
    title = "Figure 7: delay near the saddle, in theory (lines) and by gradient flow (points)"
    ours = "The direction of w at the start: on the stable manifold at a = -4; the paper gives a, delta and the target."
    size = (7.0, 2.9)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        axes = {"delta": np.array(DELTAS), "nudge": np.array(NUDGES)}
        flow = GradientFlow(Tsit5(), rtol=1e-9, atol=1e-12)
        return {
            "theory": runs.sweep("theory", _Neurons(), axes, SingleNeuronFlow(), TIMES, observe=WATCHED),
            "flow": runs.sweep("flow", _Neurons(), axes, flow, TIMES, observe=WATCHED),
        }

    def draw(self, figure: Picture, data: Data) -> None:
        losses, paths, norms = figure.subplots(1, 3)
        for delta, color in zip(DELTAS, COLORS, strict=False):
            for nudge, style in zip(NUDGES, ("-", "--"), strict=True):
                where = {"delta": delta, "nudge": nudge}
                line, points = (data[name].sel(where) for name in ("theory", "flow"))
                curves = {"color": color, "ls": style, "lw": 1.1}
                label = rf"$\delta = {delta:g}$, $a_0 = -4 {nudge:+g}$"
                # Theirs is a sum over both samples, ours their average.
                losses.plot(TIMES, 2 * line["loss"], label=label, **curves)
                losses.plot(TIMES[::25], 2 * points["loss"][::25], ls="", marker="o", ms=2.5, mfc="none", color=color)
                paths.plot(*beta(line).values.T, **curves)
                norms.plot(TIMES, line["neuron_radius"].isel(neuron=0), **curves)
        paths.plot(*TARGET, marker="*", ms=9, color="black")
        paths.set(xlabel=r"$\beta_1$", ylabel=r"$\beta_2$", title="paths", xlim=(-3, 2), ylim=(-3, 2))
        losses.set(xlabel="time $t$", title="loss", ylim=(0, 1), xscale="log")
        norms.set(xlabel="time $t$", title=r"$\mu = a|w|$", ylim=(-3, 2), xscale="log")
        legend_below(figure, losses, 3)

    def claims(self, data: Data) -> Claims:
        theory, flow = (data[name].transpose("delta", "nudge", "t", ...) for name in ("theory", "flow"))
        ends = flow.isel(t=-1)
        signs = np.sign(ends["neuron_radius"].isel(neuron=0).values)
        target = beta(flow).isel(t=-1) - np.array(TARGET)
        plateau = float(np.sum(np.square(TARGET)) / 4)  # at beta = 0, in our loss, an average over two samples
        left = np.array([[_leaves(run, plateau) for run in rows] for rows in flow["loss"].values])
        waits = np.array([[_waits(run, plateau) for run in rows] for rows in flow["loss"].values])
        said = "Starts on both sides of the manifold end with opposite signs of a: largest of their products."
        yield Claim(said, "-1", (-1.0, -1.0), float(signs.prod(axis=1).max()))
        said = "All reach the solution by t = 200: largest distance of beta."
        yield Claim(said, "0", (0.0, 1e-3), float(np.abs(target).max()))
        said = "They wait at the saddle: least time with a loss within 5 % of that of beta = 0."
        yield Claim(said, "> 0", (1.0, inf), float(waits.min()))
        said = "Leaving takes longer the more negative delta is: least ratio of times to the next delta."
        yield Claim(said, *ABOVE_ONE, float((left.mean(1)[1:] / left.mean(1)[:-1]).min()))
        said = "The exact solution passes the saddle as gradient flow does: largest difference of the losses."
        yield Claim(said, "0", (0.0, 1e-3), float(np.abs(theory["loss"] - flow["loss"]).max()))


def _leaves(run: np.ndarray, plateau: float) -> float:
    """The last time with a loss above half of that of the saddle; NaN if there is none."""
    above = TIMES[run > plateau / 2]
    return float(above[-1]) if len(above) else nan


def _waits(run: np.ndarray, plateau: float) -> float:
    """The time that the loss spends within 5 % of that of the saddle."""
    near = np.where(np.isfinite(run), np.abs(run / plateau - 1) < 0.05, nan)
    return float(np.sum(near[1:] * np.diff(TIMES)))
