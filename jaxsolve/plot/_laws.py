"""Power laws: a quantity over an axis with its exponent, and curves that collapse under a power of another axis."""

from typing import Any, TYPE_CHECKING

import numpy as np

from .._checks import require_kind, require_line, require_size
from ..sweeps import broken_power_law, power_law as fit
from ._style import COLORS, MARKERS, new_axes, require_axes_of


if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


def power_law(
    data: "xarray.DataArray",
    x: str,
    *,
    over: str = "seed",
    borders: int = 0,
    label: str | None = None,
    color: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draws each member of an ensemble as markers over an axis, and the law c x^b through them as a line.

    The legend gives b with its 95 % interval, from `js.sweeps.power_law`. With borders, the line is the fit of
    `js.sweeps.broken_power_law`, the legend gives the exponent of each regime, and bands show the borders' intervals.

    Arguments:
        data: positive, with axes x and `over`.
        x: the axis of the law, with positive numbers.
        over: the axis of members, two or more.
        borders: number of borders between regimes, each of which has its own law.
        label: text for the legend, before the law; None takes the name of the data.
        color: color of markers and line; None takes the next one of `js.plot.COLORS`.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> import xarray
        >>> norms = xarray.DataArray([[1.0, 0.5, 0.25], [2.0, 1.0, 0.5]], dims=("seed", "width"), name="norm")
        >>> ax = js.plot.power_law(norms.assign_coords(width=[10, 20, 40]), "width")
        >>> print(ax.get_legend().get_texts()[0].get_text())
        norm: $\propto$ width$^{-1.000 \pm 0.000}$

    Raises:
        ValueError: the axes are not x and `over`, or numbers on x are not positive.
        TypeError: `data` is not a variable of a dataset.
    """
    require_axes_of(data, "data", (x, over), least=2)
    name = label if label is not None else "data" if data.name is None else str(data.name).replace("_", " ")
    require_line(name, "label", "text for the legend")
    require_size(borders, "borders", least=0)
    ax = new_axes(ax)
    places, index = data[x].values.astype(float), sum(line.get_linestyle() != "None" for line in ax.get_lines())
    shade = COLORS[index % len(COLORS)] if color is None else color
    marks: dict[str, Any] = {"marker": MARKERS[index % len(MARKERS)], "ms": 3.5, "mfc": "none", "ls": ""}
    for row in data.transpose(over, x).values:
        ax.plot(places, row, color=shade, **marks)
    if borders:
        broken = broken_power_law(data, x, borders, over)
        laws = zip(broken.exponents, broken.uncertainties, strict=True)
        heights = broken(places)
        for low, high in broken.border_intervals:
            ax.axvspan(low, high, color=shade, alpha=0.15, lw=0)
    else:
        law = fit(data, x, over)
        laws, heights = [law[:2]], law.prefactor * places**law.exponent
    powers = ", ".join(rf"{x}$^{{{exponent:.3f} \pm {half:.3f}}}$" for exponent, half in laws)
    ax.plot(places, heights, color=shade, lw=1.0, label=rf"{name}: $\propto$ {powers}")
    ax.set(xscale="log", yscale="log", xlabel=x, ylabel=name)
    ax.legend(frameon=False)
    return ax


def collapse(
    data: "xarray.DataArray",
    x: str,
    by: str,
    *,
    power: float = 0.0,
    over: str = "seed",
    ls: str = "-",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws a curve for each number of an axis, over x times a power of that number: the right power makes them one.

    A curve is the geometric mean of the members; the band around it is their range.

    Arguments:
        data: positive, with axes x, `by` and `over`. NaN is left out.
        x: the axis along which to draw, with positive numbers.
        by: the axis with one curve for each of its positive numbers.
        power: p in by^p x; 0 draws over x alone.
        over: the axis of members.
        ls: line style, as in matplotlib.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> import numpy as np, xarray
        >>> alpha, width = np.array([0.1, 1.0, 10.0]), np.array([4, 16])
        >>> change = xarray.DataArray(1 / (width[:, None] ** 0.5 * alpha)[None], dims=("seed", "width", "alpha"))
        >>> change = change.assign_coords(width=width, alpha=alpha)
        >>> ax = js.plot.collapse(change, "alpha", "width", power=0.5)
        >>> print(ax.get_lines()[1].get_xdata(), ax.get_xlabel())
        [ 0.4  4.  40. ] width^0.5 alpha

    Raises:
        ValueError: the axes are not x, `by` and `over`, or power is not finite.
        TypeError: `data` is not a variable of a dataset, or power is not a number.
    """
    require_axes_of(data, "data", (x, by, over))
    require_kind(power, (int, float), "power", "a number, such as 0.5")
    if not np.isfinite(power):
        raise ValueError(f"power must be finite, got {power}")
    ax = new_axes(ax)
    places = data[x].values.astype(float)
    for index, number in enumerate(data[by].values):
        rows = data.isel({by: index}).transpose(over, x).values
        along, color = places * float(number) ** power, COLORS[index % len(COLORS)]
        known = np.any(np.isfinite(rows), axis=0)
        rows, along = rows[:, known], along[known]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.exp(np.nanmean(np.log(rows), axis=0))
        ax.fill_between(along, np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), color=color, alpha=0.15, lw=0)
        style: dict[str, Any] = {"color": color, "marker": MARKERS[index % len(MARKERS)], "ms": 3, "lw": 1.0, "ls": ls}
        ax.plot(along, mean, **style, label=f"{by} = {number:g}")
    label = x if power == 0 else f"{by}^{power:g} {x}"
    ax.set(xscale="log", yscale="log", xlabel=label)
    return ax
