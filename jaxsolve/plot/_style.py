"""The style of figures: sizes, colors and markers that suit color-blind readers, grayscale print and one column."""

from typing import Any, TYPE_CHECKING

import numpy as np

from .._checks import describe, require_kind
from .._extras import needs
from ..observe import Regime


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, which color-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The first two are from that palette; the grays mark runs in which nothing was learned.
REGIME_COLORS = {
    Regime.KERNEL: "#0072B2",
    Regime.FEATURE_LEARNING: "#E69F00",
    Regime.FROZEN: "#D9D9D9",
    Regime.UNSTABLE: "#5E4B56",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_axes(ax: "Axes | None") -> "Axes":
    """The given axes, or those of a new figure with the width of one column."""
    if ax is not None:
        if not hasattr(ax, "get_lines"):
            raise TypeError(f"ax must be matplotlib axes, or None for a new figure, got {describe(ax)}")
        return ax
    with needs("plot", "a picture"):
        import matplotlib.pyplot as plt

    return plt.subplots(figsize=(3.4, 2.6), layout="constrained")[1]


def require_axes_of(data: Any, name: str, axes: tuple[str, ...], *, least: int = 1) -> None:
    """Raises TypeError or ValueError unless data has just these axes, in any order, each of `least` or more numbers."""
    if not hasattr(data, "sizes"):
        raise TypeError(f"{name} must be a variable of a dataset, such as ds['loss'], got {describe(data)}")
    sizes = dict(data.sizes)
    if set(sizes) != set(axes):
        raise ValueError(
            f"{name} must have the axes {', '.join(axes)}, got {sizes}; choose one number of the others, as in "
            "data.isel(t=-1), or take a mean over them, as in data.mean('seed')"
        )
    short = [axis for axis in axes if sizes[axis] < least]
    if short:
        raise ValueError(f"{name} must have {least} or more numbers on every axis, got {sizes}")


def axis_label(name: str, unit: str) -> str:
    """The label of an axis: the observable's name in words, then its unit in brackets.

    The unit is left out if it adds nothing: if it is "1" or the name itself.

    Example:
        >>> js.plot.axis_label("weight_norms", "weight"), js.plot.axis_label("loss", "loss")
        ('weight norms [weight]', 'loss')
    """
    require_kind(name, str, "name", "the name of an observable")
    require_kind(unit, str, "unit", "text")
    return name.replace("_", " ") + ("" if unit in ("1", name) else f" [{unit}]")


def edges(centers: np.ndarray) -> np.ndarray:
    """The edges of the cells of a map: halfway between their centers."""
    steps = np.diff(centers) / 2
    return np.concatenate([[centers[0] - steps[0]], centers[:-1] + steps, [centers[-1] + steps[-1]]])
