"""Figure 6 (a): the kernel of LeNet-5 moves the farther, the more upstream the start is."""

from math import inf
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset
from ...dynamics import Descent
from ...losses import CrossEntropy
from ...nets import LeNet, Scaling
from ...observe import loss, test_accuracy, test_kernel_distance
from ...plot import COLORS
from ...until import loss_fraction
from .._claim import Claim, Claims, exponent, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale
from .._images import draw_of, pictures


ALPHAS = by_scale([0.1, 1.0, 10.0], [0.1, 0.3, 1.0, 3.0, 10.0])
SAMPLES = by_scale(24, 1000, 60_000)
TESTS = by_scale(20, 200)
SEEDS = by_scale(3, 8)
RATE = 5e-3
LEFT = 0.1  # of the loss, where training ends


class Figure(AbstractFigure):
    title = (
        "Figure 6 (a): kernel distance of LeNet-5 on MNIST against alpha, by which the first layer's start is divided"
    )
    ours = (
        f"The list of alpha, which is lost. Full-batch descent of rate {RATE:g}, until the loss has fallen to {LEFT:g} "
        "of its start, so that the rate has no part. The last layer is multiplied by alpha. At small scale "
        f"{SAMPLES[Scale.SMALL]} training images of half the resolution, the kernel of {TESTS[Scale.SMALL]} test "
        "images, float32."
    )
    size = (3.4, 2.6)
    hours = by_scale(0.02, 2.0, 500.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        digits = pictures(Images.MNIST, runs.scale, SAMPLES, TESTS, halvings=1, draws=SEEDS[runs.scale])
        descent = Descent(optax.sgd(RATE), until=loss_fraction(LEFT), max_steps=100_000)
        watched = [loss(), test_accuracy(), test_kernel_distance()]
        axes = {"alpha": ALPHAS[runs.scale], "seed": range(SEEDS[runs.scale])}
        return {"runs": runs.sweep("runs", _Networks(digits), axes, descent, [0.0, inf], observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        ax = figure.subplots()
        distance = data["runs"]["test_kernel_distance"].isel(t=-1).transpose("seed", "alpha")
        alphas = distance["alpha"].values
        for row in distance.values:
            ax.plot(alphas, row, color="0.7", lw=0.8)
        ax.plot(alphas, distance.mean("seed"), color=COLORS[0], marker="o", ms=4, label="mean of starts (grey)")
        ax.set(xscale="log", xlabel=r"$\alpha$ (upstream to the right)", ylabel="kernel distance", ylim=(0, None))
        ax.legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        distance = data["runs"]["test_kernel_distance"].isel(t=-1).transpose("seed", "alpha")
        at = lambda alpha: distance.sel(alpha=alpha)
        said = "Upstream starts drive feature learning: exponent of alpha in the kernel's distance."
        yield Claim(said, *POSITIVE, *exponent(distance["alpha"], distance))
        said = "Upstream (alpha = 10) the kernel moves farther than in the standard start (1): difference."
        yield Claim(said, *POSITIVE, *mean_over(at(10.0) - at(1.0)))
        said = "Downstream (alpha = 0.1) it moves less than in the standard start: difference."
        yield Claim(said, *NEGATIVE, *mean_over(at(0.1) - at(1.0)))


class _Networks(NamedTuple):
    """The first layer's start over alpha, the last one's times alpha."""

    digits: Dataset

    def __call__(self, alpha: Array, seed: Array) -> Problem:
        digits, one = draw_of(self.digits, seed), jnp.ones(())
        sigma = jnp.stack([1 / alpha, one, one, one, alpha])
        _, channels, height, width = digits.x.shape
        net = LeNet(
            in_shape=(channels, height, width),
            out_size=10,
            scaling=Scaling.kaiming(sigma=sigma),
            key=jax.random.key(seed),
            dtype=digits.x.dtype,
        )
        return Problem(net, *digits.train, test=digits.test, loss=CrossEntropy())
