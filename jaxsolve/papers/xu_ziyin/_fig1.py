"""Figure 1 and appendix C: layers align from small starts and disalign from large ones, linear or not."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import GradientFlow
from ...losses import Logistic, MSE
from ...nets import Given, MLP, Scaling
from ...observe import layer_alignment, loss
from ...plot import COLORS, MARKERS
from ...sweeps import Zip
from ...theory import TwoLayerLine
from .._claim import Claim, Claims, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs


ACTIVATIONS = {"linear": "linear", "relu": "ReLU", "leaky_relu": "leaky ReLU", "sigmoid": "sigmoid", "swish": "swish"}
STARTS = {"alignment": (0.0, 1.0), "disalignment": (1.0, 0.3)}  # w = first number * u + second * other numbers
LOSSES = {"mse": MSE(), "cross_entropy": Logistic()}
LARGE = {"mse": 8.0, "cross_entropy": 30.0}  # f(x)/x at the parallel start of a linear network: beyond the target
WIDTHS = by_scale(300, 10_000)
SEEDS = by_scale(8, 10)
SAMPLES = 100  # v1, appendix B.1
TIMES = np.concatenate([[0.0], np.geomspace(0.01, 30.0, 24)])


class Figure(AbstractFigure):
    title = "Figure 1: alignment and disalignment of two layers, in theory (lines) and by gradient flow (points)"
    ours = (
        f"Scales of the starts, {SAMPLES} inputs on a line, targets y = x, labels sign(x) of which a fifth is flipped; "
        "width 300 in place of 10000 at small scale. Scales and labels of the paper are lost."
    )
    size = (6.8, 4.2)
    hours = by_scale(0.06, 4.0)

    def run(self, runs: Runs) -> Data:
        width = WIDTHS[runs.scale]
        # The kernel phase has weights of order 1 and a small output scale.
        phase = Zip(gamma=[1.0, width**-0.5], size=[width**-0.5, 1.0])
        starts = Zip(parallel=[start[0] for start in STARTS.values()], other=[start[1] for start in STARTS.values()])
        axes = [starts, phase, {"seed": range(SEEDS[runs.scale]), "loss_of": list(LOSSES)}]
        watched = [layer_alignment(), loss()]
        every, line = ([*axes, {"activation": names}] for names in (list(ACTIVATIONS), ["linear"]))
        flow = runs.sweep("flow", _Problems(width), every, GradientFlow(Tsit5(), rtol=1e-6), TIMES, observe=watched)
        theory = runs.sweep("theory", _Problems(width), line, TwoLayerLine(), TIMES, observe=watched)
        return {"flow": flow.assign(width=width), "theory": theory}

    def draw(self, figure: Picture, data: Data) -> None:
        grid = figure.subplots(2, 2, sharex=True, sharey="row")
        zeta, line = (data[of]["layer_alignment"].isel(pair=0, seed=0) for of in ("flow", "theory"))
        for row, start in enumerate(STARTS):
            for column, of in enumerate(LOSSES):
                ax = grid[row, column]
                points, theory = (curves.isel(parallel_other=row).sel(loss_of=of) for curves in (zeta, line))
                frozen = points.isel(gamma_size=1).sel(activation="relu")
                # Curves of some activations lie on each other: every one shows some of its times, in turn.
                for index, (name, label) in enumerate(ACTIVATIONS.items()):
                    curve = points.isel(gamma_size=0).sel(activation=name)
                    style = {"color": COLORS[index], "marker": MARKERS[index], "ms": 3.5, "mfc": "none"}
                    every = (index, len(ACTIVATIONS))
                    ax.plot(TIMES, curve, ls="", markevery=every, **style, label=label)
                learnt = theory.isel(gamma_size=0, activation=0)
                ax.plot(TIMES, learnt, color=COLORS[0], lw=1.2, label="linear, theory (21)")
                if start == "alignment":
                    ax.plot(TIMES, frozen, color="0.5", lw=1.0, ls=":", label="ReLU, kernel phase")
                ax.set_xscale("symlog", linthresh=0.01)
                ax.set_title(f"{start}, {of.replace('_', ' ')}", fontsize=9)
        for ax in grid[:, 0]:
            ax.set_ylabel(r"layer alignment $\zeta$")
        for ax in grid[1]:
            ax.set_xlabel("time $t$ (gradient-flow units)")
        legend_below(figure, grid[0, 0], 4)

    def claims(self, data: Data) -> Claims:
        zeta, line = data["flow"]["layer_alignment"].isel(pair=0), data["theory"]["layer_alignment"].isel(pair=0)
        said = "Linear networks follow equation (21): largest difference of zeta."
        yield Claim(said, "0", (0.0, 1e-4), float(np.abs(zeta.sel(activation=["linear"]) - line).max()))
        for row, start in enumerate(STARTS):
            for of in LOSSES:
                for name, label in ACTIVATIONS.items():
                    curve = zeta.isel(parallel_other=row, gamma_size=0).sel(loss_of=of, activation=name)
                    rises = start == "alignment"
                    change = mean_over(curve.isel(t=-1) - curve.isel(t=0))
                    said = f"{label}, {of.replace('_', ' ')}: zeta {'rises' if rises else 'falls'}. Its change."
                    yield Claim(said, *(POSITIVE if rises else NEGATIVE), *change)
        still = zeta.isel(gamma_size=1, parallel_other=0).sel(activation="relu", loss_of="mse")
        change = mean_over(np.abs(still.isel(t=-1) - still.isel(t=0)))
        order = 3 * float(data["flow"]["width"]) ** -0.5
        yield Claim("In the kernel phase zeta stays of order d^-1/2 (ReLU). |Change|.", "0", (0.0, order), *change)


class _Problems(NamedTuple):
    """Inputs on a line, and two layers whose weights are of one size."""

    width: int

    def __call__(
        self, parallel: Array, other: Array, gamma: Array, size: Array, seed: Array, loss_of: str, activation: str
    ) -> Problem:
        weights, inputs = jax.random.split(jax.random.key(seed))
        x = jax.random.normal(inputs, (SAMPLES, 1))
        x = x * jnp.sign(x[jnp.argmax(jnp.abs(x))])  # the longest input says which direction zeta calls positive
        u, h = size * jnp.where(parallel > 0, LARGE[loss_of] ** 0.5, 1.0) * jax.random.normal(weights, (2, self.width))
        init = Given([(parallel * u + other * h)[:, None], u[None, :]])
        scaling = Scaling(multiplier=jnp.ones(2), sigma=jnp.ones(2), eta=jnp.ones(2), gamma=gamma)
        net = MLP(
            in_size=1,
            out_size=1,
            width_size=self.width,
            depth=1,
            activation=activation,
            scaling=scaling,
            init=init,
            key=weights,
        )
        flipped = jnp.where(jnp.arange(SAMPLES) % 5 == 0, -1.0, 1.0)[:, None]
        y = x if loss_of == "mse" else flipped * jnp.sign(x)
        return Problem(net, x, y, loss=LOSSES[loss_of])
