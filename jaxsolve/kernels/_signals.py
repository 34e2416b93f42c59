"""What a batch sends through a network: the input of every layer with parameters, and d output/d its output."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nets import AbstractLayer, AbstractLayered, AbstractParametric, run


class Signal(NamedTuple):
    """What passes one layer with parameters, for a batch of n samples."""

    inputs: Float[Array, "n ..."]
    back: Float[Array, "n out ..."]  # d f_a / d (the layer's output before its multiplier), gamma included


def tapped_layers(net: AbstractLayered) -> list[AbstractLayer]:
    """All layers that call a tap, in the order of the forward pass."""
    found: list[AbstractLayer] = []

    def tap(layer: AbstractLayer, z: Array, out: Array) -> Array:
        found.append(layer)
        return out

    x = jax.ShapeDtypeStruct(net.in_shape, net.weights[0].dtype)
    # The network is an argument, not a constant: where it is known by its shapes only, it has no arrays to close over.
    eqx.filter_eval_shape(lambda net, x: run(net, net.layers, x, tap), net, x)
    return found


def parametric_layers(net: AbstractLayered) -> list[AbstractParametric]:
    """The layers with parameters, in the order of the forward pass."""
    return [layer for layer in tapped_layers(net) if isinstance(layer, AbstractParametric)]


def signals(net: AbstractLayered, x: Float[Array, "n ..."]) -> list[Signal]:
    """The signals at all of `parametric_layers`, which must be all of its `tapped_layers`.

    Derivatives with respect to a push at each layer's output: one forward pass, and one backward pass per output.
    """

    def pushed(pushes: list[Array] | None, sample: Array) -> tuple[Array, tuple[list[Array], list[Array]]]:
        seen: list[Array] = []
        outs: list[Array] = []

        def tap(layer: AbstractLayer, z: Array, out: Array) -> Array:
            seen.append(z)
            outs.append(out)
            return out if pushes is None else out + pushes[len(outs) - 1]

        return net.scaling.gamma * run(net, net.layers, sample, tap), (seen, outs)

    def of_sample(sample: Array) -> tuple[list[Array], list[Array]]:
        _, (_, shapes) = jax.eval_shape(lambda s: pushed(None, s), sample)
        zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
        outputs, pull, (seen, _) = jax.vjp(lambda pushes: pushed(pushes, sample), zeros, has_aux=True)
        (back,) = jax.vmap(pull)(jnp.eye(outputs.shape[0], dtype=outputs.dtype))
        return seen, back

    return [Signal(*pair) for pair in zip(*jax.vmap(of_sample)(x), strict=True)]
