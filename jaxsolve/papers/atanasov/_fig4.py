"""Figure 4: deep linear networks leave small starts by a power law, and align before they learn."""

from math import inf, nan

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...nets import DeepLinear, Given, Scaling
from ...observe import half_loss_time, layer_cosine, loss
from ...plot import COLORS, MARKERS
from ...theory import escape_time
from ...until import loss_fraction
from .._claim import Claim, Claims, exponent, mean_over
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._silent import rise_time, TIME, whitened_task


SIZE, WIDTH, SAMPLES = 30, 50, 60
MATRICES = [3, 4, 5]
STARTS = np.geomspace(1e-2, 0.3, 7)  # of one balanced mode
SIGMAS = np.geomspace(1e-2, 0.3, 5)  # of Gaussian starts
SEEDS = by_scale(4, 32)
TIMES = np.concatenate([[0.0], np.geomspace(0.3, 1000.0, 120)])


class Figure(AbstractFigure):
    title = "Figure 4: deep linear networks: time to half the loss, and when the first layer aligns"
    ours = f"{SAMPLES} whitened samples, and the scales: the paper does not say its own. Times are of gradient flow."
    size = (7.0, 2.6)
    hours = by_scale(0.02, 0.1)

    def run(self, runs: Runs) -> Data:
        flow = GradientFlow(Tsit5(), rtol=1e-6, until=loss_fraction(0.5))
        modes = runs.sweep("modes", _mode, {"matrices": MATRICES, "sigma": STARTS}, flow, [0.0, inf])
        axes = {"sigma": SIGMAS, "seed": range(SEEDS[runs.scale])}
        flow, watched = GradientFlow(Tsit5(), rtol=1e-5), [loss(), layer_cosine()]
        return {"modes": modes, "deep": runs.sweep("deep", _three_layers, axes, flow, TIMES, observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        a, b, c = figure.subplots(1, 3)
        for matrices, color, marker in zip(MATRICES, COLORS, MARKERS, strict=False):
            times, style = data["modes"]["t_end"].sel(matrices=matrices), {"color": color, "marker": marker, "ms": 3}
            a.plot(STARTS, times, label=rf"$L = {matrices}$", mfc="none", **style)
            a.plot(STARTS, _law(STARTS, matrices), "k--", lw=0.8, label="theory" if matrices == MATRICES[-1] else None)
        a.set(xscale="log", yscale="log", xlabel=r"$\sigma$", ylabel=r"time to half the loss $t_{1/2}$", title="(a)")
        deep = data["deep"].isel(seed=0)
        for index, color in zip((4, 2, 0), COLORS, strict=False):
            one = deep.isel(sigma=index)
            b.plot(TIMES, one["loss"] / one["loss"][0], color=color, label=rf"$\sigma = {SIGMAS[index]:.2g}$")
            b.plot(TIMES, one["layer_cosine_0"], color=color, ls="--")
        b.set(xscale="log", xlim=(0.3, 300), ylim=(-0.05, 1.6), xlabel=TIME, title="(b) $L = 3$")
        b.set_ylabel("loss (lines), cosine (dashed)")
        loss_times, turn_times = _times(data)
        for found, label, marker in ((loss_times, "half the loss", "o"), (turn_times, "cosine 1/2", "s")):
            mean, bar = zip(*map(mean_over, found.T), strict=True)
            c.errorbar(SIGMAS, mean, bar, ls="", marker=marker, ms=4, mfc="none", label=label)
        c.plot(SIGMAS, np.mean(loss_times[:, 0]) * SIGMAS[0] / SIGMAS, "k--", lw=0.8, label=r"$\sigma^{-1}$")
        c.set(xscale="log", yscale="log", xlabel=r"$\sigma$", ylabel="time", title="(c) $L = 3$")
        for ax in (a, b, c):
            ax.legend(frameon=False, fontsize=7, loc="upper left" if ax is b else "best")

    def claims(self, data: Data) -> Claims:
        for matrices in MATRICES:
            power, times = matrices - 2, data["modes"]["t_end"].sel(matrices=matrices).values
            law = exponent(STARTS[:4], times[None, :4]).value
            accepted = (-1.1 * power, -0.9 * power)
            yield Claim(f"(a) L = {matrices}: exponent of sigma in t_1/2.", f"-{power}", accepted, law)
            said = f"(a) L = {matrices}: t_1/2 over 1/((L-2) s sigma^(L-2)), at the smallest sigma."
            printed, corrected = (0.9 * matrices, 1.1 * matrices), (0.9, 1.1)
            share = float(times[0] / _law(STARTS, matrices)[0])
            yield Claim(said, f"{matrices}", printed, share, corrected=corrected)
        loss_times, turn_times = _times(data)
        for name, times in (("half the loss", loss_times), ("cosine 1/2 of W1^T W1 with beta beta^T", turn_times)):
            said = f"(c) L = 3: exponent of sigma in the time to {name}."
            yield Claim(said, "-1", (-1.15, -0.85), *exponent(SIGMAS[:3], times[:, :3]))
        known = np.where(np.isfinite(loss_times), turn_times / loss_times, nan)  # a loss that has not fallen: unknown
        ratio = mean_over(known[:, :3].mean(1))  # a seed has one draw at every sigma
        said = f"(c) Alignment precedes half the loss, up to sigma = {SIGMAS[2]:g}: ratio of the times."
        yield Claim(said, "< 1", (-inf, 1.0), *ratio)
        end = mean_over(data["deep"]["layer_cosine_0"].isel(sigma=0, t=-1))
        yield Claim("(b) The first layer aligns: final cosine, smallest sigma.", "1", (0.99, 1.001), *end)


def _law(sigmas: np.ndarray, matrices: int) -> np.ndarray:
    return np.asarray(escape_time(start=sigmas**matrices, s=1.0, eta=jnp.ones(matrices)))


def _times(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """To half the loss, and to a cosine of 1/2; seeds and scales."""
    deep = data["deep"].transpose("seed", "sigma", "t", ...)
    turned = rise_time(TIMES, deep["layer_cosine_0"].values, 0.5)
    return half_loss_time(TIMES, deep["loss"].values), turned


def _mode(matrices: int, sigma: Array) -> Problem:
    """One balanced mode: weights sigma in a row, which obey equation 39."""
    one = jnp.ones((1, 1))
    start = {"scaling": Scaling.standard(), "init": Given([sigma * one] * matrices), "key": jax.random.key(0)}
    return Problem(DeepLinear(in_size=1, width_size=1, depth=matrices - 1, **start), one, one)


def _three_layers(sigma: Array, seed: Array) -> Problem:
    first, task = jax.random.split(jax.random.key(seed))
    net = DeepLinear(in_size=SIZE, width_size=WIDTH, depth=2, scaling=Scaling.standard(sigma=sigma), key=first)
    return Problem(net, *whitened_task(SAMPLES, SIZE, task))
