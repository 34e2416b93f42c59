"""Figure 8: phase portraits of one neuron in function space, and which starts change the sign of a."""

from math import inf, nan
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...plot import COLORS
from ...theory import ReducedNeuron
from .._claim import Claim, Claims
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._kunin_neuron import beta, Neurons, WATCHED, WHITENED


TARGET = (0.5, 0.5)
DELTAS = (-2.0, -1.0, -0.2, 0.02, 0.2, 1.0, 2.0)
ANGLES = np.arange(24) * 2 * np.pi / 24 + 0.05
LENGTHS = np.array([0.3, 1.0])
TIMES = np.concatenate([np.linspace(0, 10, 101), [20.0, 50.0]])


class _Neurons(NamedTuple):
    """a > 0 and beta_0 anywhere in the plane."""

    def __call__(self, delta: Array, length: Array, angle: Array) -> Problem:
        start = length * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return Neurons(WHITENED.x, TARGET, start)(delta)  # pyright: ignore[reportArgumentType]


class Figure(AbstractFigure):
    title = "Figure 8: phase portraits of one neuron; the shaded starts are to end with a < 0 by theory, orange ones do"
    ours = f"Starts with a > 0 on two circles, |beta| = {LENGTHS[0]:g} and {LENGTHS[1]:g}, run until t = {TIMES[-1]:g}."
    size = (7.2, 4.2)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        axes = {"delta": np.array(DELTAS), "length": LENGTHS, "angle": ANGLES}
        flow = GradientFlow(Tsit5(), rtol=1e-7, atol=1e-10)
        return {"flow": runs.sweep("flow", _Neurons(), axes, flow, TIMES, observe=WATCHED)}

    def draw(self, figure: Picture, data: Data) -> None:
        axes = figure.subplots(2, 4, sharex=True, sharey=True)
        plane = np.meshgrid(np.linspace(-1.3, 1.3, 60), np.linspace(-1.3, 1.3, 60))
        for ax, delta in zip(axes.flat, DELTAS, strict=False):
            shade = np.asarray(_basin(jnp.asarray(plane).reshape(2, -1).T, delta)).reshape(60, 60)
            ax.contourf(*plane, shade, levels=[-1.5, 0, 1.5], colors=["0.85", "white"])
            runs = data["flow"].sel(delta=delta)
            for path, end in zip(_flat(beta(runs)), _flat(runs["neuron_radius"].isel(t=-1, neuron=0)), strict=True):
                ax.plot(*path.T, color=COLORS[0] if end > 0 else COLORS[1], lw=0.7)
                ax.plot(*path[0], marker=".", ms=2, color="black")
            ax.plot(*TARGET, marker="*", ms=7, color="black")
            ax.set_title(rf"$\delta = {delta:g}$", fontsize=9)
            ax.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
        for ax in axes[1]:
            ax.set_xlabel(r"$\beta_1$")
        for ax in axes[:, 0]:
            ax.set_ylabel(r"$\beta_2$")
        axes[1, 3].set_axis_off()
        for color, label in ((COLORS[0], "ends with $a > 0$"), (COLORS[1], "ends with $a < 0$")):
            axes[1, 3].plot([], [], color=color, label=label)
        axes[1, 3].legend(loc="center", frameon=False, fontsize=9)

    def claims(self, data: Data) -> Claims:
        runs = data["flow"].transpose("delta", "length", "angle", "t", ...)
        ends = np.sign(runs["neuron_radius"].isel(t=-1, neuron=0).values).reshape(len(DELTAS), -1)
        starts = _flat(beta(runs).isel(t=0, delta=0))
        theory = np.array([_basin(jnp.asarray(starts), delta) for delta in DELTAS])
        ran = lambda flags: np.where(np.isfinite(ends), flags, nan)  # what has failed decides nothing
        crossed = ran(ends < 0).mean(1)
        negative, positive = [np.array(DELTAS) < 0, np.array(DELTAS) > 0]
        reached = np.linalg.norm(beta(runs).isel(t=-1).values - np.array(TARGET), axis=-1)
        said = "The sign of a at the end is that of the basin (footnote 4): share of all starts."
        yield Claim(said, "1", (1.0, 1.0), float(ran(ends == theory).mean()))
        said = "delta > 0: a keeps its sign: largest share of the starts that change it."
        yield Claim(said, "0", (0.0, 0.0), float(crossed[positive].max()))
        yield Claim("delta < 0: some change it: least share.", "> 0", (1e-9, inf), float(crossed[negative].min()))
        said = "The more negative delta, the more do: least step of the share to the next delta below."
        yield Claim(said, "> 0", (1e-9, inf), float(-np.diff(crossed[negative]).max()))
        said = "Starts end at the solution: share within 1 % of it at t = 50."
        near = (reached < 0.01 * np.linalg.norm(TARGET)).reshape(ends.shape)
        yield Claim(said, "1", (0.95, 1.0), float(ran(near).mean()))


@jax.jit
def _basin(starts: Array, delta: Array) -> Array:
    """The sign of a at the end, from each beta_0."""

    def one(start: Array) -> Array:
        a = jnp.sqrt((delta + jnp.sqrt(delta**2 + 4 * jnp.sum(start**2))) / 2)
        return ReducedNeuron(a, start / a, jnp.asarray(TARGET), jnp.ones(())).basin

    return jax.vmap(one)(starts)


def _flat(values) -> np.ndarray:
    """Starts of both circles along one axis."""
    ordered = values.transpose("length", "angle", ...).values
    return ordered.reshape(-1, *ordered.shape[2:])
