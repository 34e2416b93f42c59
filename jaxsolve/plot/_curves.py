"""Curves over time."""

from typing import Any, TYPE_CHECKING

import numpy as np

from .._checks import describe, require_kind, require_line
from .._compare import Comparison
from .._core import Trajectory
from ._style import axis_label, COLORS, MARKERS, new_axes


if TYPE_CHECKING:
    from matplotlib.axes import Axes


def trajectory(
    traj: Trajectory,
    name: str = "loss",
    *,
    ax: "Axes | None" = None,
    label: str | None = None,
    color: str | None = None,
) -> "Axes":
    """Draws an observable of one run over time: one line for a number, or one for each entry of a vector.

    Arguments:
        traj: a result of `js.solve`.
        name: the observable.
        ax: matplotlib axes to draw on; None makes a figure.
        label: text for the legend; None takes the name of the dynamics.
        color: color of all lines; None takes the next ones of `js.plot.COLORS`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2)[:1], jnp.ones((1, 1)))
        >>> run = js.solve(problem, js.FrozenKernel(), jnp.linspace(0.0, 5.0, 20))
        >>> ax = js.plot.trajectory(run, "loss")  # then ax.figure.savefig("loss.pdf")
        >>> ax.get_ylabel()
        'loss'

    Raises:
        ValueError: the observable has more than one axis besides time, or the run has only one time.
        TypeError: traj is not a trajectory.
    """
    if not isinstance(traj, Trajectory):
        raise TypeError(
            f"traj must be the result of js.solve, got {describe(traj)}; the result of js.sweep is drawn with xarray, "
            "as in data['loss'].plot()"
        )
    require_kind(name, str, "name", f"the name of an observable, one of {sorted(traj.observed)}")
    _check_style(label, color)
    if np.ndim(traj.ts) != 1:
        raise ValueError("a run at one time has no curve: give js.solve several times, such as jnp.linspace(0, 5, 20)")
    values = np.asarray(traj[name])
    if values.ndim > 2:
        raise ValueError(f"{name!r} has shape {values.shape}; only numbers and vectors can be drawn over time")
    ax = new_axes(ax)
    drawn = len(ax.get_lines())
    label = traj.dynamics if label is None else label
    rows = values[:, None] if values.ndim == 1 else values
    for index in range(rows.shape[1]):
        suffix = "" if values.ndim == 1 else f" [{index}]"
        shade = COLORS[(drawn + index) % len(COLORS)] if color is None else color
        ax.plot(np.asarray(traj.ts), rows[:, index], color=shade, label=label + suffix)
    _label(ax, traj, name)
    ax.legend(frameon=False)
    return ax


def comparison(
    cmp: Comparison,
    name: str = "loss",
    *,
    ax: "Axes | None" = None,
    label: str | None = None,
    color: str | None = None,
) -> "Axes":
    """Draws one observed number over time for every dynamics: the reference as a line, the others as markers.

    Arguments:
        cmp: a result of `js.compare`.
        name: the observable.
        ax: matplotlib axes to draw on; None makes a figure.
        label: prefix of the names of the dynamics in the legend, to distinguish several comparisons.
        color: color of all curves; None takes the next ones of `js.plot.COLORS`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2)[:1], jnp.ones((1, 1)))
        >>> import optax
        >>> dynamics = [js.FrozenKernel(), js.Descent(optax.sgd(0.1))]
        >>> both = js.compare(problem, dynamics, jnp.linspace(0.0, 5.0, 20), observe=js.observe.loss())
        >>> [line.get_label() for line in js.plot.comparison(both, "loss").get_lines()]
        ['FrozenKernel', 'Descent(sgd)']

    Raises:
        ValueError: the observable is not a number.
        TypeError: cmp is not a comparison.
    """
    if not isinstance(cmp, Comparison):
        raise TypeError(
            f"cmp must be the result of js.compare, got {describe(cmp)}; one run is drawn by js.plot.trajectory"
        )
    require_kind(name, str, "name", "the name of an observable")
    _check_style(label, color)
    ax = new_axes(ax)
    drawn = len(ax.get_lines())
    for index, (key, traj) in enumerate(cmp.trajectories.items()):
        values = np.asarray(traj[name])
        if values.ndim != 1:
            raise ValueError(f"{name!r} has shape {values.shape}; only numbers can be compared over time")
        shade = COLORS[(drawn + index) % len(COLORS)] if color is None else color
        style: dict[str, Any] = {"color": shade, "ls": "-"} if index == 0 else {"ls": "", "mfc": "none", "mec": shade}
        marker = "" if index == 0 else MARKERS[index % len(MARKERS)]
        text = key if label is None else f"{label}: {key}"
        ax.plot(np.asarray(traj.ts), values, label=text, marker=marker, ms=4, **style)
    _label(ax, next(iter(cmp.trajectories.values())), name)
    ax.legend(frameon=False)
    return ax


def _check_style(label: object, color: object) -> None:
    if label is not None:
        require_line(label, "label", "text for the legend, or None")
    from matplotlib.colors import is_color_like

    if color is not None and not is_color_like(color):
        raise ValueError(f"color must be one that matplotlib knows, such as 'red' or '#0072B2', got {describe(color)}")


def _label(ax: "Axes", traj: Trajectory, name: str) -> None:
    unit = next(label.unit for label in traj.labels if label.name == name)
    ax.set(xlabel="time $t$ (gradient-flow units)", ylabel=axis_label(name, unit))
    times = np.asarray(traj.ts)
    if times[0] > 0 and times[-1] / times[0] > 30:  # more than one and a half decades
        ax.set_xscale("log")
