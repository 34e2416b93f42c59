"""The NTK of a dense network: per layer, the Gram of its inputs times the Gram of the signals propagated back to it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..nets import AbstractDense


class _Signals(NamedTuple):
    """Of one batch, for every layer: its input, and d output / d z_{l+1}."""

    inputs: list[Float[Array, "n in"]]
    back: list[Float[Array, "n out width"]]


def _signals(net: AbstractDense, x: Float[Array, "n in"]) -> _Signals:
    multiplier, last = net.scaling.multiplier, len(net.weights) - 1
    z, inputs, slopes = x, [], []
    for index, w in enumerate(net.weights):
        if index:
            z, slope = jax.jvp(net.activation, (z,), (jnp.ones_like(z),))
            slopes.append(slope)
        inputs.append(z)
        z = multiplier[index] * (z @ w.T)
        if net.biases:
            z = z + net.biases[index][None, :]
    signal = jnp.broadcast_to(
        net.scaling.gamma * jnp.eye(net.out_size, dtype=z.dtype), (x.shape[0], net.out_size, net.out_size)
    )
    back = [signal]
    for index in range(last, 0, -1):
        signal = multiplier[index] * (signal @ net.weights[index]) * slopes[index - 1][:, None, :]
        back.append(signal)
    return _Signals(inputs, back[::-1])


def dense_ntk(
    net: AbstractDense, eta: PyTree, x1: Float[Array, "n in"], x2: Float[Array, "m in"] | None
) -> Float[Array, "n out m out"]:
    """sum_l eta_l m_l^2 <input, input'> <back, back'>, and the same without the inputs for biases."""
    one = _signals(net, x1)
    two = one if x2 is None else _signals(net, x2)
    kernel = jnp.zeros((), x1.dtype)
    for index in range(len(net.weights)):
        gram_back = jnp.einsum("nao,mbo->namb", one.back[index], two.back[index])
        gram_in = eta.weights[index] * net.scaling.multiplier[index] ** 2 * (one.inputs[index] @ two.inputs[index].T)
        if net.biases:
            gram_in = gram_in + eta.biases[index]
        kernel = kernel + gram_in[:, None, :, None] * gram_back
    return kernel
