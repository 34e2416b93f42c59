"""The single linear neuron of Kunin et al., figures 2, 3, 4, 7 and 8: problems, and parts of their pictures."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core import Problem
from ..nets import Given, Scaling, SingleNeuron
from ..observe import loss, neuron_direction, neuron_radius
from ._figure import Panel, Table, Values


WATCHED = (neuron_radius(), neuron_direction(), loss())
DELTAS = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
REGIMES = {-4.0: "downstream", 0.0: "balanced", 4.0: "upstream"}


class Neurons(NamedTuple):
    """f(x) = a w.x that starts at beta_0 = a w with a > 0, at any delta = a^2 - |w|^2."""

    x: tuple[tuple[float, float], ...]
    y: tuple[float, ...]
    beta_0: tuple[float, float]

    def __call__(self, delta: Array) -> Problem:
        start = jnp.asarray(self.beta_0)
        a = jnp.sqrt((delta + jnp.sqrt(delta**2 + 4 * jnp.sum(start**2))) / 2)
        return neuron(self.x, self.y, a, start / a)


WHITENED = Neurons(x=((1.0, 0.0), (0.0, 1.0)), y=(0.0, 1.0), beta_0=(-1.0, 0.0))
LOW_RANK = Neurons(x=((0.5, 1.0),), y=(1.1,), beta_0=(0.4, 0.05))  # 0.5 (0.6 (1, -0.5) + 0.4 (0.5, 1))


def neuron(x: tuple, y: tuple, a: Array, w: Array) -> Problem:
    """The problem of one neuron with these weights."""
    # Their loss is a sum over samples, ours an average: eta = n makes the two flows equal.
    scaling = Scaling(multiplier=jnp.ones(2), sigma=jnp.ones(2), eta=jnp.full(2, float(len(x))))
    net = SingleNeuron(in_size=2, scaling=scaling, init=Given([w[None, :], a[None, None]]), key=jax.random.key(0))
    return Problem(net, jnp.asarray(x), jnp.asarray(y)[:, None])


def beta(runs: Table) -> Values:
    """a w at all times, from `neuron_radius` and `neuron_direction`; its last axis is the plane."""
    return (runs["neuron_radius"] * runs["neuron_direction"]).isel(neuron=0).transpose(..., "t", "input")


def draw_loss(ax: Panel, problem: Neurons, limits: tuple[float, float, float, float]) -> None:
    """Level sets of the loss over the plane of beta, in gray."""
    plane = np.meshgrid(np.linspace(*limits[:2], 80), np.linspace(*limits[2:], 80))
    residual = np.einsum("ni,ijk->njk", np.array(problem.x), np.array(plane)) - np.array(problem.y)[:, None, None]
    ax.contour(*plane, np.sum(residual**2, axis=0) / 2, levels=8, colors="0.8", linewidths=0.6)
    ax.set(xlabel=r"$\beta_1$", xlim=limits[:2], ylim=limits[2:])
    ax.set_aspect("equal")


def draw_ellipse(ax: Panel, center: Float[np.ndarray, " 2"], matrix: Float[np.ndarray, "2 2"], **style) -> None:
    """The image of a circle under a matrix, scaled so that its largest axis is the same everywhere."""
    angle = np.linspace(0, 2 * np.pi, 60)
    circle = 0.12 * np.stack([np.cos(angle), np.sin(angle)])
    ax.plot(*(center[:, None] + matrix / np.linalg.norm(matrix, 2) @ circle), **style)
