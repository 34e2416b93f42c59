"""Sequences of known layers as networks: one forward pass, one set of rates, one rule for conserved quantities."""

import abc
from collections.abc import Iterator
from typing import NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ._layers import (
    AbstractLayer,
    AbstractWeighted,
    Apply,
    AveragePool,
    Bias,
    Layers,
    Mask,
    Residual,
    run,
    SpatialMean,
    StandardizeBatch,
)
from ._network import AbstractNetwork, Conserved


class AbstractLayered(AbstractNetwork):
    """A network of layers that jaxsolve knows: f(x) = gamma z, where z is the output of the last layer.

    A subclass defines its `layers` and holds their arrays. The forward pass, the rates, the conserved quantities, the
    layerwise NTK and the infinite-width kernels all follow from these.

    Attributes:
        weights: one array per entry of the scaling, counted from the input; convolutions have trailing window axes.
        biases, gains: vectors with one number per feature or channel, trained at the scaling's `bias_eta`.
        normalizers: called by the `StandardizeBatch` layers; a network that has any is made by
            `eqx.nn.make_with_state` and called as `net(x, state)` under `jax.vmap(..., axis_name="batch")`.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=3, depth=1, activation="tanh", bias=True,
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> net.layers
        (Dense(index=0), Bias(index=0), Apply(activation=tanh), Dense(index=1), Bias(index=1))
    """

    weights: eqx.AbstractVar[tuple[Float[Array, "out in *window"], ...]]
    biases: eqx.AbstractVar[tuple[Float[Array, " out"], ...]]
    gains: eqx.AbstractVar[tuple[Float[Array, " out"], ...]]
    normalizers: eqx.AbstractVar[tuple[eqx.nn.BatchNorm, ...]]

    @property
    @abc.abstractmethod
    def layers(self) -> Layers:
        """The layers, counted from the input."""

    @property
    def out_size(self) -> int:
        return self.weights[-1].shape[0]

    @overload
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, " out"]: ...
    @overload
    def __call__(self, x: Float[Array, "..."], state: eqx.nn.State) -> tuple[Float[Array, " out"], eqx.nn.State]: ...

    def __call__(self, x, state=None):
        """The output for one sample; with a state, also the next state."""
        if state is None:
            if self.normalizers:
                raise ValueError(
                    "this network normalizes over batches: call it as net(x, state) under jax.vmap(net, "
                    'axis_name="batch", in_axes=(0, None), out_axes=(0, None)), or give Problem its state='
                )
            return self.scaling.gamma * run(self, self.layers, x)

        def normalize(layer: AbstractLayer, z: Array, out: Array) -> Array:
            nonlocal state
            if isinstance(layer, StandardizeBatch):
                out, state = self.normalizers[layer.index](z, state)
            return out

        out = self.scaling.gamma * run(self, self.layers, x, normalize)
        return out, state

    def rates(self) -> PyTree:
        # Indexing, not unpacking: iterating over a traced array would add one slice per layer to the program, twice.
        found = {
            "weights": tuple(self.scaling.eta[index] for index in range(len(self.weights))),
            "biases": tuple(self.scaling.bias_eta for _ in self.biases),
            "gains": tuple(self.scaling.bias_eta for _ in self.gains),
        }
        found = {name: rates for name, rates in found.items() if rates}
        empty = jax.tree.map(lambda _: None, self)
        where = lambda net: [getattr(net, name) for name in found]
        return eqx.tree_at(where, empty, list(found.values()), is_leaf=lambda leaf: leaf is None)

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """One quantity per pair of adjacent weight matrices; the multipliers cancel out of it.

        Between linear layers it is the matrix W_{l+1}^T W_{l+1}/eta_{l+1} - (W_l W_l^T/eta_l + b_l b_l^T/eta_b); across
        a homogeneous activation it is the diagonal, one number per neuron or channel. Across other activations,
        normalizations and the ends of residual branches, nothing is known to be conserved.
        """
        quantities = []
        for pair in _adjacent(self.layers):
            outer = (lambda a: a @ a.T) if pair.linear else (lambda a: jnp.sum(a**2, axis=1))
            # Rows are the features between the two arrays: inputs of the one above, outputs of the one below.
            above, below = pair.above.parameter(params), pair.below.parameter(params)
            outgoing = outer(_by_row(jnp.swapaxes(above, 0, 1))) / pair.above.parameter(eta)
            incoming = outer(_by_row(below)) / pair.below.parameter(eta)
            if pair.bias is not None:
                incoming = incoming + outer(pair.bias.parameter(params)[:, None]) / pair.bias.parameter(eta)
            quantities.append(Conserved(outgoing, incoming))
        return tuple(quantities)


class AbstractUnnormalized(AbstractLayered):
    """A layered network without normalizations."""

    @property
    def gains(self) -> tuple[Float[Array, " out"], ...]:
        """Empty: there are no normalizations."""
        return ()

    @property
    def normalizers(self) -> tuple[eqx.nn.BatchNorm, ...]:
        """Empty: there are no normalizations."""
        return ()


class _Pair(NamedTuple):
    below: AbstractWeighted
    bias: Bias | None  # of the layer below
    above: AbstractWeighted
    linear: bool  # whether everything between them is linear


def _adjacent(layers: Layers) -> Iterator[_Pair]:
    """All pairs of weight matrices that a homogeneous function joins feature by feature."""
    below, bias, linear = None, None, True
    for layer in layers:
        if isinstance(layer, AbstractWeighted):
            if below is not None:
                yield _Pair(below, bias, layer, linear)
            below, bias, linear = layer, None, True
        elif isinstance(layer, Bias):
            bias = layer
        elif isinstance(layer, Apply) and layer.activation.homogeneous:
            linear = linear and layer.activation.linear
        elif isinstance(layer, Residual):
            below = None
            yield from _adjacent(layer.branch)
            yield from _adjacent(layer.shortcut)
        # These act linearly on each feature separately, so pairs reach across them; any other layer ends a pair.
        elif not isinstance(layer, SpatialMean | AveragePool | Mask):
            below = None


def _by_row(a: Float[Array, "rows ..."]) -> Float[Array, "rows entries"]:
    return a.reshape(a.shape[0], -1)
