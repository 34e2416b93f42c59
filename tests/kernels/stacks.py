"""Networks of any layers, for tests of their kernels and Jacobians."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxsolve import nets
from tests.inside import Bias, Dense
from tests.nets.images import draw


TANH = nets.Apply(nets.tanh)
DENSE = (Dense(0), Bias(0), TANH, Dense(1), Bias(1), TANH, Dense(2), Bias(2))


class Zoo(nets.AbstractLayered):
    """Any layers, with arrays of the shapes they need."""

    weights: tuple[Float[Array, "out in *window"], ...]
    biases: tuple[Float[Array, " out"], ...]
    gains: tuple[Float[Array, " out"], ...]
    normalizers: tuple[eqx.nn.BatchNorm, ...]
    scaling: nets.Scaling
    shape: tuple[int, ...] = eqx.field(static=True)
    stack: Any = eqx.field(static=True)

    @property
    def in_shape(self):
        return self.shape

    @property
    def layers(self):
        return self.stack


def zoo(key, stack, weights, biases, gains, shape):
    """A network with these layers, weights of these shapes, biases and gains of these lengths, for such a sample."""
    count = len(weights)
    ramp = jnp.linspace(0, 1, count)
    drawn = lambda index, *size: draw(jax.random.fold_in(key, index), *size)
    return Zoo(
        weights=tuple(drawn(index, *size) for index, size in enumerate(weights)),
        biases=tuple(drawn(100 + index, size) for index, size in enumerate(biases)),
        gains=tuple(1 + 0.3 * drawn(200 + index, size) for index, size in enumerate(gains)),
        normalizers=(),
        scaling=nets.Scaling(0.3 + 0.4 * ramp, jnp.ones(count), 0.4 + 1.5 * ramp, 0.8, bias_eta=1.7),
        shape=shape,
        stack=stack,
    )
