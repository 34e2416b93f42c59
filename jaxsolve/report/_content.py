"""The data that a page's scripts draw, as JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._results import FIRST_FAILURE, RESULT_NAMES
from ..observe import KERNEL_REGIME_LIMIT
from ..plot import axis_label, COLORS
from ._grid import coordinates
from ._lanes import costs, Curve, curves, final, Measure
from ._numbers import pack, packed_bytes
from ._regimes import half_loss, Phases, phases, regime
from ._source import Source
from ._theory import boundaries


MAX_CURVES = 14e6  # characters of a page for curves
MAX_MEASURES = 6e6  # and for single numbers
SAME = 1e-6  # relative difference of times that are equal up to float32 rounding
MIN_TIMES = 8  # with fewer, a curve says too little
# By code of `RESULT_NAMES`: blue and green for lanes that ended well, warm colors and grays for the others.
RESULT_COLORS = ("#0072B2", "#009E73", "#56B4E9", "#E69F00", "#D55E00", "#CC79A7", "#999999", "#000000", "#F0E442")


def content(source: Source, theory: Source | None) -> tuple[dict[str, Any], list[str]]:
    """The data that a page draws, and notes for its reader.

    Arguments:
        source: the sweep.
        theory: a sweep by the closed form; None takes the sweep itself if it is one.

    Raises:
        ValueError: theory is not such a sweep, or the sweep has too many lanes for a page.
    """
    observed, left = curves(source)
    found = phases(source, observed)
    measures = _measures(source, [*observed, *left.values()], found)
    notes = _missing(source)
    if found is None:
        notes.append("No regimes and half-loss times: they need the loss at time 0 and at finite times after it.")
    elif found.change is None:
        notes.append("No regimes: they need observe.kernel_change().")
    if left:
        notes.append(f"Left out, for more than a few numbers per time: {', '.join(left)}. The map has their norms.")
    size = sum(packed_bytes(item.values) for item in measures)
    if size > MAX_MEASURES:
        raise ValueError(
            f"{source.result.size} lanes with {len(measures)} numbers each are too many for a page; report on a part, "
            "such as dataset.isel(seed=slice(4)), or drop variables"
        )
    drawn, kept, more = _thin(source, observed)
    asked = source.dataset["t"].values.astype(float)[kept]
    times = source.times[:, kept]
    data = {
        "dims": source.dims,
        "shape": source.shape,
        "coords": coordinates(source),
        "times": asked.tolist(),
        "saved": None if np.allclose(times, asked, SAME, 0.0) else pack(times),
        "result": pack(source.result),
        "fine": FIRST_FAILURE,
        "curves": [_labelled(item) for item in drawn],
        "measures": [_labelled(item) | {"categories": _categories(item)} for item in measures],
        "colors": COLORS,
        "window": found and found.window,
        "kernel_change": KERNEL_REGIME_LIMIT,
        "theory": boundaries(source, found, theory),
    }
    return data, [*notes, *more]


def _measures(source: Source, observed: Sequence[Curve], found: Phases | None) -> list[Measure]:
    kind = found and regime(source, found)
    names = tuple(zip((name.replace("_", " ") for name in RESULT_NAMES), RESULT_COLORS, strict=True))
    return [
        *([kind] if kind else []),
        *(final(source, item) for item in observed),
        *([half_loss(found)] if found else []),
        Measure("result", "1", source.result, names),
        *costs(source),
    ]


def _missing(source: Source) -> list[str]:
    absent, failed = int(np.sum(source.result < 0)), int(np.sum(source.result >= FIRST_FAILURE))
    notes = [f"{absent} of {source.result.size} lanes have not run yet."] if absent else []
    return [*notes, f"{failed} of {source.result.size} lanes failed: see below."] if failed else notes


def _labelled(item: Curve | Measure) -> dict[str, Any]:
    return {"name": item.name, "label": axis_label(item.name, item.unit), "values": pack(item.values)}


def _categories(item: Measure) -> list[dict[str, str]] | None:
    return [{"label": label, "color": color} for label, color in item.categories] or None


def _thin(source: Source, observed: Sequence[Curve]) -> tuple[list[Curve], np.ndarray, list[str]]:
    """The curves at the finite times, or at as many as a page can hold; the indices of these times; and notes."""
    ts = source.dataset["t"].values.astype(float)
    kept = np.flatnonzero(np.isfinite(ts))
    notes = []
    if not observed or not len(kept):
        return [], kept, notes
    drawn = sum(packed_bytes(item.values) for item in observed)
    drawn += packed_bytes(source.times) if "t_saved" in source.dataset else 0
    total = drawn * len(kept) / len(ts)
    if total > MAX_CURVES:
        fit = int(len(kept) * MAX_CURVES / total)
        if fit < MIN_TIMES:
            said = "The trajectories of so many lanes do not fit into a page; it shows their last values."
            return [], kept[:0], [said]
        notes.append(f"To keep the page small, trajectories are drawn at {fit} of {len(kept)} times.")
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, fit).round().astype(int))]
    return [item._replace(values=item.values[:, kept]) for item in observed], kept, notes
