"""Figure 3: losses, norms, alignment and kernel distance of one neuron at seven relative scales."""

from math import inf, nan
from typing import Any

import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...kernels import distance_matrix
from ...observe import kernel, kernel_distance
from ...theory import SingleNeuronFlow
from .._claim import ABOVE_ONE, Claim, Claims, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._kunin_neuron import DELTAS, REGIMES, WATCHED, WHITENED


TIMES = np.linspace(0, 20, 201)
PANELS = {"loss": "loss", "mu": r"norm $|\beta|$", "phi": r"alignment $\phi$", "kernel_distance": "kernel distance"}


class Figure(AbstractFigure):
    title = "Figure 3: loss, norm, alignment and kernel distance of one neuron, in theory (lines) and by flow (points)"
    ours = "The maps of the kernel distance between any two times. Distances by the corrected formula."
    size = (7.2, 4.4)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        watched = [*WATCHED, kernel_distance(), kernel()]
        axes, flow = {"delta": np.array(DELTAS)}, GradientFlow(Tsit5(), rtol=1e-8, atol=1e-10)
        theory = runs.sweep("theory", WHITENED, axes, SingleNeuronFlow(), TIMES, observe=watched)
        return {"theory": theory, "flow": runs.sweep("flow", WHITENED, axes, flow, TIMES, observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        from matplotlib import colormaps

        split: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        top, bottom = split
        curves = {name: _curves(runs) for name, runs in data.items()}
        colors = colormaps["cividis"](np.linspace(0, 0.92, len(DELTAS)))
        panels = top.subplots(1, 4)
        for ax, (name, label) in zip(panels, PANELS.items(), strict=True):
            for delta, color in zip(DELTAS, colors, strict=True):
                size = 2 if name == "loss" else 1  # theirs is a sum over both samples, ours their average
                ax.plot(TIMES, size * curves["theory"][name].sel(delta=delta), color=color, lw=1.1, label=f"{delta:g}")
                points = size * curves["flow"][name].sel(delta=delta)[::20]
                ax.plot(TIMES[::20], points, ls="", marker="o", ms=2.5, mfc="none", color=color)
            ax.set_xlabel("time $t$")
            ax.set_title(label, fontsize=9)
        top.legend(
            *panels[0].get_legend_handles_labels(),
            title=r"$\delta$",
            loc="outside right center",
            frameon=False,
            fontsize=8,
        )
        axes = bottom.subplots(1, 3, sharey=True)
        for ax, (delta, regime) in zip(axes, REGIMES.items(), strict=True):
            kernels = data["theory"]["kernel"].sel(delta=delta).values[::4]
            ax.pcolormesh(TIMES[::4], TIMES[::4], _between(kernels), cmap="cividis", vmin=0, vmax=1)
            ax.set_title(rf"$S(t_1, t_2)$, {regime}, $\delta = {delta:g}$", fontsize=9)
            ax.set_xlabel("$t_1$")
        axes[0].set_ylabel("$t_2$")
        bottom.colorbar(axes[0].collections[0], ax=axes)

    def claims(self, data: Data) -> Claims:
        theory, flow = (_curves(data[name]) for name in ("theory", "flow"))
        kernel_ends = theory["kernel_distance"].isel(t=-1)
        late = {delta: _half_time(theory["kernel_distance"].sel(delta=delta)) for delta in DELTAS}
        fit = {delta: _half_time(theory["loss"].sel(delta=delta)) for delta in DELTAS}
        between = _between(data["theory"]["kernel"].sel(delta=-4.0).values)
        middle = TIMES >= 0.5 * late[-4.0]
        differ = [float(np.abs(theory[name] - flow[name]).max()) for name in PANELS]
        yield Claim("Theory is gradient flow in all four panels: largest difference.", "0", (0.0, 1e-5), max(differ))
        said = "Upstream the kernel stays: its distance at the end, delta = 4."
        yield Claim(said, "about 0", (0.0, 0.05), float(kernel_ends.sel(delta=4.0)))
        said = "Balanced the kernel moves: its distance at the end."
        yield Claim(said, "order 1", (0.1, inf), float(kernel_ends.sel(delta=0.0)))
        said = "The smaller delta is, the farther the kernel moves in the end: largest step to the next delta."
        yield Claim(said, *NEGATIVE, float(np.diff(kernel_ends).max()))
        said = "Balanced, fit and kernel move together: half-time of the kernel over that of the loss."
        yield Claim(said, "of order 1", (0.33, 3.0), late[0.0] / fit[0.0])
        said = "Downstream, the kernel moves after a delay: the same ratio at delta = -4."
        yield Claim(said, *ABOVE_ONE, late[-4.0] / fit[-4.0])
        said = "The delay grows with |delta|: half-time of the kernel at delta = -4 over that at -2."
        yield Claim(said, *ABOVE_ONE, late[-4.0] / late[-2.0])
        said = "Downstream, the kernel waits as the loss falls: S from the start to half of the kernel's half-time."
        yield Claim(said, "about 0", (0.0, 0.1), float(between[0, middle][0] if middle.any() else nan))


def _curves(runs):
    """The four panels, with the axes delta and t."""
    mu = runs["neuron_radius"].isel(neuron=0)
    along = runs["neuron_direction"].isel(neuron=0, input=1)  # beta_* = (0, 1)
    return runs.assign(mu=np.abs(mu), phi=along)[list(PANELS)].transpose("delta", "t")


def _between(kernels: np.ndarray) -> np.ndarray:
    return np.asarray(distance_matrix(jnp.asarray(kernels)))


def _half_time(curve) -> float:
    """The time at which a curve first is half way from its start to its end; NaN for one that ends where it began."""
    values = np.abs(np.asarray(curve) - float(curve[0]))
    return float(TIMES[int(np.argmax(values >= values[-1] / 2))]) if values[-1] > 0 else nan
