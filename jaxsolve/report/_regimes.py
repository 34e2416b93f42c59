"""Half-loss times and regimes of the lanes of a sweep."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .. import observe
from .._results import FIRST_FAILURE, RESULT_NAMES
from ..observe import Regime
from ..plot import REGIME_COLORS
from ._lanes import Curve, Measure
from ._source import Source


UNITS = "gradient-flow time"
DIVERGED = RESULT_NAMES.index("diverged")
MEANINGLESS = [RESULT_NAMES.index(name) for name in ("not_applicable", "invalid")]


class Phases(NamedTuple):
    """The quantities that decide the regimes of a sweep.

    Attributes:
        window: the first positive and the last finite time that were requested.
        looked: the first positive and the last time saved for each lane, which may differ from those requested.
        half: half-loss time per lane; inf if never, NaN if unknown.
        change: relative kernel change at the end per lane; None if not observed.
    """

    window: tuple[float, float]
    looked: tuple[np.ndarray, np.ndarray]
    half: np.ndarray
    change: np.ndarray | None


def phases(source: Source, curves: Sequence[Curve]) -> Phases | None:
    """Half-loss times and kernel changes; None without losses from time 0 on."""
    by_name = {curve.name: curve.values for curve in curves}
    ts = source.dataset["t"].values.astype(float)
    finite = np.isfinite(ts)
    times = ts[finite]
    if "loss" not in by_name or len(times) < 2 or times[0] != 0 or np.any(np.diff(times) <= 0):
        return None
    loss, at = by_name["loss"][:, finite], source.times[:, finite]
    half, looked = observe.half_loss_time(at, loss), (np.min(np.where(at > 0, at, np.inf), axis=1), np.max(at, axis=1))
    # If a lane turns NaN before its loss has halved, its half-loss time is unknown, not infinite.
    ended = np.isinf(half) & np.isnan(loss).any(axis=-1)
    unknown = (source.result < 0) | np.isin(source.result, MEANINGLESS) | ended
    change = by_name["kernel_change"][:, -1] if "kernel_change" in by_name else None
    return Phases((times[1], times[-1]), looked, np.where(unknown, np.nan, half), change)


def half_loss(found: Phases) -> Measure:
    """Half-loss times as a measure to draw."""
    return Measure("half-loss time", UNITS, found.half)


def regime(source: Source, found: Phases) -> Measure | None:
    """The regime of every lane by `observe.classify`; None if kernel changes were not observed.

    A lane that diverged is unstable. One that failed otherwise, has not run, or has no kernel change has no regime.
    """
    if found.change is None:
        return None
    result, (began, ended) = source.result, found.looked
    half = np.where(found.half < began, 0.0, np.where(found.half > ended, np.inf, np.clip(found.half, *found.window)))
    half = np.where(result == DIVERGED, np.nan, half)
    known = ((result >= 0) & (result < FIRST_FAILURE) & ~np.isnan(found.change)) | (result == DIVERGED)
    codes = observe.classify(half, np.where(known, found.change, 0.0), np.array([0.0, *found.window]))
    labels = tuple((kind.label, REGIME_COLORS[kind]) for kind in Regime)
    return Measure("regime", "1", np.where(known, codes, -1).astype(np.int8), labels)
