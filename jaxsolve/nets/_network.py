"""What every network offers to the rest of the house."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ._scaling import Scaling


class Conserved(eqx.Module):
    """A conserved quantity of gradient flow: the difference of two terms that grow together.

    Both terms have the same shape: (h, h) between adjacent linear layers, (h,) per neuron between layers joined by a
    homogeneous activation.
    """

    outgoing: Float[Array, "..."]
    incoming: Float[Array, "..."]

    @property
    def value(self) -> Float[Array, "..."]:
        """The conserved quantity, outgoing - incoming."""
        return self.outgoing - self.incoming

    @property
    def scale(self) -> Float[Array, ""]:
        """Size of the terms, against which a drift is small or large."""
        return jnp.linalg.norm(self.outgoing) + jnp.linalg.norm(self.incoming)


class AbstractNetwork(eqx.Module):
    """A network: acts on one sample, returns (out_size,), gamma included.

    Its trainable arrays are those to which `rates` gives a rate; every other leaf is a hyperparameter.
    """

    scaling: eqx.AbstractVar[Scaling]

    @property
    @abc.abstractmethod
    def in_shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    @abc.abstractmethod
    def out_size(self) -> int:
        """The number of outputs c."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, " out"]:
        """The output for one sample."""

    @abc.abstractmethod
    def rates(self) -> PyTree:
        """A pytree shaped like the network: eta at every trainable array, None everywhere else."""

    @abc.abstractmethod
    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """The quantities that gradient flow conserves at these parameters and rates, one per pair of adjacent layers.

        Empty where nothing is known to be conserved.
        """


def rates(net: Any) -> PyTree:
    """The learning rate of every trainable array of a network, None at every other leaf.

    A module that is not an `AbstractNetwork` trains all its floating-point arrays at eta = 1.
    """
    if isinstance(net, AbstractNetwork):
        return net.rates()
    return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype) if eqx.is_inexact_array(leaf) else None, net)


def partition(net: Any) -> tuple[PyTree, PyTree]:
    """Splits a network into its trainable arrays and all the rest; `eqx.combine` puts them together again."""
    trained = jax.tree.map(lambda rate: rate is not None, rates(net), is_leaf=lambda leaf: leaf is None)
    return eqx.partition(net, trained)
