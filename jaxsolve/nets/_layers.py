"""What networks are made of, written down once: the forward pass, the NTK and the infinite-width limit all read it.

A layer is a static description. Its parameters stay in the network (`weights`, `biases`, `gains`), counted by index.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ._activations import Activation
from ._padded import keep


class AbstractLayer(abc.ABC):
    """One step of a network's computation on one sample: vectors (features,) or images (channels, height, width)."""

    @abc.abstractmethod
    def __call__(self, net: Any, z: Float[Array, "..."], tap: "Tap") -> Float[Array, "..."]:
        """The layer's output for input z, with the parameters of `net`; see `Tap`."""


# Called at every layer that has parameters, and at every `StandardiseBatch`, with the layer, its input, and its output
# before the multiplier. The network goes on with what it returns.
Tap = Callable[[AbstractLayer, Array, Array], Array]
Layers = tuple[AbstractLayer, ...]


def pass_on(layer: AbstractLayer, z: Array, out: Array) -> Array:
    """The tap that changes nothing."""
    return out


def run(net: Any, layers: Layers, z: Float[Array, "..."], tap: Tap = pass_on) -> Float[Array, "..."]:
    """One layer after the other."""
    for layer in layers:
        z = layer(net, z, tap)
    return z


class AbstractParametric(AbstractLayer):
    """A layer with one trainable array, linear in it."""

    index: int

    @abc.abstractmethod
    def parameter(self, tree: PyTree) -> Any:
        """The layer's array in a network, or what a tree of its shape (such as rates) holds in its place."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The field and index of the layer's array, such as `weights[0]`."""


class AbstractWeighted(AbstractParametric):
    """A layer with one of the weight matrices, to which the hyperparameters of a `Scaling` belong."""

    def parameter(self, tree: PyTree) -> Any:
        return tree.weights[self.index]

    @property
    def name(self) -> str:
        return f"weights[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Dense(AbstractWeighted):
    """m_l W_l z."""

    index: int

    def __call__(self, net: Any, z: Float[Array, " in"], tap: Tap) -> Float[Array, " out"]:
        # Samples stay the rows, also in a batch: W z would turn them into columns, and back.
        return net.scaling.multiplier[self.index] * tap(self, z, z @ net.weights[self.index].T)


@dataclasses.dataclass(frozen=True)
class Conv(AbstractWeighted):
    """m_l W_l * z, W_l of shape (out, in, height, width), zeros around the image so that stride 1 keeps its size.

    At a stride s the output has ceil(size/s) pixels along each axis.
    """

    index: int
    stride: int = 1

    def __call__(self, net: Any, z: Float[Array, "in h w"], tap: Tap) -> Float[Array, "out h2 w2"]:
        stride = (self.stride, self.stride)
        out = jax.lax.conv_general_dilated(z[None], net.weights[self.index], stride, "SAME")[0]
        return net.scaling.multiplier[self.index] * tap(self, z, out)


@dataclasses.dataclass(frozen=True)
class Bias(AbstractParametric):
    """z + b, one b per feature or channel."""

    index: int

    def __call__(self, net: Any, z: Float[Array, "features ..."], tap: Tap) -> Float[Array, "features ..."]:
        return tap(self, z, z + per_channel(self.parameter(net), z))

    def parameter(self, tree: PyTree) -> Any:
        return tree.biases[self.index]

    @property
    def name(self) -> str:
        return f"biases[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Gain(AbstractParametric):
    """g z, one g per feature or channel: what follows a normalisation."""

    index: int

    def __call__(self, net: Any, z: Float[Array, "features ..."], tap: Tap) -> Float[Array, "features ..."]:
        return tap(self, z, z * per_channel(self.parameter(net), z))

    def parameter(self, tree: PyTree) -> Any:
        return tree.gains[self.index]

    @property
    def name(self) -> str:
        return f"gains[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Apply(AbstractLayer):
    """phi(z), elementwise."""

    activation: Activation

    def __call__(self, net: Any, z: Float[Array, "..."], tap: Tap) -> Float[Array, "..."]:
        return self.activation(z)


@dataclasses.dataclass(frozen=True)
class Mask(AbstractLayer):
    """z of the first `net.units` features, exactly 0 behind them: after every activation of a padded network.

    An activation with phi(0) != 0 would wake the units behind. Behind the mask no signal leaves them,
    and none comes back.
    """

    def __call__(self, net: Any, z: Float[Array, " features"], tap: Tap) -> Float[Array, " features"]:
        return keep(z, (net.units,))


@dataclasses.dataclass(frozen=True)
class StandardiseGroups(AbstractLayer):
    """Mean 0 and variance 1 over each of `groups` equal groups of channels of one sample."""

    groups: int
    eps: float = 1e-5

    def __call__(self, net: Any, z: Float[Array, "features ..."], tap: Tap) -> Float[Array, "features ..."]:
        grouped = z.reshape(self.groups, -1)
        centred = grouped - jnp.mean(grouped, axis=1, keepdims=True)
        variance = jnp.mean(centred**2, axis=1, keepdims=True)
        return (centred * jax.lax.rsqrt(variance + self.eps)).reshape(z.shape)


@dataclasses.dataclass(frozen=True)
class StandardiseBatch(AbstractLayer):
    """Mean 0 and variance 1 of every channel over a whole batch, which one sample does not know.

    So the layer leaves its input to the tap; a network's forward pass taps it with its `normalisers[index]`.
    """

    index: int

    def __call__(self, net: Any, z: Float[Array, "channels ..."], tap: Tap) -> Float[Array, "channels ..."]:
        return tap(self, z, z)


@dataclasses.dataclass(frozen=True)
class SpatialMean(AbstractLayer):
    """The average over all pixels: (channels, height, width) to (channels,)."""

    def __call__(self, net: Any, z: Float[Array, "channels h w"], tap: Tap) -> Float[Array, " channels"]:
        return jnp.mean(z, axis=(1, 2))


@dataclasses.dataclass(frozen=True)
class Residual(AbstractLayer):
    """branch(z) + shortcut(z); an empty shortcut is the identity."""

    branch: Layers
    shortcut: Layers = ()

    def __call__(self, net: Any, z: Float[Array, "..."], tap: Tap) -> Float[Array, "..."]:
        return run(net, self.branch, z, tap) + run(net, self.shortcut, z, tap)


def per_channel(vector: Float[Array, " features"], z: Float[Array, "features ..."]) -> Float[Array, "features ..."]:
    """One number per channel, ready to meet z."""
    return vector.reshape(vector.shape + (1,) * (z.ndim - 1))
