"""Numbers as colors: over two axes of a sweep, and over pairs of samples."""

from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Int

from .._checks import describe, real_numbers
from ._style import edges, new_axes, require_axes_of


if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


def value_map(
    values: "xarray.DataArray", x: str, y: str, *, logarithmic: bool = False, ax: "Axes | None" = None
) -> "Axes":
    """Draws a number over two axes of a sweep, with a color bar. Cells that have not run stay white.

    An axis whose numbers are in geometric progression is logarithmic.

    Arguments:
        values: a variable with axes x and y, each of two or more numbers in order.
        x, y: the names of these axes.
        logarithmic: whether the color scale is logarithmic; values that are not positive then stay white.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> import xarray
        >>> error = xarray.DataArray([[1.0, 0.1], [0.5, 0.2]], dims=("delta", "tau"), name="error")
        >>> error = error.assign_coords(tau=[0.1, 2.0], delta=[-1.0, 1.0])
        >>> ax = js.plot.value_map(error, "tau", "delta", logarithmic=True)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('tau', 'delta')

    Raises:
        ValueError: the axes are not x and y.
        TypeError: `values` is not a variable of a dataset.
    """
    import matplotlib.colors as colors

    require_axes_of(values, "values", (x, y), least=2)
    ax = new_axes(ax)
    cells = values.transpose(y, x)
    numbers = np.asarray(cells.values, float)
    shown = np.isfinite(numbers) & (numbers > 0) if logarithmic else np.isfinite(numbers)
    style: dict[str, Any] = {"cmap": "cividis", "norm": colors.LogNorm() if logarithmic else None}
    places = [np.asarray(cells[name].values, float) for name in (x, y)]
    ends = [np.exp(edges(np.log(place))) if _geometric(place) else edges(place) for place in places]
    image = ax.pcolormesh(*ends, np.ma.array(numbers, mask=~shown), **style)
    for axis, name, place in zip("xy", (x, y), places, strict=True):
        ax.set(**{f"{axis}label": name, f"{axis}scale": "log" if _geometric(place) else "linear"})
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label("" if values.name is None else str(values.name).replace("_", " "))
    return ax


def gram(
    kernel: "xarray.DataArray",
    classes: Sequence[int] | Int[ArrayLike, " n"] | None = None,
    *,
    limit: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws a kernel matrix as colors, with samples ordered by class and lines between the classes.

    The color scale ends at the magnitude that 2 % of the entries exceed, so that a few large ones (often those on the
    diagonal) do not hide the rest. It begins at 0 if no entry is negative, and is symmetric around 0 otherwise.

    Arguments:
        kernel: the square kernel of one network with one output at one time, as `js.observe.kernel` records it, with
            `t` and all axes of the sweep selected.
        classes: the class of each sample, as integers; None keeps the order of samples.
        limit: the end of the color scale, to compare several matrices; None chooses it as above.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> import numpy as np, xarray
        >>> same = np.array([0, 1, 0, 1])
        >>> kernel = xarray.DataArray(same[:, None] == same, dims=("sample", "sample_2")).astype(float)
        >>> print(js.plot.gram(kernel, same).get_images()[0].get_array()[0])
        [1. 1. 0. 0.]

    Raises:
        ValueError: the kernel is not square, or there is not one class per sample.
        TypeError: the kernel is not a variable of a dataset, or the classes are not integers.
    """
    if not hasattr(kernel, "isel"):
        raise TypeError(f"kernel must be a variable of a dataset, such as ds['kernel'], got {describe(kernel)}")
    matrix = np.asarray(kernel.squeeze().values, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"kernel must have one row and one column per sample, got axes {dict(kernel.sizes)}; choose a time, a lane "
            "and an output, as in kernel.isel(t=-1, seed=0, output=0, output_2=0)"
        )
    borders: list[float] = []
    if classes is not None:
        labels = real_numbers(classes, "classes")
        if labels.shape != matrix.shape[:1]:
            raise ValueError(f"there must be one class per sample, {len(matrix)}, got shape {labels.shape}")
        if not np.array_equal(labels, np.round(labels)):
            raise TypeError(f"classes must be integers, got {describe(classes)}")
        order = np.argsort(labels, kind="stable")
        matrix = matrix[order][:, order]
        borders = [float(place) + 0.5 for place in np.flatnonzero(np.diff(labels[order]))]
    ax = new_axes(ax)
    size = float(np.quantile(np.abs(matrix), 0.98)) if limit is None else limit
    signed = bool(np.any(matrix < 0))
    ax.imshow(matrix, cmap="PuOr" if signed else "cividis", vmin=-size if signed else 0.0, vmax=size)
    for border in borders:
        for line in (ax.axhline, ax.axvline):
            line(border, color="black" if signed else "white", lw=0.6)
    said = "sample" if classes is None else "sample, by class"
    ax.set(xticks=[], yticks=[], xlabel=said, ylabel=said)
    return ax


def _geometric(places: np.ndarray) -> bool:
    if np.any(places <= 0) or len(places) < 3:
        return False
    steps, ratios = np.diff(places), np.diff(np.log(places))
    return bool(np.ptp(ratios) < 1e-3 * np.abs(ratios).max() and np.ptp(steps) > 1e-3 * np.abs(steps).max())
