"""Figure 3: the larger the start of a residual network, the larger its final weights and the worse its accuracy."""

from math import inf
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ..._core import Problem, Quantity, View
from ...data import Dataset, flip_and_crop, Images
from ...dynamics import Descent
from ...losses import CrossEntropy
from ...nets import BatchNorm, ResNet18, Scaling
from ...observe import accuracy, Observable, test_accuracy
from ...plot import COLORS, MARKERS
from .._claim import bars, Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale
from .._images import draw_of, pictures


SIGMAS = [0.5, 1.0, 2.0, 4.0]
WIDTHS = by_scale(4, 16, 64)
SAMPLES = by_scale(64, 5000, 50_000)
TESTS = by_scale(500, 2000, 10_000)
EPOCHS = by_scale(100, 60, 200)
SEEDS = by_scale(4, 3)
BATCH = by_scale(32, 64, 128)
RATE, MOMENTUM, DECAY = 0.1, 0.9, 5e-4


class Figure(AbstractFigure):
    title = "Figure 3: a ResNet-18 with batch normalization on CIFAR-10, from starts of four scales"
    ours = (
        f"The scales sigma, which are lost. SGD of rate {RATE:g} with momentum {MOMENTUM:g}, weight decay {DECAY:g}, a "
        f"cosine schedule, flips and crops, as in the code that it names. At small scale {SAMPLES[Scale.SMALL]} images "
        f"of half the resolution, {WIDTHS[Scale.SMALL]} channels, {EPOCHS[Scale.SMALL]} epochs in batches of "
        f"{BATCH[Scale.SMALL]}, float32, and no flips and crops: with them so short a training does not fit."
    )
    size = (6.0, 2.6)
    hours = by_scale(0.03, 100.0, 50_000.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        data = pictures(Images.CIFAR10, runs.scale, SAMPLES, TESTS, halvings=1, draws=SEEDS[runs.scale])
        small, batch = runs.scale is Scale.SMALL, BATCH[runs.scale]
        steps = EPOCHS[runs.scale] * (SAMPLES[runs.scale] // batch)
        sgd = optax.sgd(optax.cosine_decay_schedule(RATE, steps), momentum=MOMENTUM)
        descent = Descent(
            optax.chain(optax.add_decayed_weights(DECAY), sgd),
            rate=1.0,  # times are counts of steps
            batch_size=batch,
            augmentation=None if small else flip_and_crop(4),
            key=jax.random.key(1),
        )
        axes = {"sigma": SIGMAS, "seed": range(SEEDS[runs.scale])}
        watched = [accuracy(), test_accuracy(), Observable("norm", _norm, Quantity.PARAMS, ())]
        problems = _Problems(WIDTHS[runs.scale], data)
        return {"runs": runs.sweep("runs", problems, axes, descent, [0.0, steps], observe=watched)}

    def draw(self, figure: Picture, data: Data) -> None:
        end = data["runs"].isel(t=-1)
        left, right = figure.subplots(1, 2, sharex=True)
        for name, label, index in (("accuracy", "training", 1), ("test_accuracy", "test", 0)):
            left.errorbar(
                SIGMAS, *bars(100 * end[name]), color=COLORS[index], marker=MARKERS[index], ms=3.5, lw=1.2, label=label
            )
        right.errorbar(SIGMAS, *bars(end["norm"]), color=COLORS[0], marker=MARKERS[0], ms=3.5, lw=1.2)
        left.set(xscale="log", ylabel="accuracy (%)", xlabel=r"scale $\sigma$ of the start")
        right.set(
            xscale="log", ylabel="sum of the norms of all layers", xlabel=r"scale $\sigma$ of the start", ylim=(0, None)
        )
        left.set_xticks(SIGMAS, [f"{sigma:g}" for sigma in SIGMAS], minor=False)
        left.minorticks_off()
        left.legend(frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        end = data["runs"].isel(t=-1)
        small, large = (100 * end["test_accuracy"].sel(sigma=sigma) for sigma in (SIGMAS[0], SIGMAS[-1]))
        said = "All networks fit the training set: accuracy in per cent, of the scale where it is least."
        yield Claim(
            said,
            "100 %",
            (99.0, inf),
            *min((mean_over(100 * end["accuracy"].sel(sigma=sigma)) for sigma in SIGMAS), key=lambda one: one[0]),
        )
        said = (
            f"Smaller starts generalize better. Test accuracy at sigma = {SIGMAS[0]:g} less that at "
            f"{SIGMAS[-1]:g}, in points."
        )
        yield Claim(said, *POSITIVE, *mean_over(small - large))
        said = "Larger starts end with larger weights. Exponent of sigma in the sum of norms."
        yield Claim(said, *POSITIVE, *exponent(SIGMAS, end["norm"].transpose("seed", "sigma")))


def _norm(view: View) -> Float[Array, ""]:
    return sum((jnp.linalg.norm(weight) for weight in view.params.weights), jnp.zeros(()))


class _Problems(NamedTuple):
    """Kaiming's start, times sigma in every layer."""

    width: int
    data: Dataset

    def __call__(self, sigma: Array, seed: Array) -> Problem:
        data = draw_of(self.data, seed)
        _, channels, height, width = data.x.shape
        make = lambda key: ResNet18(
            in_shape=(channels, height, width),
            out_size=10,
            width_size=self.width,
            normalization=BatchNorm(),
            scaling=Scaling.kaiming(sigma=sigma),
            key=key,
            dtype=data.x.dtype,
        )
        net, state = eqx.nn.make_with_state(make)(jax.random.key(seed))
        return Problem(net, *data.train, test=data.test, loss=CrossEntropy(), state=state)
