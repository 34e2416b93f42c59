"""Shared parts of the figures of Bordelon & Pehlevan: random tasks, networks of any richness, and how kernels agree."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int

from .._core import Problem
from ..dynamics import Descent, RichLimit
from ..nets import Activation, MLP, Scaling
from ..observe import feature_kernel, loss, Observable
from ._figure import Data, Runs, Table, Values


LIMIT_WIDTH = 100  # of the network whose limit is taken: any is the same


class Training(NamedTuple):
    """A training by gradient descent on random inputs, with one sign for each half of them.

    Attributes:
        samples, dimension: of the inputs.
        rate, steps: of descent.
        depth: hidden layers.
        activation: of them.
        slope: the activation is tanh(slope h)/slope, as factors of the first and of the last layer say it.
        every: steps from one time that is looked at to the next.
    """

    samples: int
    dimension: int
    rate: float
    steps: int
    depth: int
    activation: Activation
    slope: float = 1.0
    every: int = 1

    @property
    def seen(self) -> Int[np.ndarray, " times"]:
        """The steps that are looked at."""
        return np.arange(0, self.steps, self.every)

    @property
    def times(self) -> Float[np.ndarray, " times"]:
        """The times of these steps."""
        return self.rate * self.seen

    @property
    def descent(self) -> Descent:
        """The descent of a network."""
        return Descent(optax.sgd(self.rate))

    @property
    def limit(self) -> RichLimit:
        """The infinitely wide one."""
        return RichLimit(rate=self.rate, nodes=self.steps)

    @property
    def watched(self) -> list[Observable]:
        """The loss, and the kernels of all hidden layers."""
        return [loss(), *(feature_kernel(layer) for layer in range(1, self.depth + 1))]

    def measured(self, runs: Runs, richness: Any, widths: Sequence[int], seeds: int, **options: Any) -> Data:
        """Networks by richness, width and seed, and their limits."""
        axes, watched = {"richness": np.asarray(richness)}, self.watched
        networks = {**axes, "width": list(widths), "seed": range(seeds)}
        limit = {**axes, "width": [LIMIT_WIDTH], "seed": [0]}
        return {
            "networks": runs.sweep("networks", self, networks, self.descent, self.times, observe=watched, **options),
            "limit": runs.sweep("limit", self, limit, self.limit, self.times, observe=watched, **options),
        }

    def data(self) -> tuple[Float[Array, "n d"], Float[Array, "n 1"]]:
        """The inputs of their notebooks: JAX drew random numbers in another order then."""
        with jax.ensure_compile_time_eval(), jax.threefry_partitionable(False):
            x = jax.random.normal(jax.random.key(0), (self.dimension, self.samples), jnp.float32).T
        half = jnp.arange(self.samples) < self.samples // 2
        y = jnp.where(half, 1.0, -1.0)[:, None]
        return x.astype(y.dtype), y

    def __call__(self, richness: Array, width: int, seed: Int[ArrayLike, ""]) -> Problem:
        """Their gamma_0 is the richness: f is divided by it, and rates are multiplied by its square and the width."""
        x, y = self.data()
        multiplier = np.array([self.slope / self.dimension**0.5, *[width**-0.5] * (self.depth - 1), 1 / width])
        multiplier[-1] /= self.slope
        scaling = Scaling(
            multiplier=multiplier,
            sigma=np.ones(self.depth + 1),
            eta=width * richness**2 * jnp.ones(self.depth + 1),
            gamma=1 / richness,
        )
        key = jax.random.key(seed)
        net = MLP(
            in_size=self.dimension,
            out_size=1,
            width_size=width,
            depth=self.depth,
            activation=self.activation,
            scaling=scaling,
            key=key,
        )
        return Problem(net, x, y)


def agreement(network: Table, limit: Table, *layers: int) -> Values:
    """The cosine between kernels of all times, each with those of the same time; the mean over some layers."""
    axes, cosines = ("t", "sample", "sample_2"), list[Any]()
    for layer in layers:
        one, known = network[f"feature_kernel_{layer}"], limit[f"feature_kernel_{layer}"]
        two = known + 0 * one  # at one time, it is that of all
        cosines.append((one * two).sum(axes) / ((one**2).sum(axes) * (two**2).sum(axes)) ** 0.5)
    total: Any = sum(cosines)
    return total / len(cosines)
