"""Networks with one number left out of their formula, which no check of the formula may accept."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxsolve import nets


def left_out(net: nets.AbstractNetwork) -> Iterator[Any]:
    """The network without gamma, without each multiplier, and without each vector of biases and gains in turn."""
    yield eqx.tree_at(lambda net: net.scaling.gamma, net, jnp.ones_like(net.scaling.gamma))
    for index in range(len(net.scaling.multiplier)):
        one = net.scaling.multiplier.at[index].set(1)
        yield eqx.tree_at(lambda net: net.scaling.multiplier, net, one)
    for index, bias in enumerate(getattr(net, "biases", ())):
        yield eqx.tree_at(lambda net, i=index: net.biases[i], net, jnp.zeros_like(bias))
    for index, gain in enumerate(getattr(net, "gains", ())):
        yield eqx.tree_at(lambda net, i=index: net.gains[i], net, jnp.ones_like(gain))
