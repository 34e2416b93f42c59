"""The register of a network's layers: the index and the shape of each array."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from ._activations import Activation
from ._build import build
from ._init import Vectors, Weights
from ._layers import AbstractLayer, Apply, Bias, Conv, Dense, Gain, Layers
from ._normalization import AbstractNormalization
from ._scaling import Scaling


class RegisteredParts(NamedTuple):
    """The arrays and hyperparameters of registered layers, ready to be set."""

    weights: Weights
    biases: Vectors
    gains: Vectors
    normalizers: tuple[eqx.nn.BatchNorm, ...]
    scaling: Scaling


@dataclasses.dataclass(frozen=True)
class LayerRegister:
    """Collects the layers of a network. Every array gets the next index, in the order in which layers are added.

    If the network has biases, every weight array comes with one, drawn by the initialization. A normalization always
    comes with its own gain (1) and bias (0).
    """

    activation: Activation
    normalization: AbstractNormalization
    bias: bool
    shapes: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    biases: list[tuple[int, bool]] = dataclasses.field(default_factory=list)  # the size, and whether it is drawn
    gains: list[int] = dataclasses.field(default_factory=list)

    def conv(self, into: int, out: int, window: int, stride: int = 1) -> Layers:
        """A convolution of window x window pixels, and its bias."""
        return self._weighted(Conv(len(self.shapes), stride), (out, into, window, window))

    def dense(self, into: int, out: int) -> Layers:
        """A dense layer, and its bias."""
        return self._weighted(Dense(len(self.shapes)), (out, into))

    def normalize(self, channels: int) -> Layers:
        """The normalization with its gain and bias; empty if there is none."""
        layer = self.normalization.layer(len(self.gains), channels)
        if layer is None:
            return ()
        self.gains.append(channels)
        self.biases.append((channels, False))
        return (layer, Gain(len(self.gains) - 1), Bias(len(self.biases) - 1))

    def activate(self, channels: int) -> Layers:
        """The normalization and the activation."""
        return (*self.normalize(channels), Apply(self.activation))

    def build(self, **options: Any) -> RegisteredParts:
        """Draws the arrays of all layers added so far; the options are passed to `build`."""
        parts = build(self.shapes, self.activation, bias=self.bias, chain=False, **options)
        dtype, drawn = parts.weights[0].dtype, iter(parts.biases)
        biases = tuple(next(drawn) if is_drawn else jnp.zeros(size, dtype) for size, is_drawn in self.biases)
        gains = tuple(jnp.ones(size, dtype) for size in self.gains)
        normalizers = (self.normalization.normalizer(size, dtype) for size in self.gains)
        kept = tuple(one for one in normalizers if one is not None)
        return RegisteredParts(parts.weights, biases, gains, kept, parts.scaling)

    def _weighted(self, layer: AbstractLayer, shape: tuple[int, ...]) -> Layers:
        self.shapes.append(shape)
        if not self.bias:
            return (layer,)
        self.biases.append((shape[0], True))
        return (layer, Bias(len(self.biases) - 1))
