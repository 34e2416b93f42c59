"""Figure D.3: how loss, kernel alignment and the first layer of linear networks depend on depth."""

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...nets import DeepLinear, Scaling
from ...observe import half_loss_time, kernel_alignment, layer_cosine, loss
from ...plot import COLORS
from ...theory import spiked_kernel
from .._claim import Claim, Claims, exponent, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._silent import rise_time, TIME, whitened_task


SIZE, WIDTH, SAMPLES = 30, 50, 60
MATRICES = [2, 3, 4]
SIGMAS = [0.05, 0.1]
SEEDS = by_scale(3, 16)
TIMES = np.concatenate([[0.0], np.geomspace(0.3, 2e3, 100)])


class Figure(AbstractFigure):
    title = "Figure D.3: loss, kernel alignment and alignment of the first layer at three depths of linear networks"
    ours = f"{SIZE} inputs, {WIDTH} hidden units, {SAMPLES} whitened samples; the paper's sizes and scales are lost."
    size = (7.0, 2.7)
    hours = by_scale(0.025, 0.1)

    def run(self, runs: Runs) -> Data:
        axes = {"matrices": MATRICES, "sigma": np.array(SIGMAS), "seed": range(SEEDS[runs.scale])}
        watched, flow = [loss(), kernel_alignment(), layer_cosine()], GradientFlow(Tsit5(), rtol=1e-5)
        return {"deep": runs.sweep("deep", _problem, axes, flow, TIMES, observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3)
        names = {"loss": "(a) loss / initial loss", "kernel_alignment": "(b) kernel alignment"}
        names["layer_cosine_0"] = r"(c) cosine of $W_1^\top W_1$ with $\beta\beta^\top$"
        for ax, (name, title) in zip(panels, names.items(), strict=True):
            for matrices, color in zip(MATRICES, COLORS, strict=False):
                curve = data["deep"][name].isel(sigma=-1, seed=0).sel(matrices=matrices)
                ax.plot(TIMES, curve / curve[0] if name == "loss" else curve, color=color, label=rf"$L = {matrices}$")
                if name == "kernel_alignment":
                    ax.axhline(_limit(matrices), color=color, lw=0.8, ls=":")
            ax.set(xscale="log", xlim=(0.3, 2e3), xlabel=TIME)
            ax.set_title(title, fontsize=9)
        legend_below(figure, panels[0], 4)

    def claims(self, data: Data) -> Claims:
        deep = data["deep"].transpose("matrices", "seed", "sigma", "t", ...)
        losses = deep["loss"].values
        half = half_loss_time(TIMES, losses)
        for index, matrices in enumerate(MATRICES):
            if matrices > 2:
                said = f"(a) L = {matrices}: exponent of sigma in the time to half the loss."
                accepted = (2 - matrices - 0.25 * (matrices - 2), 2 - matrices + 0.25 * (matrices - 2))
                yield Claim(said, f"{2 - matrices}", accepted, *exponent(SIGMAS, half[index]))
        early, late = (rise_time(TIMES, 1 - losses / losses[..., :1], fall) for fall in (0.1, 0.9))
        widths = ((late - early) / half)[..., -1]
        steps = [mean_over(after - before) for before, after in zip(widths, widths[1:], strict=False)]
        said = "(a) Depth sharpens the fall of the loss: its width over its half time, largest step with L."
        yield Claim(said, *NEGATIVE, *max(steps, key=sum))
        ends = deep["kernel_alignment"].values[..., 0, -1]
        steps = [mean_over(after - before) for before, after in zip(ends, ends[1:], strict=False)]
        said = "(b) The final alignment grows with depth: smallest step from one L to the next."
        yield Claim(said, *POSITIVE, *min(steps, key=lambda one: one.value - one.uncertainty))
        for index, matrices in enumerate(MATRICES):
            off = mean_over(ends[index] - _limit(matrices))
            said = f"(b) L = {matrices}: final alignment less that of a balanced network."
            yield Claim(said, "0", (-0.02, 0.02), *off)
        far = float(spiked_kernel(1.0, jnp.ones(1000)).alignment(SIZE))
        yield Claim("(b) It approaches 1: value for 1000 layers, by theory alone.", "1", (0.99, 1.0), far)
        cosine = deep["layer_cosine_0"].values[..., 0, -1]
        said = "(c) The first layer comes to lie on beta at every depth: smallest final cosine over depths."
        yield Claim(said, "1", (0.95, 1.001), *min(map(mean_over, cosine), key=lambda one: one.value))


def _limit(matrices: int) -> float:
    return float(spiked_kernel(1.0, jnp.ones(matrices)).alignment(SIZE))


def _problem(matrices: int, sigma: Array, seed: Array) -> Problem:
    first, task = jax.random.split(jax.random.key(seed))
    net = DeepLinear(
        in_size=SIZE, width_size=WIDTH, depth=matrices - 1, scaling=Scaling.standard(sigma=sigma), key=first
    )
    return Problem(net, *whitened_task(SAMPLES, SIZE, task))
