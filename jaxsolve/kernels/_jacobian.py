"""The Jacobian of a network of known layers at one point, by its products with vectors."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..nets import AbstractLayer, AbstractLayered, AbstractParametric, Dense, partition
from ._contributions import Outputs
from ._signals import parametric_layers, Signal, signals
from ._structured import of_signals


class LayeredJacobian(eqx.Module):
    """J = df/dtheta of all outputs on a set of inputs, held as the signals that pass each layer.

    With them a product with J or its transpose is one matrix product per layer, half of what automatic differentiation
    needs, and the NTK is the same signals' Grams.
    """

    net: AbstractLayered
    passing: list[Signal]

    def __init__(self, net: AbstractLayered, x: Float[Array, "n ..."]):
        self.net, self.passing = net, signals(net, x)

    @property
    def params(self) -> PyTree:
        """The parameters at the point."""
        return partition(self.net)[0]

    def push(self, v: PyTree[Float[Array, "..."]]) -> Float[Array, "n out"]:
        """J v for v shaped like the parameters."""
        params, static = partition(self.net)
        total = []
        for layer, signal in self._layers():
            forward = _linear_in_parameters(layer, static, signal.inputs)
            _, moved = jax.jvp(forward, (params,), (v,))
            total.append(jnp.einsum("nak,nk->na", _rows(signal.back, 2), _rows(moved, 1)))
        return sum(total[1:], total[0])

    def pull(self, q: Float[Array, "n out"]) -> PyTree[Float[Array, "..."]]:
        """J^T q, shaped like the parameters."""
        params, static = partition(self.net)
        total = jax.tree.map(jnp.zeros_like, params)
        for layer, signal in self._layers():
            out = jnp.einsum("na,na...->n...", q, signal.back)
            if isinstance(layer, Dense):
                own = _by_columns(out) @ signal.inputs
            else:
                forward = _linear_in_parameters(layer, static, signal.inputs)
                own = layer.parameter(jax.vjp(forward, params)[1](out)[0])
            total = eqx.tree_at(layer.parameter, total, own)
        return total

    def ntk(self, eta: PyTree) -> Float[Array, "n out n out"]:
        """The NTK between the inputs and themselves, eta-weighted; symmetric to the last bit."""
        return of_signals(self.net, eta, self.passing, Outputs.ALL)

    def _layers(self) -> list[tuple[AbstractParametric, Signal]]:
        return list(zip(parametric_layers(self.net), self.passing, strict=True))


def _linear_in_parameters(
    layer: AbstractParametric, static: PyTree, inputs: Float[Array, "n ..."]
) -> Callable[[PyTree], Float[Array, "n ..."]]:
    """What a layer shows to a tap for a batch, as a function of the network's parameters; affine in them."""

    def of_sample(params: PyTree, z: Float[Array, "..."]) -> Float[Array, "..."]:
        shown: list[Array] = []

        def tap(layer: AbstractLayer, z: Array, out: Array) -> Array:
            shown.append(out)
            return out

        layer(eqx.combine(params, static), z, tap)
        return shown[0]

    return lambda params: jax.vmap(functools.partial(of_sample, params))(inputs)


def _by_columns(matrix: Float[Array, "n k"]) -> Float[Array, "k n"]:
    """The transpose, laid out anew: on processors XLA multiplies the columns of a matrix at half the speed."""
    return jax.lax.optimization_barrier(matrix.T)


def _rows(array: Float[Array, "..."], lead: int) -> Float[Array, "..."]:
    return array.reshape(*array.shape[:lead], -1)
