"""The axes of a sweep's grid, by value and as text."""

from typing import Any

import numpy as np

from ._source import Source


def coordinates(source: Source) -> list[dict[str, Any]]:
    """The coordinates of cells along each dimension, as JSON: axes that advance together have several per dimension.

    Each has its name, the number of its dimension, a label per cell and, unless it is text, a number per cell.
    """
    found = []
    for dim, (name, size) in enumerate(zip(source.dims, source.shape, strict=True)):
        along = [str(key) for key, item in source.dataset.coords.items() if item.dims == (name,)]
        for key in along or [name]:
            values = source.dataset[key].values if along else np.arange(size)
            found.append({"name": key, "dim": dim, "labels": labels(values), "numbers": numbers(values)})
    return found


def labels(values: np.ndarray) -> list[str]:
    """Values as text, as short as possible while different values stay distinct."""
    if values.dtype.kind != "f":
        return [str(value) for value in values]
    for digits in (3, 6, 9, 17):
        found = [repr(float(f"{value:.{digits}g}")).removesuffix(".0") for value in values]
        if len(set(found)) == len(set(values.tolist())):
            break
    return found


def numbers(values: np.ndarray) -> list[float] | None:
    """Values as finite numbers; None if they are not all finite numbers."""
    if values.dtype.kind not in "iuf" or not np.all(np.isfinite(values)):
        return None
    return values.astype(float).tolist()
