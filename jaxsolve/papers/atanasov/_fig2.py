"""Figure 2: the norm that the kernel gives to linear functions, before, between and after the phases of training."""

from math import inf

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem, Quantity, View
from ...dynamics import GradientFlow
from ...nets import Scaling, TwoLayerLinear
from ...observe import Observable
from ...plot import COLORS
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs


WIDTH, SIGMA = 1000, 1e-3
SEEDS = by_scale(4, 16)
TIMES = np.linspace(0.0, 15.0, 61)
SHOWN = {0.0: "(a) start", 3.0: "(b) phase I", 15.0: "(c) phase II"}
BETA = np.array([0.8, 0.6])


def _metric(view: View) -> Array:
    """M of the kernel x^T M x'."""
    first, last = view.params.weights
    return first.T @ first + jnp.sum(last**2) * jnp.eye(2)


METRIC = Observable("metric", _metric, Quantity.PARAMS, ("row", "column"))
FUNCTION = Observable("function", lambda view: (view.params.weights[1] @ view.params.weights[0])[0], dims=("column",))


class Figure(AbstractFigure):
    title = "Figure 2: level sets of the kernel's norm of linear functions, and the function that the network is"
    ours = f"Two inputs, one sample, target size 1, width {WIDTH}, sigma = {SIGMA:g}: the paper's are lost."
    size = (7.0, 2.6)
    hours = by_scale(0.008, 0.02)

    def run(self, runs: Runs) -> Data:
        flow, axes = GradientFlow(Tsit5(), rtol=1e-5), {"seed": range(SEEDS[runs.scale])}
        return {"runs": runs.sweep("runs", _problem, axes, flow, TIMES, observe=[METRIC, FUNCTION])}

    def draw(self, figure: Picture, data: Data) -> None:
        one = data["runs"].isel(seed=0)
        grid = np.stack(np.meshgrid(*[np.linspace(-0.6, 1.4, 101)] * 2), axis=-1)
        for ax, (t, title) in zip(figure.subplots(1, 3, sharex=True, sharey=True), SHOWN.items(), strict=True):
            now = one.sel(t=t)
            inverse = np.linalg.inv(now["metric"].values)
            norm = np.sqrt(np.einsum("...i,ij,...j->...", grid, inverse, grid))
            ax.contour(*np.moveaxis(grid, -1, 0), norm / norm.max(), levels=8, cmap="cividis", linewidths=0.8)
            along = np.array([-0.6, 0.6])[:, None] * np.array([-BETA[1], BETA[0]]) + BETA
            ax.plot(*along.T, "k-", lw=1.5, label=r"$X\beta = y$")
            path = one["function"].sel(t=slice(0, t)).values
            ax.plot(*path.T, color=COLORS[0], lw=1.0)
            ax.plot(*path[-1], color=COLORS[0], marker="o", ls="", ms=6, label="network")
            ax.set(xlabel=r"$\beta_1$", xlim=(-0.6, 1.4), ylim=(-0.6, 1.4), aspect="equal")
            ax.set_title(f"{title}, $t = {t:g}$", fontsize=9)
        figure.axes[0].set_ylabel(r"$\beta_2$")
        legend_below(figure, figure.axes[0], 2)

    def claims(self, data: Data) -> Claims:
        runs = data["runs"].transpose("seed", "t", ...)
        metric, function = runs["metric"].values, runs["function"].values
        values, vectors = np.linalg.eigh(metric)
        low, high = np.moveaxis(values, -1, 0)
        along = np.einsum("i,...ij,j->...", BETA, metric, BETA)
        first = int(np.argmin(np.abs(TIMES - 3.0)))
        norm = np.sum((BETA @ vectors) ** 2 * (low[..., None] / values), axis=-1)  # of beta: beta^T M^-1 beta
        moved = np.linalg.norm(function[:, first], axis=-1)
        off = np.linalg.norm(function[:, -1] - BETA, axis=-1)
        yield Claim("(a) Level sets are round: ratio of axes of M.", "1", (1.0, 1.2), *mean_over((high / low)[:, 0]))
        yield Claim("(b) They have stretched: the same ratio.", "2", (1.8, 2.2), *mean_over((high / low)[:, first]))
        said = "(b) along the interpolator of least norm: its share of the largest axis."
        yield Claim(said, "1", (0.98, 1.0001), *mean_over((along / high)[:, first]))
        said = "(b) The function has not moved yet: its distance from the origin, of 1."
        yield Claim(said, "0", (-inf, 0.05), *mean_over(moved))
        yield Claim("(c) It ends at the interpolator of least norm: distance.", "0", (-inf, 0.01), *mean_over(off))
        said = "(c) and has less norm in the kernel's space by then, scale taken out: end over start."
        yield Claim(said, "1/2", (0.45, 0.6), *mean_over(norm[:, -1] / norm[:, 0]))


def _problem(seed: Array) -> Problem:
    net = TwoLayerLinear(in_size=2, width_size=WIDTH, scaling=Scaling.standard(sigma=SIGMA), key=jax.random.key(seed))
    return Problem(net, jnp.asarray(BETA)[None], jnp.ones((1, 1)))
