"""Theory's boundaries between regimes, from a sweep by the closed form."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._results import FIRST_FAILURE
from ._grid import coordinates
from ._lanes import curves
from ._numbers import pack
from ._regimes import Phases, phases
from ._source import Source


FLOAT32 = 2**24  # float32 represents all integers up to here
CLOSED_FORM = "TwoLayerLine"  # the closed form for two-layer linear networks on a line


def boundaries(source: Source, found: Phases | None, theory: Source | None) -> dict[str, Any] | None:
    """Half-loss times and kernel changes of the closed form, and which of its cells match those of a sweep, as JSON.

    None if no theory is given and the sweep itself is not by the closed form.

    Arguments:
        source: the sweep.
        found: its half-loss times and window of times; None if it has none.
        theory: a sweep by the closed form, if one was given.

    Raises:
        ValueError: theory has another dynamics, lacks the losses, or has an axis that the sweep does not have; or the
            sweep has no window.
    """
    if theory is not None:
        predicted = _require_theory(theory, source)
    elif found is not None and _is_closed_form(source):
        theory, predicted = source, found
    else:
        return None
    if found is None:
        raise ValueError("theory's boundaries need the window of times of the sweep: its loss, from time 0 on")
    ours, theirs, dims = coordinates(source), coordinates(theory), []
    for dim, (name, size) in enumerate(zip(theory.dims, theory.shape, strict=True)):
        at = source.dims.index(name)
        along = {item["name"]: item for item in theirs if item["dim"] == dim}
        match = _match([item for item in ours if item["dim"] == at], along)
        dims.append({"of": at, "size": size, "match": match, "numbers": {k: v["numbers"] for k, v in along.items()}})
    solved = (theory.result >= 0) & (theory.result < FIRST_FAILURE)
    known = lambda values: pack(np.where(solved, values, np.nan))
    change = None if predicted.change is None else known(predicted.change)
    return {"dims": dims, "half": known(predicted.half), "change": change}


def _is_closed_form(source: Source) -> bool:
    return source.dataset.attrs.get("dynamics") == CLOSED_FORM


def _require_theory(theory: Source, source: Source) -> Phases:
    if not _is_closed_form(theory):
        raise ValueError(
            f"theory must be a sweep by theory.{CLOSED_FORM}(), which applies to two-layer linear networks on a line; "
            f"got one by {theory.dataset.attrs.get('dynamics', 'an unknown dynamics')}"
        )
    found = phases(theory, curves(theory)[0])
    if found is None:
        raise ValueError("theory must observe the loss at times from 0 on: observe=[observe.loss(), ...], ts[0] = 0")
    foreign = sorted(set(theory.dims) - set(source.dims))
    if foreign:
        raise ValueError(
            f"theory has axes {foreign}, but the sweep has {list(source.dims)}; its axes must be among these"
        )
    return found


def _match(ours: Sequence[dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> list[int]:
    """For each of our cells along a dimension, the index of theirs with the same coordinates; -1 if there is none."""
    same: Any = True
    for mine in ours:
        if mine["name"] not in theirs:
            raise ValueError(f"theory lacks the coordinate {mine['name']!r}; give it the axes of the sweep")
        other = theirs[mine["name"]]
        if mine["numbers"] is None or other["numbers"] is None:
            equal = np.array(mine["labels"])[:, None] == np.array(other["labels"])[None, :]
        else:
            # Integers must match exactly; of two other numbers, one may have been rounded to float32.
            one, two = np.array(mine["numbers"])[:, None], np.array(other["numbers"])[None, :]
            exact = one == two
            whole = (one == np.round(one)) & (two == np.round(two)) & (np.abs(one) < FLOAT32)
            close = np.isclose(one, two, 1e-5, 0.0) & ~whole
            equal = np.where(exact.any(axis=1, keepdims=True), exact, close)
        same = same & equal
    return [int(np.argmax(row)) if row.any() else -1 for row in same]
