"""Shared parts of the figures of Bordelon & Pehlevan: random tasks, networks of any richness, and kernel agreement."""

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


LIMIT_WIDTH = 100  # of the network whose limit is taken; any width gives the same limit


class Training(NamedTuple):
    """Training by gradient descent on random inputs, with target 1 for one half of them and -1 for the other.

    Attributes:
        samples, dimension: number and dimension of the inputs.
        rate, steps: of gradient descent.
        depth: number of hidden layers.
        activation: activation of the hidden layers.
        slope: makes the activation tanh(slope h)/slope, by factors in the first and in the last layer.
        every: steps between recorded times.
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
        """The recorded steps."""
        return np.arange(0, self.steps, self.every)

    @property
    def times(self) -> Float[np.ndarray, " times"]:
        """The times of these steps."""
        return self.rate * self.seen

    @property
    def descent(self) -> Descent:
        """The gradient descent of a finite network."""
        return Descent(optax.sgd(self.rate))

    @property
    def limit(self) -> RichLimit:
        """The gradient descent of an infinitely wide network."""
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
        """The inputs and targets of the paper's notebooks, drawn in the order that JAX had at the time."""
        with jax.ensure_compile_time_eval(), jax.threefry_partitionable(False):
            x = jax.random.normal(jax.random.key(0), (self.dimension, self.samples), jnp.float32).T
        half = jnp.arange(self.samples) < self.samples // 2
        y = jnp.where(half, 1.0, -1.0)[:, None]
        return x.astype(y.dtype), y

    def __call__(self, richness: Array, width: int, seed: Int[ArrayLike, ""]) -> Problem:
        """The richness is the paper's gamma_0: it divides f, and its square times the width multiplies the rates."""
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
    """The cosine between the network's and the limit's kernels over all times, averaged over the layers."""
    axes, cosines = ("t", "sample", "sample_2"), list[Any]()
    for layer in layers:
        one, known = network[f"feature_kernel_{layer}"], limit[f"feature_kernel_{layer}"]
        two = known + 0 * one  # a kernel at a single time counts for all times
        cosines.append((one * two).sum(axes) / ((one**2).sum(axes) * (two**2).sum(axes)) ** 0.5)
    total: Any = sum(cosines)
    return total / len(cosines)
