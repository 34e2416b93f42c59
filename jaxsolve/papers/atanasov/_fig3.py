"""Figure 3: two linear layers from small starts: the loss falls at log(1/sigma), the kernel turns before."""

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...nets import Scaling, TwoLayerLinear
from ...observe import half_loss_time, kernel_alignment, kernel_norm, loss
from ...plot import COLORS
from ...theory import escape_time, SilentAlignment, spiked_kernel, start_overlaps
from .._claim import Claim, Claims, exponent, mean_over
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs, Values
from .._silent import draw_silence, rise_time, TIME, turned_before, whitened_task


SIZE, WIDTH, SAMPLES = 30, 50, 60
SIGMAS = np.geomspace(1e-4, 1e-1, 7)
SMALL = SIGMAS[SIGMAS < 0.05]  # theory is for small starts
SEEDS = by_scale(4, 32)
TIMES = np.linspace(0.0, 15.0, 91)


class Figure(AbstractFigure):
    title = "Figure 3: two-layer linear networks from starts of scale sigma, by flow and in theory (dashed)"
    ours = (
        f"{SIZE} inputs, {WIDTH} hidden units, {SAMPLES} whitened samples, a teacher of norm 1 (the paper's values are "
        f"lost). Times are of gradient flow. Theory is drawn for sigma < 0.05."
    )
    size = (7.0, 2.6)
    hours = by_scale(0.015, 0.1)

    def run(self, runs: Runs) -> Data:
        seeds = range(SEEDS[runs.scale])
        watched = [loss(), kernel_alignment(), kernel_norm()]
        flow = GradientFlow(Tsit5(), rtol=1e-6)
        data = runs.sweep("flow", _problem, {"sigma": SIGMAS, "seed": seeds}, flow, TIMES, observe=watched)
        axes = {"sigma": SMALL, "seed": seeds}
        theory = runs.sweep("theory", _problem, axes, SilentAlignment(), TIMES, observe=loss())
        return {"flow": data, "theory": theory}

    def draw(self, figure: Picture, data: Data) -> None:
        flow, theory = data["flow"], data["theory"]
        a, b, c = figure.subplots(1, 3)
        for index, color in zip((0, 2, 4, 6), COLORS, strict=False):
            curve, label = flow["loss"].isel(seed=0, sigma=index), f"{SIGMAS[index]:g}"
            a.plot(TIMES, curve / curve[0], color=color, label=label)
            if index < len(SMALL):
                a.plot(TIMES, theory["loss"].isel(seed=0, sigma=index) / curve[0], "k--", lw=0.9)
        a.set(xlabel=TIME, ylabel="loss / initial loss", title="(a)", xlim=(-0.5, 22))  # room for the legend
        a.legend(title=r"$\sigma$", frameon=False, fontsize=7)
        half = half_loss_time(TIMES, _lanes(flow["loss"]))
        b.errorbar(SIGMAS**2, *zip(*map(mean_over, half.T), strict=True), ls="", marker="o", ms=4, mfc="none")
        b.plot(SIGMAS**2, _theory(SIGMAS), "k--", lw=0.9, label="theory, mean start")
        b.set(xscale="log", xlabel=r"$\sigma^2$", ylabel=r"half time $t_{1/2}$", title="(b)")
        b.legend(frameon=False, fontsize=8)
        one = flow.isel(sigma=0, seed=0)
        draw_silence(c, TIMES, one["loss"].values, one["kernel_norm"].values, one["kernel_alignment"].values, _limit())
        c.set_title(rf"(c) $\sigma = {SIGMAS[0]:g}$")
        legend_below(figure, c, 4)

    def claims(self, data: Data) -> Claims:
        losses, alignment = _lanes(data["flow"]["loss"]), _lanes(data["flow"]["kernel_alignment"])
        theory = _lanes(data["theory"]["loss"])
        off = np.abs(losses[:, : len(SMALL)] - theory).max(axis=-1) / losses[:, : len(SMALL), 0]
        half = half_loss_time(TIMES, losses)
        small = slice(None, len(SMALL))
        logs = np.log(SMALL**-2.0)
        slopes = half[:, small] @ (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
        turning = rise_time(TIMES, alignment, 0.9 * alignment[..., -1])
        said = (
            "(a) Losses follow theory, equations 27 and 28 corrected, at sigma < 0.05: largest difference as a "
            "share of the initial loss."
        )
        yield Claim(said, "0", (0.0, 0.02), float(off.max()))
        said = "(b) The half time grows with log(1/sigma^2): its slope, at s = 1."
        yield Claim(said, "1", (0.9, 1.1), *mean_over(slopes), corrected=(0.45, 0.55))
        said = (
            "The time of phase I does not depend on sigma: exponent of sigma in the time at which the alignment "
            "has 90 % of its final value."
        )
        yield Claim(said, "0", (-0.05, 0.05), *exponent(SMALL, turning[:, small]))
        said = (
            f"(c) The kernel turns before the loss falls, sigma = {SIGMAS[0]:g}: share of the alignment's rise "
            "that is done when the loss has fallen by 5 %."
        )
        yield Claim(said, "about 1", (0.9, 1.1), *mean_over(turned_before(TIMES, losses[:, 0], alignment[:, 0], 0.05)))
        said = "(c) The final alignment is that of theory: difference."
        yield Claim(said, "0", (-0.01, 0.01), *mean_over(alignment[:, 0, -1] - _limit()))


def _problem(sigma: Array, seed: Array) -> Problem:
    first, task = jax.random.split(jax.random.key(seed))
    net = TwoLayerLinear(in_size=SIZE, width_size=WIDTH, scaling=Scaling.standard(sigma=sigma), key=first)
    return Problem(net, *whitened_task(SAMPLES, SIZE, task))


def _lanes(values: Values) -> np.ndarray:
    """Seeds, scales and times."""
    return values.transpose("seed", "sigma", "t").values


def _theory(sigmas: np.ndarray) -> list[float]:
    """The mean start has c_0 = q_0/2. Half the loss is left a moment before half of the target is reached."""
    found = []
    for sigma in sigmas:
        start = start_overlaps(WIDTH, sigma_u=sigma / WIDTH**0.5, sigma_w=sigma / SIZE**0.5).q_mean / 2
        found.append(float(escape_time(start=start, s=1.0, eta=jnp.ones(2))) + np.log(2**0.5 - 1) / 2)
    return found


def _limit() -> float:
    return float(spiked_kernel(1.0, jnp.ones(2)).alignment(SIZE))
