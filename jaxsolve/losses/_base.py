"""The base class of all losses, and the functions that read their targets."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._checks import concrete, describe, real_array, see


class AbstractLoss(eqx.Module):
    """A loss: the average over samples of `pointwise(f_i, y_i)`. To define one, implement `pointwise` and `targets`.

    Value, gradient and Hessian are of the average, so they include its factor 1/n. A plain function of one sample's
    output and target needs no class: `js.Problem(..., loss=fn)` accepts it. Outputs that are not vectors, such as
    (T, V) for a sequence, are flattened for a loss of this class; a function and `CrossEntropy` get them unchanged.

    Example:
        >>> class Cubic(js.losses.AbstractLoss):
        ...     def pointwise(self, f, y):
        ...         return jnp.sum(jnp.abs(f - y) ** 3)
        ...     def targets(self, y, out_size):
        ...         return jnp.reshape(y, (-1, out_size))
        >>> float(Cubic().value(jnp.array([[1.0], [3.0]]), jnp.zeros((2, 1))))
        14.0
    """

    @abc.abstractmethod
    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        """The loss of one sample."""

    @abc.abstractmethod
    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        """The targets in shape (n, out_size). Raises a ValueError that says what this loss accepts."""

    def value(self, f: Float[Array, "n out"], y: Shaped[Array, "n target"]) -> Float[Array, ""]:
        """The loss of the outputs f."""
        return jnp.sum(jax.vmap(self.pointwise)(f, y)) / count(self, y, f.dtype)

    def gradient(self, f: Float[Array, "n out"], y: Shaped[Array, "n target"]) -> Float[Array, "n out"]:
        """The gradient d value / d f."""
        return jax.vmap(jax.grad(self.pointwise))(f, y) / count(self, y, f.dtype)

    def hessian(self, f: Float[Array, "n out"], y: Shaped[Array, "n target"]) -> Float[Array, "n out out"]:
        """The diagonal blocks d^2 value / d f_i d f_i. Blocks that mix two samples are zero."""
        return jax.vmap(jax.hessian(self.pointwise))(f, y) / count(self, y, f.dtype)

    def hessian_root(self, f: Float[Array, "n out"], y: Shaped[Array, "n target"]) -> Float[Array, "n out out"]:
        """The symmetric square roots of the blocks of `hessian`, with negative eigenvalues set to 0."""
        blocks = self.hessian(f, y)
        if f.shape[1] == 1:
            return jnp.sqrt(jnp.maximum(blocks, 0))
        values, vectors = jnp.linalg.eigh(blocks)
        return jnp.einsum("nak,nk,nbk->nab", vectors, jnp.sqrt(jnp.maximum(values, 0)), vectors)


class Unflattened(AbstractLoss):
    """A loss of flat outputs and targets that wraps a loss of outputs or targets that are not vectors.

    Attributes:
        loss: the wrapped loss, of one sample's output and target in their own shapes.
        out_shape, target_shape: these shapes.
        by_position: whether to average over the positions of all samples (negative labels do not count).
    """

    loss: AbstractLoss
    out_shape: tuple[int, ...] = eqx.field(static=True)  # a shape
    target_shape: tuple[int, ...] = eqx.field(static=True)  # a shape
    by_position: bool = eqx.field(static=True)  # changes the program

    def pointwise(self, f: Float[Array, " out"], y: Shaped[Array, " target"]) -> Float[Array, ""]:
        return self.loss.pointwise(f.reshape(self.out_shape), y.reshape(self.target_shape))

    def targets(self, y: Any, out_size: int) -> Shaped[Array, "n target"]:
        array = jnp.asarray(y)
        if array.shape[1:] != self.target_shape:
            raise ValueError(
                f"targets must be like those of training, of shape {self.target_shape} for each sample, got "
                f"{describe(array)}"
            )
        return array.reshape(array.shape[0], -1)


def count(loss: AbstractLoss, y: Shaped[Array, "n target"], dtype: Any) -> Float[Array, ""]:
    """The divisor of a sum of `pointwise`: the number of samples, or of positions that count."""
    if not isinstance(loss, Unflattened) or not loss.by_position:
        return jnp.asarray(y.shape[0], dtype)
    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.asarray(y.size // loss.out_shape[-1], dtype)
    return jnp.maximum(jnp.sum(y >= 0), 1).astype(dtype)  # a fully masked batch has loss 0, not NaN


class Pointwise(AbstractLoss):
    """The loss given by a function of one sample's output and target.

    Raises:
        ValueError: when used, if the function returns anything but one number per sample.
    """

    fn: Callable[[Array, Array], Array] = eqx.field(static=True)  # a function

    def pointwise(self, f: Float[Array, "..."], y: Shaped[Array, "..."]) -> Float[Array, ""]:
        value = self.fn(f, y)
        if jnp.shape(value) != ():
            raise ValueError(f"a loss function must return one number per sample, got {describe(value)}")
        return value

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return columns(y, out_size)


def find_loss(loss: AbstractLoss | Callable[[Array, Array], Array]) -> AbstractLoss:
    """The given loss, or one made from a function of one sample's output and target.

    Raises:
        TypeError: the argument is neither.
    """
    if isinstance(loss, AbstractLoss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return Pointwise(loss)
    raise TypeError(
        "loss must be a loss such as losses.MSE(), or a function of one sample's output and target, "
        f"got {describe(loss)}"
    )


def columns(y: Any, out_size: int) -> Float[Array, "n out"]:
    """Real targets as (n, out_size); (n,) is one column if there is one output."""
    array = real_array(y, "targets")
    if array.ndim == 1 and out_size == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != out_size:
        hint = ""
        if array.ndim == 1 and jnp.issubdtype(jnp.asarray(y).dtype, jnp.integer):
            hint = (
                f"; for integer labels take loss=losses.CrossEntropy(), or the rows jax.nn.one_hot(labels, {out_size})"
            )
        raise ValueError(
            f"targets must have shape (n, {out_size}) for a network with {out_size} output(s), got "
            f"{describe(jnp.asarray(y))}{hint}" + see("targets-of-another-shape")
        )
    return array


def signs(y: Any, out_size: int, loss: str) -> Float[Array, "n out"]:
    """Targets -1 or +1 as (n, out_size)."""
    array = columns(y, out_size)
    known = concrete(array)
    if known is not None and not np.all(np.abs(known) == 1):
        raise ValueError(f"{loss} needs targets -1 or +1, got values {np.unique(known)[:5].tolist()}")
    return array
