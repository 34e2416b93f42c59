"""Random changes of training images, drawn anew for every batch."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key

from .._checks import require_flag, require_size


class AbstractAugmentation(eqx.Module):
    """A random map from inputs to inputs of the same shape, which `js.Descent(augmentation=...)` applies to each batch.

    To define one, implement `__call__`.

    Example:
        >>> class Noise(js.data.AbstractAugmentation):
        ...     def __call__(self, x, *, key):
        ...         return x + jax.random.normal(key, x.shape, x.dtype)
        >>> print(Noise()(jnp.zeros((5, 2)), key=jax.random.key(0)).shape)
        (5, 2)
    """

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " n *shape"], *, key: Key[Array, ""]) -> Float[Array, " n *shape"]:
        """Changes each sample of a batch of shape `(n, *shape)`, with independent draws."""


class FlipAndCrop(AbstractAugmentation):
    """See `flip_and_crop`."""

    padding: int = eqx.field(static=True)  # a shape
    flip: bool = eqx.field(static=True)  # a branch

    def __call__(self, x: Float[Array, " n *shape"], *, key: Key[Array, ""]) -> Float[Array, " n *shape"]:
        """Raises ValueError if `x` does not have shape `(n, channels, height, width)`."""
        if x.ndim != 4:
            raise ValueError(
                f"flip_and_crop takes images of shape (n, channels, height, width), got {x.shape}; read them with "
                "flatten=False"
            )
        for_flips, for_crops = jr.split(key)
        if self.flip:
            flipped = jr.bernoulli(for_flips, 0.5, (x.shape[0],))
            x = jnp.where(flipped[:, None, None, None], x[..., ::-1], x)
        if self.padding == 0:
            return x
        border = (self.padding, self.padding)
        wide = jnp.pad(x, ((0, 0), (0, 0), border, border))
        # The upper end is exclusive: there are 2 padding + 1 corners, and the middle one does not shift the image.
        corners = jr.randint(for_crops, (x.shape[0], 2), 0, 2 * self.padding + 1)
        # `dynamic_slice` takes indices of one dtype.
        zero = jnp.zeros((), corners.dtype)
        cut = lambda image, corner: jax.lax.dynamic_slice(image, (zero, corner[0], corner[1]), x.shape[1:])
        return jax.vmap(cut)(wide, corners)


def flip_and_crop(padding: int = 4, *, flip: bool = True) -> AbstractAugmentation:
    """Mirrors each image left to right with probability 1/2, and shifts it by up to `padding` pixels along each axis.

    Pixels shifted out of the image are lost, and zeros fill the other side: the usual augmentation of CIFAR-10.

    Args:
        padding: the largest shift, in pixels; 0 for none.
        flip: whether to mirror.

    Returns:
        An augmentation of images of shape `(n, channels, height, width)`.

    Raises:
        TypeError, ValueError: `padding` is not an integer >= 0, or `flip` is neither True nor False.

    Example:
        >>> x = jnp.arange(12.0).reshape(1, 1, 3, 4)
        >>> print(js.data.flip_and_crop(1)(x, key=jax.random.key(0))[0, 0].shape)
        (3, 4)
    """
    return FlipAndCrop(require_size(padding, "padding", least=0), require_flag(flip, "flip"))
