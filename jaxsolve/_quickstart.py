"""The main job: which regime do networks train in, and does theory agree, on real handwritten digits."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from . import data, losses, nets, observe, plot, theory, until
from ._compare import Comparison, compare
from ._problem import Problem
from ._results import RESULT_NAMES
from .dynamics import GradientFlow
from .observe import Regime
from .sweeps import sweep, write


if TYPE_CHECKING:
    import xarray

DIGITS = (4, 9)
SAMPLES, COMPONENTS = 64, 10
NETWORKS = ("two-layer linear", "MLP")
WIDTHS = (8, 32)
SIGMAS = (0.5, 2.0)
GAMMAS = tuple(np.logspace(-2, 2, 9))
ETAS = tuple(np.logspace(-4, 5, 10))
FIRST, LAST = 0.1, 10.0  # the window of times that decides between frozen, unstable and the rest
LEARNED = 0.2  # a run stops when its loss is this fraction of the initial one


class Quickstart(NamedTuple):
    """What the quickstart found, and where it wrote it."""

    folder: Path
    summary: dict[str, Any]
    sweep: "xarray.Dataset"
    comparisons: dict[str, Comparison]

    def __repr__(self) -> str:
        lines = [f"jaxsolve quickstart: {self.summary['runs']} networks trained on handwritten {DIGITS[0]}s and {DIGITS[1]}s"]
        for network, counts in self.summary["cells_per_regime"].items():
            lines.append(f"  {network}: " + ", ".join(f"{count} {regime}" for regime, count in counts.items()))
        agreement = self.summary["agreement_with_theory"]
        lines.append(f"  theory's regime is the measured one in {agreement:.0%} of the two-layer linear cells")
        error = self.summary["largest_relative_error_theory_vs_flow"]
        lines.append(f"  closed form against gradient flow: largest relative error {error:.1e}")
        lines.append(f"  {self.summary['wall_seconds']:.0f} s; figures, data and numbers in {self.folder}/")
        return "\n".join(lines)


def quickstart(
    folder: str | os.PathLike = "quickstart", *, seeds: int = 2, progress: bool = True
) -> Quickstart:
    """Sweeps (network, width, sigma, gamma, eta) on real digits, classifies every cell, and checks theory.

    Writes `phase_diagram.png`, `theory_vs_flow.png`, `sweep.zarr` and `summary.json` into `folder`; earlier ones are
    replaced. Precision is that of the session: the command line uses float64.

    Arguments:
        folder: where to write.
        seeds: networks per cell; a cell's regime is that of its median half-loss time and kernel change.
        progress: whether to show a progress bar on standard error.

    Raises:
        ValueError: seeds is not an integer >= 1.
    """
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ValueError(f"seeds must be an integer >= 1, got {seeds!r}")
    start = time.perf_counter()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    dataset = data.digits(task=DIGITS, n_train=SAMPLES, pca=COMPONENTS, key=jr.key(0))
    line = _on_a_line(*dataset.train)
    swept = _sweep(dataset.train, line, seeds, progress)
    curves = _theory_vs_flow(line)
    predicted = _predict(line)

    _write_store(swept, folder / "sweep.zarr")
    _draw_phases(swept, predicted, folder / "phase_diagram.png")
    _draw_curves(curves, folder / "theory_vs_flow.png")
    summary = _summarise(swept, predicted, curves, time.perf_counter() - start)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return Quickstart(folder, summary, swept, curves)


def _on_a_line(x: Float[Array, "n in"], y: Float[Array, "n 1"]) -> tuple[Array, Array]:
    """The digits projected on the direction that best predicts their class."""
    direction = jnp.linalg.lstsq(x, y[:, 0])[0]
    direction = direction / jnp.linalg.norm(direction)
    return (x @ direction)[:, None] * direction[None, :], y


# --- the sweep ---------------------------------------------------------------------------------------------------------


def _sweep(digits: tuple[Array, Array], line: tuple[Array, Array], seeds: int, progress: bool) -> "xarray.Dataset":
    def problem(network, width, sigma, gamma, eta, seed):
        key = jr.key(seed)
        if network == NETWORKS[0]:
            scaling = nets.Scaling.ntk(gamma, sigma=sigma, eta=eta)
            net = nets.TwoLayerLinear(COMPONENTS, width, scaling=scaling, key=key)
            return Problem(net, *line, centered=True)
        scaling = nets.Scaling.ntk(gamma, sigma=sigma, eta=eta, gain=True)
        net = nets.MLP(COMPONENTS, width, 2, 1, nets.softplus(beta=5.0), scaling=scaling, key=key)
        return Problem(net, *digits, centered=True)

    ts = np.concatenate([[0.0], np.geomspace(FIRST, LAST, 13)])
    axes = {
        "network": list(NETWORKS),
        "width": list(WIDTHS),
        "sigma": list(SIGMAS),
        "gamma": list(GAMMAS),
        "eta": list(ETAS),
        "seed": range(seeds),
    }
    flow = GradientFlow(rtol=1e-4, atol=1e-7, until=until.loss_fraction(LEARNED), max_steps=5000)
    swept = sweep(
        problem, axes, flow, ts, observe=[observe.loss(), observe.kernel_change()], progress=progress
    )
    half = observe.half_loss_time(ts, swept["loss"].values)
    change = swept["kernel_change"].values[..., -1]
    dims = swept["result"].dims
    names = {"flag_values": [int(r) for r in Regime], "flag_meanings": " ".join(r.name.lower() for r in Regime)}
    swept["half_loss_time"] = dims, half, {"units": "gradient-flow time"}
    swept["regime"] = dims[:-1], _regime(half, change), names
    return swept


def _regime(half: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The regime of every cell, from its median seed."""
    ts = np.array([0.0, FIRST, LAST])
    middle, moved = np.median(half, axis=-1), np.median(change, axis=-1)
    return observe.classify(middle, moved, ts).astype(np.int8)


# --- theory ------------------------------------------------------------------------------------------------------------


class Prediction(NamedTuple):
    """What theory says of a typical start of a two-layer linear network, on a grid of (eta, gamma)."""

    gammas: np.ndarray
    etas: np.ndarray
    half: np.ndarray  # half-loss time, shape (eta, gamma)
    change: np.ndarray  # relative kernel change when learned


def _predict(line: tuple[Array, Array]) -> dict[tuple[int, float], Prediction]:
    """The closed form for every (width, sigma), at the mean of P and Q over starts (u.v = 0, |a| = |b|)."""
    gammas, etas = np.logspace(-2.25, 2.25, 91), np.logspace(-4.5, 5.5, 101)
    return {(width, sigma): _predict_one(line, width, sigma, gammas, etas) for width in WIDTHS for sigma in SIGMAS}


def _predict_one(line, width: int, sigma: float, gammas: np.ndarray, etas: np.ndarray) -> Prediction:
    x, y = (np.asarray(array, float) for array in line)
    rho = np.sqrt(np.mean(np.sum(x**2, axis=1)))
    along = x @ (x[0] / np.linalg.norm(x[0]))
    target = abs(np.mean(along * y[:, 0])) / rho
    floor = np.mean(y**2) - target**2  # twice the loss that no linear function of the line can remove
    eta, gamma = np.meshgrid(etas, gammas, indexing="ij")
    k = jnp.asarray(gamma * eta * rho / np.sqrt(COMPONENTS * width))
    size = jnp.asarray(width * sigma**2 / eta)
    reduced = theory.ReducedLine.from_pq(size, size, jnp.zeros_like(size), k, jnp.full_like(size, target))

    half = _half_time(reduced, 0.5 * (floor + target**2) - floor)
    f_learned = target - np.sqrt(max(LEARNED * (floor + target**2) - floor, 0.0))
    pq = np.asarray(k * size)
    return Prediction(gammas, etas, np.asarray(half), np.sqrt((f_learned / pq) ** 2 + 1) - 1)


@jax.jit
def _half_time(reduced: theory.ReducedLine, squared_residual: float) -> Array:
    """When the squared residual falls to this, by bisection in the time scale of the flow."""

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = reduced.residual(middle) ** 2 > squared_residual
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    # The residual falls at least as fast as at the rate k R from where it starts, up to a factor.
    latest = 100 / reduced.rate
    return jax.lax.fori_loop(0, 60, halve, (jnp.zeros_like(latest), latest))[1]


def _theory_vs_flow(line: tuple[Array, Array]) -> dict[str, Comparison]:
    """Three starts on the projected digits, by the closed form and by gradient flow in the weights."""
    x, _ = line
    direction = x[0] / jnp.linalg.norm(x[0])
    along = jnp.where(jnp.mean(line[1][:, 0] * (x @ direction)) > 0, 1.0, -1.0) * direction
    width = WIDTHS[1]
    starts = {
        "kernel": (nets.Scaling.ntk(10.0, eta=0.01), nets.Gaussian()),
        "alignment": (nets.Scaling.ntk(1.0, sigma=0.3, eta=4.0), nets.Gaussian()),
        "disalignment": (nets.Scaling.ntk(1.0, sigma=1.2), nets.NearParallel(0.3, along)),
    }
    fine = x.dtype == jnp.float64
    rtol, atol = (1e-10, 1e-13) if fine else (1e-5, 1e-8)
    flow = GradientFlow(diffrax.Dopri8(), rtol=rtol, atol=atol, land_on_ts=True)
    closed = theory.TwoLayerLine()
    ts = np.geomspace(1e-2, 1e2, 49)
    watched = [observe.loss(), observe.outputs(), observe.layer_alignment(), observe.kernel_change()]
    comparisons = {}
    for name, (scaling, init) in starts.items():
        net = nets.TwoLayerLinear(COMPONENTS, width, scaling=scaling, init=init, key=jr.key(3))
        problem = Problem(net, *line, loss=losses.MSE())
        comparisons[name] = compare(problem, [closed, flow], ts, observe=watched)
    return comparisons


def _largest_error(curves: dict[str, Comparison]) -> float:
    return max(float(error) for cmp in curves.values() for errors in cmp.errors.values() for error in errors.values())


# --- what is written ---------------------------------------------------------------------------------------------------


def _write_store(swept: "xarray.Dataset", path: Path) -> None:
    if (path / "zarr.json").exists():
        shutil.rmtree(path)
    write(swept, path)


def _boundaries(predicted: Prediction) -> list[plot.Boundary]:
    p = predicted
    inside = (p.half > FIRST) & (p.half < LAST)
    change = np.where(inside, np.log(p.change / observe.KERNEL_CHANGE), np.nan)
    return [
        plot.Boundary("theory: frozen", p.gammas, p.etas, np.log(p.half / LAST), "dashed"),
        plot.Boundary("theory: unstable", p.gammas, p.etas, np.log(p.half / FIRST), "dotted"),
        plot.Boundary("theory: kernel | feature", p.gammas, p.etas, change, "solid"),
    ]


def _draw_phases(swept: "xarray.Dataset", predicted: dict[tuple[int, float], Prediction], path: Path) -> None:
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


def _draw_curves(curves: dict[str, Comparison], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(6.6, 4.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).ravel()
    shown = (
        ("loss", "training loss $L$"),
        ("layer_alignment", r"layer alignment $\zeta$"),
        ("kernel_change", r"kernel change $|K-K_0|/|K_0|$"),
    )
    for index, (start, cmp) in enumerate(curves.items()):
        colour, marker = plot.COLOURS[index], plot.MARKERS[index]
        exact, flow = cmp.trajectories.values()
        ts = np.asarray(exact.ts)
        for ax, (name, _) in zip(panels[:3], shown, strict=True):
            ax.plot(ts, np.ravel(exact[name]), color=colour, lw=1.2)
            ax.plot(ts[::3], np.ravel(flow[name])[::3], ls="", marker=marker, ms=4, mfc="none", mec=colour)
        reference = np.asarray(exact["outputs"])
        error = np.max(np.abs(np.asarray(flow["outputs"]) - reference), axis=(1, 2)) / np.max(np.abs(reference))
        panels[3].plot(ts, np.where(error > 0, error, np.nan), color=colour, marker=marker, ms=3, lw=0.8)
    for ax, (_, label) in zip(panels[:3], shown, strict=True):
        ax.set(xscale="log", ylabel=label)
    panels[0].set_yscale("log")
    panels[2].set_yscale("log")
    panels[3].set(xscale="log", yscale="log", ylabel="relative error of $f$")
    for ax in panels[2:]:
        ax.set_xlabel("time $t$ (gradient-flow units)")
    starts = [
        Line2D([], [], color=plot.COLOURS[i], marker=plot.MARKERS[i], mfc="none", ls="", label=name)
        for i, name in enumerate(curves)
    ]
    kinds = [
        Line2D([], [], color="black", lw=1.2, label="closed form"),
        Line2D([], [], color="black", marker="o", mfc="none", ls="", label="gradient flow"),
    ]
    figure.legend(handles=starts + kinds, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=200)


def _summarise(
    swept: "xarray.Dataset",
    predicted: dict[tuple[int, float], Prediction],
    curves: dict[str, Comparison],
    wall: float,
) -> dict[str, Any]:
    cells = {
        network: {r.label: int(np.sum(swept["regime"].sel(network=network).values == r)) for r in Regime}
        for network in NETWORKS
    }
    results = {name: int(np.sum(swept["result"].values == code)) for code, name in enumerate(RESULT_NAMES)}
    return {
        "digits": list(DIGITS),
        "training_samples": SAMPLES,
        "runs": int(swept["result"].size),
        "results": {name: count for name, count in results.items() if count},
        "cells_per_regime": cells,
        "agreement_with_theory": _agreement(swept, predicted),
        "largest_relative_error_theory_vs_flow": _largest_error(curves),
        "errors_theory_vs_flow": {
            start: {key: float(value) for errors in cmp.errors.values() for key, value in errors.items()}
            for start, cmp in curves.items()
        },
        "dtype": str(next(iter(curves.values())).trajectories["TwoLayerLine"].ts.dtype),
        "device": jax.devices()[0].device_kind,
        "versions": swept.attrs["versions"],
        "wall_seconds": round(wall, 1),
    }


def _agreement(swept: "xarray.Dataset", predicted: dict[tuple[int, float], Prediction]) -> float:
    """The share of two-layer linear cells whose measured regime is the one that theory predicts for a typical start."""
    same = []
    for (width, sigma), p in predicted.items():
        nearest = np.ix_(_nearest(p.etas, ETAS), _nearest(p.gammas, GAMMAS))
        expected = observe.classify(p.half[nearest], p.change[nearest], np.array([0.0, FIRST, LAST]))
        cells = swept["regime"].sel(network=NETWORKS[0], width=width, sigma=sigma).transpose("eta", "gamma")
        same.append(cells.values == expected)
    return float(np.mean(same))


def _nearest(grid: np.ndarray, values: Sequence[float]) -> np.ndarray:
    return np.argmin(np.abs(np.log(grid)[None, :] - np.log(np.asarray(values))[:, None]), axis=1)
