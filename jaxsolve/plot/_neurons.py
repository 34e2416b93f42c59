"""The neurons of a two-layer network in the plane of two inputs."""

from typing import TYPE_CHECKING

import numpy as np

from ._style import COLORS, new_axes, require_axes_of


if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


def neurons(radius: "xarray.DataArray", direction: "xarray.DataArray", *, ax: "Axes | None" = None) -> "Axes":
    """Draws the path of every hidden neuron, a_k w_k, in the plane of two inputs, with a marker at its end.

    Neurons whose read-out a_k is positive at the start have the first color, the others the second.

    Arguments:
        radius: values of `js.observe.neuron_radius` for one run: axes `t` and `neuron`.
        direction: values of `js.observe.neuron_direction`: axes `t`, `neuron` and `input`, the last of size 2.
        ax: matplotlib axes to draw on; None makes a figure.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> watched = [js.observe.neuron_radius(), js.observe.neuron_direction()]
        >>> run = js.solve(problem, js.GradientFlow(), jnp.linspace(0.0, 1.0, 5), observe=watched).to_xarray()
        >>> len(js.plot.neurons(run["neuron_radius"], run["neuron_direction"]).get_lines())  # a path and its end
        8

    Raises:
        ValueError: axes are not those above, or there are not two inputs.
        TypeError: an argument is not a variable of a dataset.
    """
    require_axes_of(radius, "radius", ("t", "neuron"))
    require_axes_of(direction, "direction", ("t", "neuron", "input"))
    if direction.sizes["input"] != 2:
        raise ValueError(f"only networks with two inputs have their neurons in a plane, got {direction.sizes['input']}")
    ax = new_axes(ax)
    paths = np.asarray((radius * direction).transpose("neuron", "input", "t").values)
    starts = radius.isel(t=0).values
    for path, start in zip(paths, starts, strict=True):
        color = COLORS[0] if start > 0 else COLORS[1]
        ax.plot(*path, color=color, lw=0.7, alpha=0.7)
        ax.plot(*path[:, -1:], color=color, marker="o", ms=2)
    ax.set(xlabel="$(a_k w_k)_1$", ylabel="$(a_k w_k)_2$")
    ax.set_aspect("equal", adjustable="datalim")
    return ax
