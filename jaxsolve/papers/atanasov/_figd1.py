"""Figure D.1: a faster first layer makes the loss fall faster, and the plain kernel's spike stronger."""

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem, Quantity, View
from ...dynamics import GradientFlow
from ...nets import Scaling, TwoLayerLinear
from ...observe import loss, Observable
from ...observe._internal import least_map
from ...plot import COLORS
from ...theory import plain_spiked_kernel
from .._claim import bars, Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._silent import TIME, whitened_task


SIZE, WIDTH, SAMPLES, SIGMA = 30, 50, 60, 1e-3
RATES = [0.25, 1.0, 4.0, 16.0]  # of the first layer; that of the second is 1
SEEDS = by_scale(4, 16)
TIMES = np.linspace(0.0, 25.0, 251)


def _spike(view: View) -> Array:
    """A/B of x^T (W^T W + |a|^2) x': what the direction of the target has above the others."""
    beta = least_map(view.problem)[0]
    first, last = view.params.weights
    along = jnp.sum((first @ beta) ** 2) / jnp.sum(beta**2)
    across = (jnp.sum(first**2) - along) / (SIZE - 1)
    return (along - across) / (jnp.sum(last**2) + across)


SPIKE = Observable("spike", _spike, Quantity.PARAMS)


class Figure(AbstractFigure):
    title = "Figure D.1: two-layer linear networks whose first layer has a rate of its own"
    ours = (
        f"{SIZE} inputs, {WIDTH} hidden units, sigma = {SIGMA:g}, the rates: the paper's are lost. The spike is that "
        "of the kernel without rates; that of the kernel which drives the flow does not depend on them."
    )
    size = (6.8, 2.6)
    hours = by_scale(0.006, 0.05)

    def run(self, runs: Runs) -> Data:
        axes = {"rate": np.array(RATES), "seed": range(SEEDS[runs.scale])}
        flow = GradientFlow(Tsit5(), rtol=1e-6)
        return {"runs": runs.sweep("runs", _problem, axes, flow, TIMES, observe=[loss(), SPIKE])}

    def draw(self, figure: Picture, data: Data) -> None:
        a, b = figure.subplots(1, 2)
        for rate, color in zip(RATES, COLORS, strict=False):
            curve = data["runs"]["loss"].sel(rate=rate).isel(seed=0)
            a.plot(TIMES, curve / curve[0], color=color, label=rf"$\eta_1/\eta_2 = {rate:g}$")
        a.set(xlabel=TIME, ylabel="loss / initial loss", title="(a)")
        ends = data["runs"]["spike"].isel(t=-1)
        b.errorbar(RATES, *bars(ends), ls="", marker="o", ms=4, mfc="none", label="flow")
        b.plot(RATES, _theory(), "k--", lw=0.9, label="theory")
        b.set(xscale="log", yscale="log", xlabel=r"$\eta_1/\eta_2$", ylabel="spike $A/B$", title="(b)")
        for ax in (a, b):
            ax.legend(frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        runs = data["runs"].transpose("seed", "rate", "t")
        losses, spikes = runs["loss"].values, runs["spike"].values[..., -1]
        slopes = -(np.diff(losses) / np.diff(TIMES)).min(-1) / losses[..., 0]
        said = "(a) A faster first layer steepens the fall of the loss: exponent of eta_1 in the steepest slope."
        yield Claim(said, *POSITIVE, *exponent(RATES, slopes))
        said = "(b) The spike grows linearly: exponent of eta_1/eta_2."
        yield Claim(said, "1", (0.95, 1.05), *exponent(RATES, spikes))
        said = "(b) The spike over that of equation 37, mean over rates."
        yield Claim(said, "1", (0.95, 1.05), *mean_over((spikes / _theory()).mean(-1)))


def _theory() -> np.ndarray:
    return np.array([float(plain_spiked_kernel(1.0, jnp.array([rate, 1.0])).ratio) for rate in RATES])


def _problem(rate: Array, seed: Array) -> Problem:
    first, task = jax.random.split(jax.random.key(seed))
    sigma = SIGMA * jnp.array([SIZE, WIDTH], rate.dtype) ** -0.5
    scaling = Scaling(multiplier=jnp.ones(2), sigma=sigma, eta=jnp.stack([rate, jnp.ones_like(rate)]))
    net = TwoLayerLinear(in_size=SIZE, width_size=WIDTH, scaling=scaling, key=first)
    return Problem(net, *whitened_task(SAMPLES, SIZE, task))
