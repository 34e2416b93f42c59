"""The first convolutional network for handwritten digits."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Key

from ._activations import Activation, find_activation
from ._build import build
from ._images import require_image
from ._init import AbstractInit, Gaussian, Vectors, Weights
from ._layered import AbstractUnnormalized
from ._layers import AbstractLayer, Apply, AveragePool, Bias, Conv, Dense, Flatten, Layers
from ._padded import require_unpadded
from ._scaling import Scaling, ScalingRule


# The sizes of LeCun et al. (1998).
_WINDOW = 5
_CHANNELS = (6, 16)
_FEATURES = (120, 84)


class LeNet(AbstractUnnormalized):
    """LeNet-5: two convolutions of 5 x 5 pixels with 6 and 16 channels, each with a pooling, and three dense layers.

    An activation follows every layer but the last; after those of the convolutions, 2 x 2 pixels are averaged. The
    dense layers have 120, 84 and c features. Zero padding keeps the size in a convolution: 28 x 28 pixels become
    14 x 14 and 7 x 7. (The original's second convolution has no padding, and reads only some of the channels.)

    Arguments:
        in_shape: (channels, height, width) of one image, at least 4 pixels each way.
        out_size: outputs c.
        activation: a name, an `Activation` or any elementwise function.
        scaling: a `Scaling` of five weight arrays, or a rule such as `Scaling.ntk()`; the fan_in of a convolution is
            its input channels times 25.
        key: a JAX random key.

    Other Arguments:
        bias: whether every layer has biases, one per channel.
        init: the initial weights: `Gaussian`, `Mirrored` or `Given`.
        dtype: of the weights; the default float if None.

    Example:
        >>> net = js.nets.LeNet(
        ...     in_shape=(1, 28, 28), out_size=10, scaling=js.nets.Scaling.kaiming(), key=jax.random.key(0)
        ... )
        >>> [w.shape for w in net.weights]
        [(6, 1, 5, 5), (16, 6, 5, 5), (120, 784), (84, 120), (10, 84)]

    Reference:
        @article{lecun1998gradient, author={Yann LeCun and Leon Bottou and Yoshua Bengio and Patrick Haffner},
          title={Gradient-based learning applied to document recognition}, journal={Proc. IEEE}, year={1998}}

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
        first, second = _CHANNELS
        # Two poolings by 2, each of which drops an odd row or column.
        pixels = (image[0] // 4) * (image[1] // 4)
        features = (second * pixels, *_FEATURES, require_unpadded(out_size, "out_size"))
        convolutions = [(first, channels, _WINDOW, _WINDOW), (second, first, _WINDOW, _WINDOW)]
        shapes = [*convolutions, *zip(features[1:], features[:-1], strict=True)]
        parts = build(shapes, self.activation, bias=bias, scaling=scaling, init=init, key=key, dtype=dtype)
        self.weights, self.biases, self.scaling = parts

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1], *self.image_size)

    @property
    def layers(self) -> Layers:
        found: list[AbstractLayer] = []
        for index in range(2):
            found += [Conv(index), *self._bias(index), Apply(self.activation), AveragePool(2)]
        found.append(Flatten())
        for index in (2, 3):
            found += [Dense(index), *self._bias(index), Apply(self.activation)]
        return (*found, Dense(4), *self._bias(4))

    def _bias(self, index: int) -> Layers:
        return (Bias(index),) if self.biases else ()
