"""Two-layer ReLU networks on images of ten classes, whose phases Xu & Liu Ziyin compare (figures 4 and 5)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from .._core import Problem
from ..data import Dataset, Images
from ..dynamics import Descent
from ..losses import CrossEntropy
from ..nets import MLP, Scaling
from ..observe import accuracy, test_accuracy, weight_change
from ._figure import by_scale, Runs, Scale, Table
from ._images import draw_of, drawn, images, principal


SAMPLES = by_scale(500, 5000, 50_000)
TESTS = by_scale(1000, 2000, 10_000)
EPOCHS = by_scale(800, 1000, 10_000)
COMPONENTS = 60  # at small scale, in place of the 3072 pixels
BATCH, RATE = 128, 4.0
WATCHED = [accuracy(), test_accuracy(), weight_change()]
SETTING = (
    f"At small scale {SAMPLES[Scale.SMALL]} images in their {COMPONENTS} leading principal components for "
    f"{EPOCHS[Scale.SMALL]} epochs."
)


class TwoLayerScaling(NamedTuple):
    """The scaling of a two-layer network; every entry may be traced."""

    sigma_u: Any
    sigma_w: Any
    eta: Any
    gamma: Any


def ten_classes(scale: Scale, draws: int) -> Dataset:
    """Draws of images with mean square length 1; at small scale, in their leading principal components."""
    return drawn(1 if scale is Scale.PAPER else draws, lambda key: _ten_classes(scale, key))


def _ten_classes(scale: Scale, key: PRNGKeyArray) -> Dataset:
    data = images(Images.CIFAR10, scale, n_train=SAMPLES[scale], n_test=TESTS[scale], key=key)
    if scale is Scale.SMALL:
        data = principal(data, COMPONENTS)
    size = jnp.sqrt(jnp.mean(jnp.sum(data.x**2, axis=1)))
    assert data.x_test is not None  # requested above
    return Dataset(data.x / size, data.y, data.x_test / size, data.y_test, source=data.source)


def classifier(data: Dataset, scales: TwoLayerScaling, width: int, seed: Array) -> Problem:
    """A network of one hidden layer on the seed's draw of these images."""
    data = draw_of(data, seed)
    scaling = Scaling(
        multiplier=jnp.ones(2),
        sigma=jnp.stack([scales.sigma_w, scales.sigma_u]),
        eta=jnp.stack([scales.eta, scales.eta]),
        gamma=scales.gamma,
    )
    net = MLP(
        in_size=data.x.shape[1],
        out_size=10,
        width_size=width,
        depth=1,
        activation="relu",
        scaling=scaling,
        key=jax.random.key(seed),
    )
    return Problem(net, *data.train, test=data.test, loss=CrossEntropy())


def trained(runs: Runs, make: Callable[..., Problem], axes: Any) -> Table:
    """Networks under SGD, observed at the start and at 20 evenly spaced times."""
    descent = Descent(optax.sgd(RATE), batch_size=BATCH, key=jax.random.key(1))
    steps = EPOCHS[runs.scale] * (SAMPLES[runs.scale] // BATCH)
    return runs.sweep("runs", make, axes, descent, np.linspace(0.0, RATE * steps, 21), observe=WATCHED)
