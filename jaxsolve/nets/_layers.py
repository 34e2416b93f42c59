"""The layers of networks, written down once: the forward pass, the NTK and the infinite-width limit all read them.

A layer is a static description. Its parameters stay in the network: a layer holds their index in the network's
`weights`, `biases` or `gains`.
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
        """The layer's output for input z, with the parameters of `net`; a `Tap` may observe or change it."""


Layers = tuple[AbstractLayer, ...]

Tap = Callable[[AbstractLayer, Array, Array], Array]
"""Called with the layer, its input and its output before the multiplier, at every layer that has parameters and at
every `StandardizeBatch`. The network continues with its return value."""


def pass_on(layer: AbstractLayer, z: Array, out: Array) -> Array:
    """The tap that changes nothing."""
    return out


def run(net: Any, layers: Layers, z: Float[Array, "..."], tap: Tap = pass_on) -> Float[Array, "..."]:
    """The output of layers, one after the other, for input z, with the parameters of `net`."""
    for layer in layers:
        z = layer(net, z, tap)
    return z


class AbstractParametric(AbstractLayer):
    """A layer with one trainable array, in which its output is linear."""

    index: int

    @abc.abstractmethod
    def parameter(self, tree: PyTree) -> Any:
        """The layer's array in a network, or the corresponding entry of a tree of the same shape, such as its rates."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The field and index of the layer's array, such as `weights[0]`."""


class AbstractWeighted(AbstractParametric):
    """A layer with one of the weight matrices, each of which has its own hyperparameters in a `js.nets.Scaling`."""

    def parameter(self, tree: PyTree) -> Any:
        return tree.weights[self.index]

    @property
    def name(self) -> str:
        return f"weights[{self.index}]"


@dataclasses.dataclass(frozen=True)
class Dense(AbstractWeighted):
    """m_l W_l z, without a bias."""

    index: int

    def __call__(self, net: Any, z: Float[Array, " in"], tap: Tap) -> Float[Array, " out"]:
        # z W^T instead of W z: the samples of a batch then stay the rows, and nothing is transposed.
        return net.scaling.multiplier[self.index] * tap(self, z, z @ net.weights[self.index].T)


@dataclasses.dataclass(frozen=True)
class Conv(AbstractWeighted):
    """m_l W_l * z, W_l of shape (out, in, height, width), with zero padding that keeps the size at stride 1.

    At stride s the output has ceil(size/s) pixels along each axis.
    """

    index: int
    stride: int = 1

    def __call__(self, net: Any, z: Float[Array, "in h w"], tap: Tap) -> Float[Array, "out h2 w2"]:
        stride = (self.stride, self.stride)
        out = jax.lax.conv_general_dilated(z[None], net.weights[self.index], stride, "SAME")[0]
        return net.scaling.multiplier[self.index] * tap(self, z, out)


@dataclasses.dataclass(frozen=True)
class Bias(AbstractParametric):
    """z + b, with one b per feature or channel."""

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
    """g z, with one g per feature or channel; it follows a normalization."""

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
    """phi(z), elementwise.

    Example:
        >>> js.nets.Apply(js.nets.relu)(None, jnp.array([-1.0, 2.0]), lambda layer, z, out: out).tolist()
        [0.0, 2.0]
    """

    activation: Activation

    def __call__(self, net: Any, z: Float[Array, "..."], tap: Tap) -> Float[Array, "..."]:
        return self.activation(z)


@dataclasses.dataclass(frozen=True)
class Mask(AbstractLayer):
    """Sets all features after the first `net.units` to 0; it follows every activation of a padded network.

    If phi(0) != 0, an activation makes the padding nonzero. The mask lets no signal leave the padding, and no gradient
    reach it.
    """

    def __call__(self, net: Any, z: Float[Array, " features"], tap: Tap) -> Float[Array, " features"]:
        return keep(z, (net.units,))


@dataclasses.dataclass(frozen=True)
class StandardizeGroups(AbstractLayer):
    """Mean 0 and variance 1 over each of `groups` equal groups of channels of one sample.

    Gain and bias are separate layers. `js.nets.GroupNorm` gives a network all three.
    """

    groups: int
    eps: float = 1e-5

    def __call__(self, net: Any, z: Float[Array, "features ..."], tap: Tap) -> Float[Array, "features ..."]:
        grouped = z.reshape(self.groups, -1)
        centered = grouped - jnp.mean(grouped, axis=1, keepdims=True)
        # From centered numbers: E[z^2] - E[z]^2 would cancel where the mean is large.
        variance = jnp.mean(centered**2, axis=1, keepdims=True)
        return (centered * jax.lax.rsqrt(variance + self.eps)).reshape(z.shape)


@dataclasses.dataclass(frozen=True)
class StandardizeBatch(AbstractLayer):
    """Mean 0 and variance 1 of every channel over a whole batch.

    One sample does not determine this. The layer passes its input to the tap, with which the forward pass of a network
    applies its `normalizers[index]`. `js.nets.BatchNorm` gives a network this layer, with gain and bias.
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
class AveragePool(AbstractLayer):
    """The average over each square of `window` x `window` pixels; incomplete squares at the edges are dropped."""

    window: int

    def __call__(self, net: Any, z: Float[Array, "channels h w"], tap: Tap) -> Float[Array, "channels h2 w2"]:
        channels, height, width = z.shape[0], z.shape[1] // self.window, z.shape[2] // self.window
        whole = z[:, : height * self.window, : width * self.window]
        return jnp.mean(whole.reshape(channels, height, self.window, width, self.window), axis=(2, 4))


@dataclasses.dataclass(frozen=True)
class Flatten(AbstractLayer):
    """All pixels of all channels as one vector, channel after channel."""

    def __call__(self, net: Any, z: Float[Array, "channels h w"], tap: Tap) -> Float[Array, " features"]:
        return z.reshape(-1)


@dataclasses.dataclass(frozen=True)
class Residual(AbstractLayer):
    """branch(z) + shortcut(z); an empty shortcut is the identity.

    Example:
        >>> layer = js.nets.Residual((js.nets.Apply(js.nets.relu),))
        >>> layer(None, jnp.array([-1.0, 2.0]), lambda layer, z, out: out).tolist()
        [-1.0, 4.0]
    """

    branch: Layers
    shortcut: Layers = ()

    def __call__(self, net: Any, z: Float[Array, "..."], tap: Tap) -> Float[Array, "..."]:
        return run(net, self.branch, z, tap) + run(net, self.shortcut, z, tap)


def per_channel(vector: Float[Array, " features"], z: Float[Array, "features ..."]) -> Float[Array, "features ..."]:
    """One number per channel, shaped so that it broadcasts against z."""
    return vector.reshape(vector.shape + (1,) * (z.ndim - 1))
