"""The empirical neural tangent kernel."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..nets import AbstractDense, partition, rates
from ._dense import dense_ntk
from ._neural_tangents import empirical_ntk


def plain(net: Any) -> PyTree:
    """eta = 1 at every trainable array: the weights of the plain NTK."""
    return jax.tree.map(jnp.ones_like, rates(net))


def empirical(
    net: Any, x1: Float[Array, "n ..."], x2: Float[Array, "m ..."] | None = None, *, eta: PyTree | None = None
) -> Float[Array, "n out m out"]:
    """sum_l eta_l <df/dtheta_l, df/dtheta_l>, gamma^2 included.

    Dense networks go layer by layer; every other module through neural-tangents (JACOBIAN_CONTRACTION).

    Arguments:
        net: a network or any Equinox module acting on one sample.
        x1: inputs, shape (n, ...).
        x2: other inputs, shape (m, ...); None takes x1.
        eta: learning rates, a pytree with a scalar at every trainable array (`nets.rates(net)` are the network's own,
            those that drive f under gradient flow). None takes 1 everywhere: the plain NTK.

    Raises:
        NeuralTangentsUnavailable: the module is not dense and neural-tangents is missing or broken.
    """
    eta = plain(net) if eta is None else eta
    if isinstance(net, AbstractDense):
        return dense_ntk(net, eta, x1, x2)
    params, static = partition(net)
    return empirical_ntk(lambda p, x: jax.vmap(eqx.combine(p, static))(x), params, eta, x1, x1 if x2 is None else x2)
