"""The results of the lanes of a sweep: curves over time, and single numbers."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from .._results import FIRST_FAILURE
from ..sweeps._internal import LANE_VARIABLES
from ._source import Source


MAX_COMPONENTS = 8  # entries per time that an observable may have to be drawn as single curves


class Curve(NamedTuple):
    """One number of each lane over time, shape (lanes, times)."""

    name: str
    unit: str
    values: np.ndarray


class Measure(NamedTuple):
    """One number or category of each lane, shape (lanes,); NaN, or -1 for a category, if it is unknown.

    Attributes:
        name: text for menus.
        unit: unit of the values; "1" for pure numbers.
        values: float64, or int8 codes.
        categories: pairs of a label and a color by code; empty for numbers.
    """

    name: str
    unit: str
    values: np.ndarray
    categories: tuple[tuple[str, str], ...] = ()


def curves(source: Source) -> tuple[list[Curve], dict[str, Curve]]:
    """The observables over time, a curve for each entry of an array; and norms of arrays with too many, by name."""
    found, left = [], {}
    for name, variable in source.dataset.data_vars.items():
        if name in LANE_VARIABLES or "t" not in variable.dims or not _is_real(variable):
            continue
        values = source.lane_array(name).astype(np.float64)
        unit = str(variable.attrs.get("units", "1"))
        entries = values.shape[2:]
        if np.prod(entries, dtype=int) > MAX_COMPONENTS:
            left[str(name)] = Curve(f"|{name}|", unit, np.sqrt(np.sum(values**2, axis=tuple(range(2, values.ndim)))))
            continue
        for index in itertools.product(*map(range, entries)):
            suffix = f"[{', '.join(map(str, index))}]" if index else ""
            found.append(Curve(f"{name}{suffix}", unit, values[(..., *index)]))
    return found, left


def final(source: Source, curve: Curve) -> Measure:
    """The last value of each lane; NaN for a lane that failed."""
    values = np.where(source.result < FIRST_FAILURE, curve.values[:, -1], np.nan)
    return Measure(f"{curve.name}, final", curve.unit, values)


def costs(source: Source) -> list[Measure]:
    """The numbers per lane that do not depend on time, such as steps and wall time."""
    found = []
    for name, variable in source.dataset.data_vars.items():
        flagged = "flag_meanings" in variable.attrs
        if flagged or name == "result" or not set(variable.dims) <= set(source.dims) or not _is_real(variable):
            continue
        values = np.where(source.result >= 0, source.lane_array(name).astype(np.float64), np.nan)
        found.append(Measure(str(name).replace("_", " "), str(variable.attrs.get("units", "1")), values))
    return found


def _is_real(variable: Any) -> bool:
    return variable.dtype.kind in "biuf"
