"""Shared parts of the figures of silent alignment: starts, whitened data, and when curves have risen."""

from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..plot import COLORS, MARKERS


if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS, SIZE, TURN = COLORS[0], COLORS[1], COLORS[2]  # blue, orange and green, as in the paper
TIME = "time $t$ (flow units)"


def whitened_task(n: int, d: int, key: PRNGKeyArray) -> tuple[Float[Array, "n d"], Float[Array, "n 1"]]:
    """Inputs with X^T X/n = I, and the targets of a teacher of norm 1."""
    inputs, teacher = jax.random.split(key)
    x = n**0.5 * jnp.linalg.qr(jax.random.normal(inputs, (n, d)))[0]
    beta = jax.random.normal(teacher, (d, 1))
    return x, x @ (beta / jnp.linalg.norm(beta))


def rise_time(ts: Any, curve: Any, level: Any) -> Float[np.ndarray, "*lanes"]:
    """The time when a curve, along its last axis, first reaches a level: linear between times; inf if it never does."""
    ts, curve = np.asarray(ts, float), np.asarray(curve, float)
    level = np.broadcast_to(level, curve.shape[:-1])[..., None]
    above = curve >= level
    after = np.argmax(above, axis=-1)[..., None]
    before = np.maximum(after - 1, 0)
    low, high = (np.take_along_axis(curve, index, -1) for index in (before, after))
    rise = np.where(high > low, high - low, 1)
    found = ts[before] + np.clip((level - low) / rise, 0, 1) * (ts[after] - ts[before])
    return np.where(above.any(-1), found[..., 0], np.inf)


def turned_before(ts: Any, loss: Any, alignment: Any, fall: float = 0.1) -> Float[np.ndarray, "*lanes"]:
    """The share of the alignment's rise, from the start to the end, that is done once the loss has fallen so far.

    1 if all of it comes first; above 1 where the kernel turns away from the target again.
    """
    loss, alignment = np.asarray(loss, float), np.asarray(alignment, float)
    at = rise_time(ts, 1 - loss / loss[..., :1], fall)
    flat = [np.interp(t, ts, row) for t, row in zip(at.ravel(), alignment.reshape(-1, len(ts)), strict=True)]
    start, end = alignment[..., 0], alignment[..., -1]
    return np.where(np.isfinite(at), (np.reshape(flat, at.shape) - start) / (end - start), np.nan)


def draw_silence(ax: "Axes", ts: Any, loss: Any, norm: Any, alignment: Any, limit: float | None = None) -> None:
    """Loss and kernel norm as shares of their largest values, the alignment, and its final value in theory."""
    ax.plot(ts, loss / loss[0], color=LOSS, label="loss")
    ax.plot(ts, norm / np.max(norm), color=SIZE, ls="-.", label=r"$|K|$")
    ax.plot(ts, alignment, color=TURN, ls="--", label="alignment")
    if limit is not None:
        ax.axhline(limit, color=TURN, lw=0.8, ls=":", label="final alignment of linear networks, theory")
    ax.set(xlabel=TIME, ylabel="share of the largest", ylim=(-0.03, 1.08))


def draw_machine(ax: "Axes", outputs: Any, predictions: dict[str, Any]) -> None:
    """Predictions of kernel regressions against the network's outputs on test points."""
    ends = np.array([np.min(outputs), np.max(outputs)])
    ax.plot(ends, ends, color="0.6", lw=0.8)
    for (label, found), color, marker in zip(predictions.items(), (TURN, SIZE), MARKERS, strict=False):
        ax.plot(outputs, found, ls="", marker=marker, ms=2.5, mfc="none", color=color, label=label)
    ax.set(xlabel="network, test points", ylabel="kernel regression")


def relative_error(outputs: Any, predictions: Any) -> Float[np.ndarray, "*lanes"]:
    """|f - g|/|f| over the last two axes, test points and outputs."""
    difference = np.asarray(outputs, float) - np.asarray(predictions, float)
    return np.linalg.norm(difference, axis=(-2, -1)) / np.linalg.norm(np.asarray(outputs, float), axis=(-2, -1))
