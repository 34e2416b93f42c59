"""A linear model that sees every sample once, with power laws in the variances of its inputs and in its target."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._core import Problem, Stream
from ..nets import Function


MODES, NOISE = 400, 0.1  # number of Gaussian inputs; variance of the targets' noise


class PowerLaws(NamedTuple):
    """A linear model on Gaussian modes with variances k^-spectrum and powers k^-task in the target."""

    task: float
    spectrum: float

    def draw(self, seed: int) -> tuple[Float[Array, " modes"], Float[Array, " modes"]]:
        """The variances of the modes, and the squared weights of a Gaussian target."""
        k = jnp.arange(1.0, MODES + 1)
        return k**-self.spectrum, k ** (self.spectrum - self.task) * jax.random.normal(
            jax.random.key(seed), k.shape
        ) ** 2

    def __call__(self, seed: Int[Array, ""]) -> Problem:
        """The stream of the first draw; runs of all seeds have it, and samples of their own."""
        del seed
        variances, squares = self.draw(0)

        def sample(key: Array, size: int) -> tuple[Float[Array, "size modes"], Float[Array, "size 1"]]:
            inputs, noise = jax.random.split(key)
            x = jax.random.normal(inputs, (size, MODES)) * jnp.sqrt(variances)[None, :]
            return x, (x @ jnp.sqrt(squares))[:, None] + NOISE**0.5 * jax.random.normal(noise, (size, 1))

        net = Function(lambda weights, x: weights @ x, jnp.zeros((1, MODES)))
        return Stream(net, sample, key=jax.random.key(0))
