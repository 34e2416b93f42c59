"""Phase diagrams of measured regimes."""

from collections.abc import Sequence
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from .._checks import describe, real_numbers, require_line
from ..observe import Regime
from ._style import edges, new_axes, REGIME_COLORS


if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Boundary(NamedTuple):
    """A line of theory in a phase diagram: where a function on a grid is 0.

    Attributes:
        label: text for the legend.
        x, y: coordinates of the grid's columns and rows.
        level: values of the function, shape (len(y), len(x)); the boundary is where they change sign.
        linestyle: a matplotlib line style.

    Example:
        >>> x = y = jnp.logspace(-1.0, 1.0, 5)
        >>> line = js.plot.Boundary("theory: x y = 1", x, y, jnp.log(y[:, None] * x[None, :]), "dashed")
    """

    label: str
    x: Float[ArrayLike, " columns"]
    y: Float[ArrayLike, " rows"]
    level: Float[ArrayLike, "rows columns"]
    linestyle: str


def phase_diagram(
    x: Sequence[float | int] | Float[ArrayLike, " any_columns"],
    y: Sequence[float | int] | Float[ArrayLike, " any_rows"],
    regimes: Int[ArrayLike, "rows columns"],
    *,
    boundaries: Sequence[Boundary] = (),
    ax: "Axes | None" = None,
) -> "Axes":
    """Draws measured regimes as cells on two logarithmic axes, with theory's boundaries on top.

    The axes get no labels: the caller knows what they are.

    Arguments:
        x, y: the coordinates of columns and rows, positive and increasing.
        regimes: values of `js.observe.Regime`, shape (len(y), len(x)).
        boundaries: lines to draw over the cells.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> from jaxsolve.observe import Regime
        >>> regimes = jnp.array([[Regime.KERNEL, Regime.FEATURE_LEARNING], [Regime.KERNEL, Regime.UNSTABLE]])
        >>> ax = js.plot.phase_diagram([0.1, 1.0], [0.1, 1.0], regimes)
        >>> handles = ax.legend(handles=js.plot.phase_legend_handles())

    Raises:
        ValueError: the shape of regimes is not (len(y), len(x)), one of them is not a `js.observe.Regime`, or a
            coordinate is not positive and increasing.
        TypeError: an argument is not an array of real numbers.
    """
    import matplotlib.colors as colors

    x, y, regimes = real_numbers(x, "x"), real_numbers(y, "y"), real_numbers(regimes, "regimes")
    if x.ndim != 1 or y.ndim != 1 or min(x.size, y.size) < 2:
        raise ValueError(f"x and y must be sequences of two or more numbers, got shapes {x.shape} and {y.shape}")
    if regimes.shape != (len(y), len(x)):
        raise ValueError(f"regimes must have shape (len(y), len(x)) = {(len(y), len(x))}, got {regimes.shape}")
    unknown = np.setdiff1d(regimes, [int(regime) for regime in Regime])
    if unknown.size:
        names = ", ".join(f"{int(regime)} ({regime.label})" for regime in Regime)
        raise ValueError(
            f"regimes must be values of observe.Regime, {names}; got {unknown[:5].tolist()}. A lane that has not run "
            "has none: leave its row or column out"
        )
    for name, values in (("x", x), ("y", y)):
        if not np.all(np.isfinite(values)) or np.any(values <= 0) or np.any(np.diff(values) <= 0):
            raise ValueError(f"{name} must be positive and increasing, got {values}")
    _check_boundaries(boundaries)
    ax = new_axes(ax)
    palette = colors.ListedColormap([REGIME_COLORS[regime] for regime in Regime])
    ax.pcolormesh(
        np.exp(edges(np.log(x))),
        np.exp(edges(np.log(y))),
        regimes,
        cmap=palette,
        vmin=-0.5,
        vmax=len(Regime) - 0.5,
        edgecolors="white",
        linewidth=0.3,
    )
    ax.set(xscale="log", yscale="log")
    for boundary in boundaries:
        style = {"colors": "black", "linewidths": 1.2, "linestyles": boundary.linestyle}
        ax.contour(boundary.x, boundary.y, boundary.level, levels=[0.0], **style)
    return ax


def phase_legend_handles(boundaries: Sequence[Boundary] = ()) -> list:
    """Legend entries of a `js.plot.phase_diagram`: the four regimes, and theory's boundaries.

    Example:
        >>> [handle.get_label() for handle in js.plot.phase_legend_handles()]
        ['kernel', 'feature learning', 'frozen', 'unstable']
    """
    _check_boundaries(boundaries)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    for boundary in boundaries:
        require_line(boundary.label, "the label of a boundary", "text for the legend")
    patches = [Patch(facecolor=REGIME_COLORS[regime], label=regime.label) for regime in Regime]
    lines = [Line2D([], [], color="black", lw=1.2, ls=b.linestyle, label=b.label) for b in boundaries]
    return patches + lines


def _check_boundaries(boundaries: object) -> None:
    if not isinstance(boundaries, Sequence) or not all(isinstance(line, Boundary) for line in boundaries):
        raise TypeError(f"boundaries must be a list of plot.Boundary, got {describe(boundaries)}")
