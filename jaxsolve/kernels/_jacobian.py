"""The Jacobian of a network of known layers at one point, by its products with vectors."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._checks import require_kind
from ..nets import AbstractLayer, AbstractLayered, AbstractParametric, Dense, partition
from ._contributions import Outputs
from ._inputs import check_inputs
from ._signals import parametric_layers, Signal, signals
from ._structured import of_signals


class LayeredJacobian(eqx.Module):
    """J = df/dtheta of all outputs on a set of inputs, held as the signals that pass each layer.

    A product with J or its transpose is then one matrix product per layer, half the work of automatic differentiation,
    and the NTK is a sum of Grams of the same signals.

    Arguments:
        net: a network whose layers are known (`js.kernels.unknown_layer(net)` is None).
        x: inputs, shape (n, ...).

    Raises:
        ValueError: inputs do not fit the network.
        TypeError: net is no network of known layers, or x no array.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> jacobian = js.kernels.LayeredJacobian(net, jnp.eye(2))
        >>> gradient = jacobian.pull(jnp.ones((2, 1)))
        >>> bool(jnp.allclose(jacobian.push(gradient), jacobian.ntk(js.kernels.unit_rates(net)).sum((2, 3))))
        True
    """

    net: AbstractLayered
    passing: list[Signal]

    def __init__(self, net: AbstractLayered, x: Float[Array, "n ..."]):
        require_kind(net, AbstractLayered, "net", "a network of layers that jaxsolve knows, such as nets.MLP")
        check_inputs(net, x, None, names=("x", "x2"))
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
    """A layer's output for a batch, before its multiplier, as an affine function of the network's parameters."""

    def of_sample(params: PyTree, z: Float[Array, "..."]) -> Float[Array, "..."]:
        shown: list[Array] = []

        def tap(layer: AbstractLayer, z: Array, out: Array) -> Array:
            shown.append(out)
            return out

        layer(eqx.combine(params, static), z, tap)
        return shown[0]

    return lambda params: jax.vmap(functools.partial(of_sample, params))(inputs)


def _by_columns(matrix: Float[Array, "n k"]) -> Float[Array, "k n"]:
    """The transpose, copied: on CPU, XLA multiplies by a transposed view at half the speed."""
    return jax.lax.optimization_barrier(matrix.T)


def _rows(array: Float[Array, "..."], lead: int) -> Float[Array, "..."]:
    return array.reshape(*array.shape[:lead], -1)
