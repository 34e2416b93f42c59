"""Figure 2: the relative scale decides how one neuron moves: lazily, richly, or richly after a delay."""

from math import inf, nan

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Float

from ...dynamics import GradientFlow
from ...observe import kernel
from ...plot import COLORS
from ...theory import neurons_preconditioner, SingleNeuronFlow
from .._claim import Claim, Claims, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._kunin_neuron import beta, DELTAS, draw_ellipse, draw_loss, REGIMES, WATCHED, WHITENED


TIMES = np.append(np.linspace(0, 20, 201), 100.0)
LIMITS = (-1.3, 0.5, -0.3, 1.3)


class Figure(AbstractFigure):
    title = "Figure 2: paths of one neuron in function space, in theory (lines) and by gradient flow (points)"
    ours = "Ellipses show the shape of the preconditioner only: their largest axis is the same everywhere."
    size = (7.2, 2.7)
    hours = by_scale(0.01, 0.01)

    def run(self, runs: Runs) -> Data:
        watched = [*WATCHED, kernel()]
        axes = {"delta": np.array(DELTAS)}
        flow = GradientFlow(Tsit5(), rtol=1e-8, atol=1e-10)
        return {
            "theory": runs.sweep("theory", WHITENED, axes, SingleNeuronFlow(), TIMES, observe=watched),
            "flow": runs.sweep("flow", WHITENED, axes, flow, TIMES, observe=watched),
        }

    def draw(self, figure: Picture, data: Data) -> None:
        axes = figure.subplots(1, 3, sharey=True)
        for ax, (delta, regime) in zip(axes, REGIMES.items(), strict=True):
            draw_loss(ax, WHITENED, LIMITS)
            line = beta(data["theory"]).sel(delta=delta).values
            points = beta(data["flow"]).sel(delta=delta).values
            length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
            at = np.searchsorted(length, np.linspace(0, 0.98 * length[-1], 6))
            ax.plot(*line.T, color=COLORS[0], lw=1.4, label="theory")
            ax.plot(*points[at].T, ls="", marker="o", ms=3, color=COLORS[1], label="gradient flow")
            for index in at:
                draw_ellipse(ax, line[index], _preconditioner(line[index], delta), color=COLORS[2], lw=0.8)
            ax.plot(*line[0], marker="s", ms=5, color="black")
            ax.plot(0, 1, marker="*", ms=9, color="black")
            ax.set_title(rf"{regime}, $\delta = {delta:g}$", fontsize=9)
        axes[0].set_ylabel(r"$\beta_2$")
        legend_below(figure, axes[0], 2)

    def claims(self, data: Data) -> Claims:
        theory, flow = (beta(data[name]) for name in ("theory", "flow"))
        paths = {delta: theory.sel(delta=delta).values for delta in DELTAS}
        # The inputs are the identity, so that the kernel of the run is M, but for the rate.
        kernels = data["flow"]["kernel"].transpose("delta", "t", ...).values.reshape(len(DELTAS), len(TIMES), 2, 2)
        values = dict(zip(data["flow"]["delta"].values, np.linalg.eigvalsh(kernels), strict=True))
        condition = {delta: both[:, 1] / both[:, 0] for delta, both in values.items()}
        chord = np.array([1.0, 1.0]) / 2**0.5
        off = {
            delta: float(np.abs((p - p[0]) @ np.array([-chord[1], chord[0]])).max() / 2**0.5)
            for delta, p in paths.items()
        }
        steps = np.diff(list(off.values()))
        fits = data["theory"]["loss"].isel(t=-1).sel(delta=list(REGIMES)) * 2  # their loss is a sum
        said = "The exact solution is gradient flow: largest difference of beta over seven delta."
        yield Claim(said, "0", (0.0, 1e-5), float(np.abs(theory - flow).max()))
        said = "Upstream (delta = 4), M is nearly a multiple of I: largest condition number along the path."
        yield Claim(said, "about 1", (1.0, 1.25), float(condition[4.0].max()))
        said = "Balanced, M = |beta| (I + bb^T): condition number along the path, the farthest from 2."
        yield Claim(said, "2", (1.99, 2.01), float(condition[0.0][np.argmax(np.abs(condition[0.0] - 2))]))
        said = "Downstream (delta = -4), M is nearly of rank one: least condition number along the path."
        yield Claim(said, "large", (4.0, inf), float(condition[-4.0].min()))
        said = "Upstream the path is nearly the straight line of regression: how far it leaves it, in its length."
        yield Claim(said, "about 0", (0.0, 0.1), off[4.0])
        said = "The smaller delta is, the farther: largest step of that distance to the next delta."
        yield Claim(said, *NEGATIVE, float(steps.max()))
        said = (
            "Downstream, beta first shrinks along its own direction: by how much its first coordinate "
            "has fallen when the second has grown to 0.1."
        )
        yield Claim(said, "most of it", (0.5, 1.0), _shrunk(paths[-4.0]))
        yield Claim("All three end at the solution: largest loss at t = 100.", "0", (0.0, 1e-2), float(fits.max()))


def _shrunk(path: np.ndarray) -> float:
    """The fall of the first coordinate when the second is first above 0.1; NaN if it never is."""
    grown = path[path[:, 1] > 0.1]
    return float(1 - abs(grown[0, 0])) if len(grown) else nan


def _preconditioner(b: Float[np.ndarray, "... 2"], delta: float) -> Float[np.ndarray, "... 2 2"]:
    """M of equation 4 at each beta."""
    flat = jnp.asarray(b).reshape(-1, 1, 2, 1)
    one = lambda betas: neurons_preconditioner(betas, jnp.full(1, delta))[:, 0, :, 0]
    return np.asarray(jax.vmap(one)(flat)).reshape(*b.shape, 2)
