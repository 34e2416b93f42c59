"""Residual networks for small images."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Key

from .._checks import describe, require_size
from ._activations import Activation, find_activation
from ._images import require_image
from ._init import AbstractInit, Gaussian, Vectors, Weights
from ._layer_register import LayerRegister
from ._layered import AbstractLayered
from ._layers import Apply, Layers, Residual, SpatialMean
from ._normalization import AbstractNormalization, NoNormalization
from ._padded import require_unpadded
from ._scaling import Scaling, ScalingRule


class WideResNet(AbstractLayered):
    """The pre-activation wide residual network WRN-(6b+4)-k (Zagoruyko & Komodakis, 2016).

    A 3 x 3 convolution to 16 channels, three groups of b blocks of 16k, 32k and 64k channels, the average over the
    image and a dense read-out. A block is z + C(phi(N(C(phi(N(z)))))) with 3 x 3 convolutions C, the normalization N
    and the activation phi. Where the first block of a group changes the number of channels or the size of the image,
    a 1 x 1 convolution of phi(N(z)) replaces the first z. The second and the third group begin with stride 2.
    The depth 6b + 4 counts the convolutions; k = 1 needs no 1 x 1 convolution in the first group and has one less.

    Branch and shortcut are added without rescaling: without normalization, the signal grows with b at any k.
    The first convolution does not widen with k, so rules such as `Scaling.mup`, whose first rate is the number of its
    output channels, use 16 there.

    Arguments:
        in_shape: (channels, height, width) of one image, at least 4 pixels each way.
        out_size: outputs c.
        k: widening factor.
        b: blocks per group.
        activation: a name, an `Activation` or any elementwise function.
        window: pixels across the convolutions that are 3 x 3 above, an odd number; with zero padding.
        normalization: `NoNormalization()`, `GroupNorm(groups)` or `BatchNorm()` (see there for the network's state).
        scaling: a `Scaling`, or a rule such as `Scaling.ntk()`. It has one set of hyperparameters per weight array,
            counted from the input, with the 1 x 1 convolution of a block after its 3 x 3 ones. Gains and all biases
            train at its `bias_eta`.
        key: a JAX random key.

    Other Arguments:
        bias: whether every convolution and the read-out have biases, in addition to those of the normalization.
        init: the initial weights: `Gaussian` or `Given`.
        dtype: of the weights; the default float if None.

    Example:
        >>> scaling, norm = js.nets.Scaling.kaiming(), js.nets.GroupNorm(8)
        >>> make = lambda key: js.nets.WideResNet(
        ...     in_shape=(3, 32, 32), out_size=10, k=1, b=1, normalization=norm, scaling=scaling, key=key
        ... )
        >>> len(jax.eval_shape(make, jax.random.key(0)).weights)  # WRN-10-1: without drawing the weights
        10

    Raises:
        ValueError, TypeError: a size, the activation, the normalization, the scaling or the init is not as described
            above, or the groups of the normalization do not divide a number of channels.
    """

    weights: Weights
    biases: Vectors
    gains: Vectors
    normalizers: tuple[eqx.nn.BatchNorm, ...]
    scaling: Scaling
    image_size: tuple[int, int] = eqx.field(static=True)  # a shape
    _layers: Layers = eqx.field(static=True)  # descriptions

    def __init__(
        self,
        *,
        in_shape: tuple[int, int, int],
        out_size: int,
        k: int,
        b: int,
        activation: str | Activation | Callable[[Array], Array] = "relu",
        window: int = 3,
        normalization: AbstractNormalization = NoNormalization(),
        bias: bool = False,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        channels, *image = require_image(in_shape, 4)
        self.image_size = (image[0], image[1])
        k, b, out_size = require_unpadded(k, "k"), require_size(b, "b"), require_unpadded(out_size, "out_size")
        register = _layer_register(activation, normalization, bias)
        window = _odd(window)
        into = 16
        layers = register.conv(channels, into, window)
        for out, stride in ((16 * k, 1), (32 * k, 2), (64 * k, 2)):
            for block in range(b):
                layers += _pre_activation(register, window, into, out, stride if block == 0 else 1)
                into = out
        self._layers = (*layers, *register.activate(into), SpatialMean(), *register.dense(into, out_size))
        parts = register.build(scaling=scaling, init=init, key=key, dtype=dtype)
        self.weights, self.biases, self.gains, self.normalizers, self.scaling = parts

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1], *self.image_size)

    @property
    def layers(self) -> Layers:
        return self._layers


class ResNet18(AbstractLayered):
    """The 18-layer residual network (He et al., 2016) in its form for small images.

    A 3 x 3 convolution of stride 1 without pooling, four groups of two blocks of w, 2w, 4w and 8w channels, the average
    over the image and a dense read-out. A block is phi(z + N(C(phi(N(C(z)))))) with 3 x 3 convolutions C, the
    normalization N and the activation phi; the second, third and fourth group begin with stride 2, where N of a 1 x 1
    convolution replaces z.

    Branch and shortcut are added without rescaling: without normalization, the signal grows from block to block at any
    width.

    Arguments:
        in_shape: (channels, height, width) of one image, at least 8 pixels each way.
        out_size: outputs c.
        width_size: w, the channels of the first group.
        activation: a name, an `Activation` or any elementwise function.
        window, normalization, bias, scaling, init, key, dtype: as for `WideResNet`. The original has biases only in
            the normalization and the read-out. There are 21 weight arrays.

    Example:
        >>> scaling, norm = js.nets.Scaling.kaiming(), js.nets.GroupNorm(8)
        >>> make = lambda key: js.nets.ResNet18(
        ...     in_shape=(3, 32, 32), out_size=10, normalization=norm, scaling=scaling, key=key
        ... )
        >>> len(jax.eval_shape(make, jax.random.key(0)).weights)  # without drawing the weights
        21

    Raises:
        ValueError, TypeError: as for `WideResNet`.
    """

    weights: Weights
    biases: Vectors
    gains: Vectors
    normalizers: tuple[eqx.nn.BatchNorm, ...]
    scaling: Scaling
    image_size: tuple[int, int] = eqx.field(static=True)  # a shape
    _layers: Layers = eqx.field(static=True)  # descriptions

    def __init__(
        self,
        *,
        in_shape: tuple[int, int, int],
        out_size: int,
        width_size: int = 64,
        activation: str | Activation | Callable[[Array], Array] = "relu",
        window: int = 3,
        normalization: AbstractNormalization = NoNormalization(),
        bias: bool = False,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        channels, *image = require_image(in_shape, 8)
        self.image_size = (image[0], image[1])
        width, out_size = require_unpadded(width_size, "width_size"), require_unpadded(out_size, "out_size")
        register = _layer_register(activation, normalization, bias)
        window = _odd(window)
        into = width
        layers = (*register.conv(channels, into, window), *register.activate(into))
        for out, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            for block in range(2):
                layers += _post_activation(register, window, into, out, stride if block == 0 else 1)
                into = out
        self._layers = (*layers, SpatialMean(), *register.dense(into, out_size))
        parts = register.build(scaling=scaling, init=init, key=key, dtype=dtype)
        self.weights, self.biases, self.gains, self.normalizers, self.scaling = parts

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1], *self.image_size)

    @property
    def layers(self) -> Layers:
        return self._layers


def _layer_register(activation: Any, normalization: Any, bias: Any) -> LayerRegister:
    if not isinstance(normalization, AbstractNormalization):
        raise TypeError(
            "normalization must be nets.NoNormalization() or one such as nets.GroupNorm(8), "
            f"got {describe(normalization)}"
        )
    return LayerRegister(find_activation(activation), normalization, bias)


def _odd(window: Any) -> int:
    if require_size(window, "window") % 2 == 0:
        raise ValueError(f"window must be odd, so that a convolution has a middle, got {window}")
    return window


def _pre_activation(register: LayerRegister, window: int, into: int, out: int, stride: int) -> Layers:
    before = register.activate(into)
    branch = (*register.conv(into, out, window, stride), *register.activate(out), *register.conv(out, out, window))
    if into == out and stride == 1:
        return (Residual((*before, *branch)),)
    # The branch and the 1 x 1 convolution both read phi(N(z)), so it is computed before the sum.
    return (*before, Residual(branch, register.conv(into, out, 1, stride)))


def _post_activation(register: LayerRegister, window: int, into: int, out: int, stride: int) -> Layers:
    branch = (
        *register.conv(into, out, window, stride),
        *register.activate(out),
        *register.conv(out, out, window),
        *register.normalize(out),
    )
    unchanged = into == out and stride == 1
    shortcut = () if unchanged else (*register.conv(into, out, 1, stride), *register.normalize(out))
    return (Residual(branch, shortcut), Apply(register.activation))
