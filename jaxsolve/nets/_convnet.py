"""The convolutional network of Geiger et al."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Key

from ._activations import Activation, find_activation
from ._build import build
from ._images import require_image
from ._init import AbstractInit, Gaussian, Vectors, Weights
from ._layered import AbstractUnnormalized
from ._layers import AbstractLayer, Apply, Bias, Conv, Dense, Layers, SpatialMean
from ._padded import require_unpadded
from ._scaling import Scaling, ScalingRule


# The architecture of Geiger et al. (2020).
_WINDOW = 5
_STRIDES = (2, 1, 2, 1)


class ConvNet(AbstractUnnormalized):
    """Four convolutions of 5 x 5 pixels, the average over the image, and a dense read-out (Geiger et al., 2020).

    The first and the third convolution have stride 2. An activation follows each convolution. Zero padding keeps the
    size at stride 1: 28 x 28 pixels become 14, 14, 7, 7. (The authors' code pads by one pixel and loses two.) Their
    read-out multiplier is as in `Scaling.mean_field`, and their biases are 0.

    Arguments:
        in_shape: (channels, height, width) of one image, at least 4 pixels each way.
        out_size: outputs c.
        width_size: channels of every hidden layer.
        activation: a name, an `Activation` or any elementwise function.
        scaling: a `Scaling` of five weight arrays, or a rule such as `Scaling.ntk()`; the fan_in of a convolution is
            its input channels times 25.
        key: a JAX random key.

    Other Arguments:
        bias: whether every layer has biases, one per channel.
        init: the initial weights: `Gaussian`, `Mirrored` or `Given`.
        dtype: of the weights; the default float if None.

    Example:
        >>> net = js.nets.ConvNet(
        ...     in_shape=(1, 28, 28), out_size=10, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> [w.shape for w in net.weights[:2]], net.weights[-1].shape
        ([(4, 1, 5, 5), (4, 4, 5, 5)], (10, 4))

    Reference:
        @article{geiger2020disentangling, author={Mario Geiger and Stefano Spigler and Arthur Jacot and Matthieu Wyart},
          title={Disentangling feature and lazy learning in deep neural networks: an empirical study}, year={2020}}

    Raises:
        ValueError, TypeError: a size, the activation, the scaling or the init is not as described above.
    """

    weights: Weights
    biases: Vectors
    scaling: Scaling
    activation: Activation = eqx.field(static=True)  # a function
    image_size: tuple[int, int] = eqx.field(static=True)  # a shape

    def __init__(
        self,
        *,
        in_shape: tuple[int, int, int],
        out_size: int,
        width_size: int,
        activation: str | Activation | Callable[[Array], Array] = "relu",
        bias: bool = False,
        scaling: Scaling | ScalingRule,
        init: AbstractInit = Gaussian(),
        key: Key[Array, ""],
        dtype: Any = None,
    ):
        self.activation = find_activation(activation)
        channels, *image = require_image(in_shape, 4)
        self.image_size = (image[0], image[1])
        width, out_size = require_unpadded(width_size, "width_size"), require_unpadded(out_size, "out_size")
        convolutions = [(width, into, _WINDOW, _WINDOW) for into in (channels, width, width, width)]
        # After the average over the image, the read-out acts on one number per channel.
        shapes = [*convolutions, (out_size, width)]
        parts = build(shapes, self.activation, bias=bias, scaling=scaling, init=init, key=key, dtype=dtype)
        self.weights, self.biases, self.scaling = parts

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1], *self.image_size)

    @property
    def layers(self) -> Layers:
        found: list[AbstractLayer] = []
        for index, stride in enumerate(_STRIDES):
            found += [Conv(index, stride), *self._bias(index), Apply(self.activation)]
        readout = len(_STRIDES)
        return (*found, SpatialMean(), Dense(readout), *self._bias(readout))

    def _bias(self, index: int) -> Layers:
        return (Bias(index),) if self.biases else ()
