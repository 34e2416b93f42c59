"""Figure B.1: the overlaps q(t) and r(t) of two-layer linear networks, simulated and in closed form."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from diffrax import Tsit5
from jaxtyping import Array

from ..._core import Problem, Quantity, View
from ...dynamics import GradientFlow
from ...nets import Scaling, TwoLayerLinear
from ...observe import Observable
from ...observe._internal import least_map
from ...plot import COLORS
from ...theory import SilentAlignment, start_overlaps
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs
from .._images import name_used
from .._silent import ImageTask, TIME, whitened_task


SIZE, WIDTH, SAMPLES = 25, 10, 50  # panel (a)
IMAGE_WIDTH = 100  # panel (b)
SIZES = by_scale((60, 1, 59), (1000, 1, 450))  # images, those of the test set, and components
SIGMA = 1e-3
SEEDS = by_scale(20, 20)
TIMES = np.linspace(0.0, 14.0, 57)


def _overlaps(view: View) -> Array:
    """q and r, as shares of s."""
    beta = least_map(view.problem)[0]
    s = jnp.linalg.norm(beta)
    first, last = view.params.weights
    along, a = first @ beta / s, last[0]
    return jnp.stack([(jnp.sum(a**2) + jnp.sum(along**2)) / 2, jnp.sum(a * along)]) / s


OVERLAPS = Observable("overlaps", _overlaps, Quantity.PARAMS, ("overlap",))


class Figure(AbstractFigure):
    title = "Figure B.1: overlaps q and r of two-layer linear networks, by flow (points) and in theory (lines)"
    ours = (
        f"sigma = {SIGMA:g} and {SAMPLES} samples in panel (a): the paper does not say its own. At small scale panel "
        "(b) has 60 images and all of their 59 principal components, at others 1000 and 450 of their 472."
    )
    size = (6.8, 2.6)
    hours = by_scale(0.013, 0.1)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        panels = {
            "synthetic": _Problems(None),
            "mnist": _Problems(ImageTask.here(Images.MNIST, runs.scale, (0, 1), SIZES[runs.scale], SEEDS[runs.scale])),
        }
        axes, found = {"seed": range(SEEDS[runs.scale])}, {}
        for name, problems in panels.items():
            flow = GradientFlow(Tsit5(), rtol=1e-6)
            found[name] = runs.sweep(name, problems, axes, flow, TIMES, observe=OVERLAPS)
            theory = f"{name}_theory"
            found[theory] = runs.sweep(theory, problems, axes, SilentAlignment(), TIMES, observe=OVERLAPS)
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        titles = {
            "synthetic": rf"(a) synthetic, $D = {SIZE}$, $N = {WIDTH}$",
            "mnist": f"(b) {name_used(Images.MNIST)}, 0 and 1, $N = {IMAGE_WIDTH}$",
        }
        for ax, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
            for index, (letter, color, marker) in enumerate((("q", COLORS[0], "o"), ("r", COLORS[1], "s"))):
                for seed, fill in ((0, "none"), (1, color)):
                    points = data[name]["overlaps"].isel(seed=seed, overlap=index)
                    line = data[f"{name}_theory"]["overlaps"].isel(seed=seed, overlap=index)
                    style = {"ls": "", "marker": marker, "ms": 3, "mfc": fill, "color": color}
                    ax.plot(TIMES, points, label=f"${letter}(t)/s$, seed {seed}", **style)
                    ax.plot(TIMES, line, color="k", lw=0.8)
            ax.set_title(title, fontsize=9)
            ax.set(xlabel=TIME, yscale="log", ylim=(1e-8, 2.0))
            ax.legend(frameon=False, fontsize=7, loc="lower right")

    def claims(self, data: Data) -> Claims:
        for name, label in (("synthetic", "(a)"), ("mnist", "(b)")):
            flow, theory = (_lanes(data[key]) for key in (name, f"{name}_theory"))
            off = np.abs(flow - theory).max()
            said = f"{label}: q and r follow equations 27 and 28, corrected for r_0: largest difference over s."
            yield Claim(said, "0", (0.0, 1e-3), float(off))
            wrong = _printed(flow[:, 0, :1]) - theory
            share = np.sum((flow - theory) * wrong, axis=(1, 2)) / np.sum(wrong**2, axis=(1, 2))
            said = f"{label}: where q and r lie between equations 27 and 28 corrected (0) and as printed (1)."
            yield Claim(said, "1", (0.9, 1.1), *mean_over(share), corrected=(-0.1, 0.1))
        mean = float(start_overlaps(WIDTH, sigma_u=SIGMA / WIDTH**0.5, sigma_w=SIGMA / SIZE**0.5).q_mean)
        ratio = mean_over(_lanes(data["synthetic"])[:, 0, 0] / mean)
        said = "Equation 17: mean of q_0 at synthetic starts, over (sigma^2/2)(1 + N/D)."
        yield Claim(said, "1", (0.75, 1.25), *ratio)


def _lanes(data: Any) -> np.ndarray:
    """Seeds, times and the two overlaps."""
    return data["overlaps"].transpose("seed", "t", "overlap").values


def _printed(q: np.ndarray) -> np.ndarray:
    """Equations 27 and 28 as they stand, at s = 1 and from q_0."""
    below = np.expm1(2 * TIMES) + 2 / q
    return np.stack([2 * np.cosh(2 * TIMES) / below, 2 * np.sinh(2 * TIMES) / below], axis=-1)


class _Problems(NamedTuple):
    """Two linear layers in standard parametrization; synthetic data without images."""

    images: ImageTask | None

    def __call__(self, seed: Array) -> Problem:
        first, task = jax.random.split(jax.random.key(seed))
        if self.images is None:
            x, y = whitened_task(SAMPLES, SIZE, task)
        else:
            data = self.images.data(seed)
            x, y = data.x, data.y / jnp.linalg.norm(data.y.T @ data.x / len(data.x))  # so that s = 1
        width = WIDTH if self.images is None else IMAGE_WIDTH
        net = TwoLayerLinear(in_size=x.shape[1], width_size=width, scaling=Scaling.standard(sigma=SIGMA), key=first)
        return Problem(net, x, y)
