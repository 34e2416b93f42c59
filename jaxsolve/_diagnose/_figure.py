"""Figures of diagnoses and checks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TYPE_CHECKING

import numpy as np

from .._extras import needs
from ..plot import axis_label, COLORS, MARKERS
from ._fit import have_logarithms, mean_losses
from ._thresholds import CRITICAL, KERNEL_CHANGE, NONLINEARITY, STABILITY


if TYPE_CHECKING:
    from matplotlib.figure import Figure


Arrays = Mapping[str, np.ndarray]


def _blank(width: float, height: float) -> "Figure":
    """A figure without panels, of the given size in inches."""
    with needs("plot", "a picture"):
        import matplotlib.pyplot as plt
    # Made by pyplot, which lets notebooks show figures, and closed, so that only the caller holds it.
    figure = plt.figure(figsize=(width, height), layout="constrained")
    plt.close(figure)
    return figure


def draw(title: str, history: Arrays, groups: Sequence[str], by_group: Arrays, by_scale: Arrays) -> "Figure":
    """Six panels of a diagnosis: loss, movement, stability, layers, their kernels, and the multiplier."""
    rows = max(0.0, len(groups) - 6) * 0.16  # space for many bars
    figure = _blank(6.8, 7.0 + rows)
    heights = [1, 1, 1 + rows / 2.2]
    axes = figure.subplots(3, 2, gridspec_kw={"height_ratios": heights})
    _loss(axes[0, 0], history)
    _movement(axes[0, 1], history)
    _stability(axes[1, 0], history)
    _multiplier(axes[1, 1], by_scale)
    _updates(axes[2, 0], groups, by_group["update"])
    _shares(axes[2, 1], by_group["kernel_share_start"], by_group["kernel_share"])
    figure.suptitle(f"Regime: {title}", fontsize=11)
    for ax in axes.flat:
        ax.tick_params(labelsize=8)
        ax.xaxis.label.set_size(9)
        ax.yaxis.label.set_size(9)
        ax.title.set_size(9)
        ax.tick_params(axis="y", which="minor", labelleft=False)  # labels between powers of ten crowd the axis
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def draw_history(steps: np.ndarray, panels: Sequence[tuple[str, str, np.ndarray, Sequence[str]]]) -> "Figure":
    """One panel per observable, given as its name, unit, values and names of columns."""
    columns = 1 if len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    figure = _blank(3.4 * columns, 2.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax, (name, unit, values, labels) in zip(axes.flat, panels, strict=False):
        lines = values[:, None] if values.ndim == 1 else values
        for k, line in enumerate(lines.T):
            style = {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]}
            ax.plot(steps, line, ms=3, lw=1.2, label=labels[k] if labels else None, **style)
        limit = _LIMITS.get(name)
        if limit is not None:
            ax.axhline(limit, color="0.35", ls="--", lw=1)
        known = lines[np.isfinite(lines)]
        if known.size and known.min() >= 0 and known.max() > 10 * np.median(known) > 0:
            ax.set_yscale("symlog", linthresh=float(known[known > 0].min()))
        elif known.size and known.min() >= 0:
            ax.set_ylim(bottom=0)
        ax.set(xlabel="step", ylabel=axis_label(name, unit))
        ax.set_xlim(0, max(1.03 * float(steps[-1]), 1))  # shared: some panels have no value at first
        ax.tick_params(labelsize=8)
        ax.xaxis.label.set_size(9)
        ax.yaxis.label.set_size(9)
        ax.spines[["top", "right"]].set_visible(False)
        if labels:
            ax.legend(frameon=False, fontsize=7, handlelength=1.5)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    return figure


# Limits, drawn as dashed lines.
_LIMITS = {"kernel_change": KERNEL_CHANGE.value, "nonlinearity": NONLINEARITY.value, "stability": STABILITY.value,
           "critical_rate": CRITICAL.value}  # fmt: skip


def _steps(ax: Any, history: Arrays) -> np.ndarray:
    """The steps; sets a logarithmic axis that includes 0."""
    steps = history["step"]
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(0, max(float(steps[-1]) * 1.15, 1))
    ticks = [0, *(10**k for k in range(7) if 10**k <= steps[-1])]
    ax.set_xticks(ticks, ["0", *(f"$10^{k}$" if k > 1 else str(10**k) for k in range(len(ticks) - 1))])
    ax.minorticks_off()
    ax.set_xlabel("step")
    return steps


def _line(ax: Any, x: np.ndarray, y: np.ndarray, index: int, label: str, **style: Any) -> None:
    ax.plot(x, y, color=COLORS[index], marker=MARKERS[index], ms=3.5, lw=1.4, label=label, **style)


def _legend(ax: Any) -> None:
    ax.legend(framealpha=0.8, edgecolor="none", fontsize=7.5, handlelength=1.8)


def _loss(ax: Any, history: Arrays) -> None:
    steps = _steps(ax, history)
    _line(ax, steps, history["loss"], 0, "training")
    if "test_loss" in history:
        _line(ax, steps, history["test_loss"], 1, "test")
    for name, index, label in (("linear_loss", 0, "training, linearized"), ("linear_test_loss", 1, "test, linearized")):
        if name in history:
            end = history[name][-1]
            ax.plot(steps[-1], end, color=COLORS[index], marker="x", ms=7, mew=1.6, ls="", label=label, clip_on=False)
    low, high = ax.dataLim.intervaly
    if high > 10 * low > 0:  # a logarithmic axis labels powers of ten only
        ax.set_yscale("log")
    ax.set(ylabel="loss", title="It trains")
    _legend(ax)


def _movement(ax: Any, history: Arrays) -> None:
    steps = _steps(ax, history)
    # Both are 0 at the start, which a logarithmic axis cannot show.
    _line(ax, steps[1:], history["kernel_change"][1:], 0, "kernel change")
    _line(ax, steps[1:], history["nonlinearity"][1:], 1, "nonlinearity")
    _line(ax, steps, history["kernel_alignment"], 2, "alignment with target")
    ax.axhline(KERNEL_CHANGE.value, color="0.35", ls="--", lw=1, label="limit of kernel change")
    positive = np.concatenate([history[name][1:] for name in ("kernel_change", "nonlinearity")])
    positive = positive[np.isfinite(positive) & (positive > 0)]
    if positive.size:
        ax.set_yscale("log")
        ax.set_ylim(min(0.03, positive.min() / 2), max(1.5, positive.max() * 2))
    ax.set_title("Its features move")
    _legend(ax)


def _stability(ax: Any, history: Arrays) -> None:
    steps = _steps(ax, history)
    known = history["stability"] if "stability" in history else np.full(len(steps), np.nan)
    if np.any(np.isfinite(known)):
        _line(ax, steps, known, 0, "sharpness/limit")
    if "critical_rate" in history:
        with np.errstate(divide="ignore"):
            inverse = 1 / history["critical_rate"]
        _line(ax, steps, np.where(np.isfinite(inverse), inverse, np.nan), 1, "rate/critical rate")
    ax.axhline(STABILITY.value, color="0.35", ls="--", lw=1, label="edge of stability")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(min(0.5, low), max(2.0, high))
    ax.set_title("Its steps are stable below 1")
    _legend(ax)


def _multiplier(ax: Any, by_scale: Arrays) -> None:
    ax.set_title("Where features begin")
    ax.set(xlabel="output multiplier", ylabel="kernel change")
    if not by_scale:
        ax.text(0.5, 0.5, "not known", ha="center", va="center", transform=ax.transAxes, fontsize=9)
        ax.set(xticks=[], yticks=[])
        return
    multiplier, change = by_scale["multiplier"], by_scale["kernel_change"]
    ax.plot(multiplier, change, color=COLORS[0], marker="o", ms=3.5, lw=1.4, label="linearized training")
    ax.axhline(KERNEL_CHANGE.value, color="0.35", ls="--", lw=1)
    ax.axvline(1, color=COLORS[1], lw=1.2, label="this network")
    if "verified_multiplier" in by_scale:
        ax.plot(
            by_scale["verified_multiplier"],
            by_scale["verified_change"],
            color=COLORS[3],
            marker="D",
            ms=5,
            ls="",
            label="trained there",
        )
    ax.set(xscale="log", yscale="log")
    # Whole decades, with labels at these only: others would overlap.
    first, last = np.floor(np.log10(multiplier.min()) - 0.01), np.ceil(np.log10(multiplier.max()) + 0.01)
    ax.set_xlim(10**first, 10**last)
    ax.xaxis.set_minor_formatter("")
    _legend(ax)


def _updates(ax: Any, groups: Sequence[str], values: np.ndarray) -> None:
    places = np.arange(len(values))
    shown = np.where(np.isfinite(values), values, 0)
    ax.barh(places, shown, color=COLORS[0], height=0.65)
    for place, value in zip(places, values, strict=True):
        if not np.isfinite(value):
            ax.text(0, place, " from 0", va="center", fontsize=7.5)
    ax.set_yticks(places, [_short(group) for group in groups])
    ax.invert_yaxis()
    ax.set(xlabel="relative update $|\\Delta\\theta|/|\\theta_0|$", title="Which layers move")


def _shares(ax: Any, start: np.ndarray, now: np.ndarray) -> None:
    places = np.arange(len(now))
    ax.barh(places - 0.19, start, color=COLORS[5], height=0.36, label="at the start")
    ax.barh(places + 0.19, now, color=COLORS[0], height=0.36, label="now")
    ax.set_yticks(places, [""] * len(places))
    ax.invert_yaxis()
    ax.set(xlabel="share of the kernel's trace", title="Which layers make the kernel")
    ax.set_xlim(right=1.5 * (float(np.nanmax(np.concatenate([start, now]))) or 1.0))  # room for the legend
    _legend(ax)


def _short(name: str) -> str:
    """The end of a name, without the brackets and quotes of dicts: "h.0.attn.c_attn"."""
    name = re.sub(r"\['(.*?)'\]", r".\1", name)
    return name if len(name) <= 22 else "..." + name[-20:]


def draw_coordinates(
    tensors: Sequence[str], widths: np.ndarray, sizes: np.ndarray, changes: np.ndarray, *, title: str
) -> "Figure":
    """Sizes at the start and changes, both of shape (tensors, widths, seeds), against the width."""
    figure = _blank(6.8, 3.0 + 0.14 * len(tensors))
    axes = figure.subplots(1, 2, sharex=True)
    for ax, values, which in zip(axes, (sizes, changes), ("at the start", "change"), strict=True):
        for index, (name, rows) in enumerate(zip(tensors, values, strict=True)):
            # The geometric mean over seeds, since slopes are fitted to logarithms.
            middle = np.exp(np.mean(np.log(np.where(rows > 0, rows, np.nan)), axis=1))
            style = {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}
            ls = "-" if index < len(COLORS) else "--"
            ax.plot(widths, middle, ms=4, lw=1.4, ls=ls, label=_short(name), **style)
        ax.set(xscale="log", yscale="log", xlabel="width", title=which)
        ax.set_xticks(widths, [str(width) for width in widths])
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("typical entry")
    columns = 3 if len(tensors) > 2 else len(tensors)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )
    figure.suptitle(title, fontsize=11)
    return figure


def draw_transfer(widths: np.ndarray, rates: np.ndarray, losses: np.ndarray, best: np.ndarray) -> "Figure":
    """Losses of shape (widths, rates, seeds) against the rate, and the best rate of each width."""
    figure = _blank(3.4, 2.8)
    ax = figure.subplots()
    logarithmic, means = have_logarithms(losses), mean_losses(losses)
    means = np.exp(means) if logarithmic else means
    for index, (width, row) in enumerate(zip(widths, means, strict=True)):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        shown = np.where(np.isfinite(row), row, np.nan)
        ax.plot(rates, shown, color=color, marker=marker, ms=4, lw=1.4, label=f"width {width}")
        ax.axvline(best[index], color=color, lw=0.8, ls=":")
    shows = logarithmic and np.any(np.isfinite(means))
    ax.set(xscale="log", yscale="log" if shows else "linear", xlabel="rate", ylabel="loss at the end")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8)
    return figure
