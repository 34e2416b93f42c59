"""The two figures of the quickstart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from .. import observe, plot
from .._compare import Comparison
from ._measure import ETAS, FIRST, GAMMAS, LAST, NETWORKS, SIGMAS, WIDTHS
from ._theory import Prediction


if TYPE_CHECKING:
    import xarray


def _boundaries(predicted: Prediction) -> list[plot.Boundary]:
    p = predicted
    inside = (p.half > FIRST) & (p.half < LAST)
    change = np.where(inside, np.log(p.change / observe.KERNEL_REGIME_LIMIT), np.nan)
    return [
        plot.Boundary("theory: frozen", p.gammas, p.etas, np.log(p.half / LAST), "dashed"),
        plot.Boundary("theory: unstable", p.gammas, p.etas, np.log(p.half / FIRST), "dotted"),
        plot.Boundary("theory: kernel | feature", p.gammas, p.etas, change, "solid"),
    ]


def draw_phases(swept: "xarray.Dataset", predicted: dict[tuple[int, float], Prediction], path: Path) -> None:
    """Draws the measured regimes of every network, with theory's boundaries over those of the two-layer linear ones."""
    from matplotlib.figure import Figure

    columns = [(width, sigma) for width in WIDTHS for sigma in SIGMAS]
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    grid = figure.subplots(len(NETWORKS), len(columns), sharex=True, sharey=True)
    handles: Sequence[Any] = ()
    for row, network in enumerate(NETWORKS):
        for column, (width, sigma) in enumerate(columns):
            ax = grid[row, column]
            cells = swept["regime"].sel(network=network, width=width, sigma=sigma).transpose("eta", "gamma")
            boundaries = _boundaries(predicted[width, sigma]) if network == NETWORKS[0] else []
            handles = handles or plot.phase_legend_handles(boundaries)
            plot.phase_diagram(GAMMAS, ETAS, cells.values, boundaries=boundaries, ax=ax)
            ax.set(xlim=(GAMMAS[0] / 1.7, GAMMAS[-1] * 1.7), ylim=(ETAS[0] / 3, ETAS[-1] * 3))
            ax.set_xticks([1e-2, 1, 1e2])
            ax.set_title(rf"{network}, $h={width}$, $\sigma={sigma:g}$", fontsize=7)
            ax.tick_params(labelsize=7)
    for ax in grid[-1]:
        ax.set_xlabel(r"output scale $\gamma$", fontsize=8)
    for ax in grid[:, 0]:
        ax.set_ylabel(r"learning rate $\eta$", fontsize=8)
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7, frameon=False)
    figure.savefig(path, dpi=200)


def draw_curves(curves: dict[str, Comparison], path: Path) -> None:
    """Draws the closed form against gradient flow from three starts, and their difference."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.6, 4.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).ravel()
    shown = (
        ("loss", "training loss $L$"),
        ("layer_alignment", r"layer alignment $\zeta$"),
        ("kernel_change", r"kernel change $|K-K_0|/|K_0|$"),
    )
    for index, cmp in enumerate(curves.values()):
        color, marker = plot.COLORS[index], plot.MARKERS[index]
        exact, flow = cmp.trajectories.values()
        ts = np.asarray(exact.ts)
        for ax, (name, _) in zip(panels[:3], shown, strict=True):
            ax.plot(ts, np.ravel(exact[name]), color=color, lw=1.2)
            ax.plot(ts[::3], np.ravel(flow[name])[::3], ls="", marker=marker, ms=4, mfc="none", mec=color)
        reference = np.asarray(exact["outputs"])
        error = np.max(np.abs(np.asarray(flow["outputs"]) - reference), axis=(1, 2)) / np.max(np.abs(reference))
        panels[3].plot(ts, np.where(error > 0, error, np.nan), color=color, marker=marker, ms=3, lw=0.8)
    for ax, (_, label) in zip(panels[:3], shown, strict=True):
        ax.set(xscale="log", ylabel=label)
    panels[0].set_yscale("log")
    panels[2].set_yscale("log")
    panels[3].set(xscale="log", yscale="log", ylabel="relative error of $f$")
    for ax in panels[2:]:
        ax.set_xlabel("time $t$ (gradient-flow units)")
    starts = [
        Line2D([], [], color=plot.COLORS[i], marker=plot.MARKERS[i], mfc="none", ls="", label=name)
        for i, name in enumerate(curves)
    ]
    kinds = [
        Line2D([], [], color="black", lw=1.2, label="closed form"),
        Line2D([], [], color="black", marker="o", mfc="none", ls="", label="gradient flow"),
    ]
    figure.legend(handles=starts + kinds, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=200)
