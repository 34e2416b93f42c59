"""Losses of outputs that are no vector, such as those at the positions of a sequence."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._checks import concrete, describe, real_array
from ._base import AbstractLoss, Pointwise
from ._cross_entropy import CrossEntropy, read_labels


class Unflattened(AbstractLoss):
    """A loss of outputs or targets that are no vectors, as one of flat ones.

    Attributes:
        loss: the loss of one sample's output and target in their shapes.
        out_shape, target_shape: these shapes.
    """

    loss: AbstractLoss
    out_shape: tuple[int, ...] = eqx.field(static=True)  # a shape
    target_shape: tuple[int, ...] = eqx.field(static=True)  # a shape

    def pointwise(self, f: Float[Array, " out"], y: Shaped[Array, " target"]) -> Float[Array, ""]:
        return self.loss.pointwise(f.reshape(self.out_shape), y.reshape(self.target_shape))

    def count(self, y: Shaped[Array, "n target"]) -> Any:
        return self.loss.count(y.reshape(y.shape[0], *self.target_shape))

    def targets(self, y: Any, out_size: int) -> Shaped[Array, "n target"]:
        fitted, y = fit(self.loss, y, self.out_shape)
        if not isinstance(fitted, Unflattened) or fitted.target_shape != self.target_shape:
            raise ValueError(f"targets must be those of training in kind: of shape {self.target_shape} for each sample")
        return y


def fit(loss: AbstractLoss, y: Any, out_shape: tuple[int, ...]) -> tuple[AbstractLoss, Shaped[Array, "n target"]]:
    """The loss of flat outputs and targets, and these targets, for a network with outputs of a shape.

    Raises:
        ValueError: the targets do not suit such outputs.
    """
    if len(out_shape) == 1 or isinstance(loss, Unflattened):
        return loss, loss.targets(y, math.prod(out_shape))
    array = y if isinstance(y, jax.Array) else real_array(y, "targets")
    if isinstance(loss, Pointwise):  # only the function knows which targets it takes
        return Unflattened(loss, out_shape, array.shape[1:]), array.reshape(array.shape[0], -1)
    if isinstance(loss, CrossEntropy):
        return _at_positions(loss, read_labels(y), out_shape)
    same = array.shape[1:] == out_shape
    return loss, loss.targets(array.reshape(array.shape[0], -1) if same else array, math.prod(out_shape))


def _at_positions(loss: CrossEntropy, y: Array, out_shape: tuple[int, ...]) -> tuple[AbstractLoss, Array]:
    *positions, classes = out_shape
    if y.shape[1:] == tuple(positions) and jnp.issubdtype(y.dtype, jnp.integer):
        known = concrete(y)
        if known is not None and not np.any(known >= 0):
            raise ValueError("all labels are masked (negative): the loss needs one position that counts")
        if known is not None and known.max() >= classes:
            raise ValueError(f"labels must lie in 0..{classes - 1}, or be negative where masked, got {known.max()}")
        return Unflattened(loss, out_shape, y.shape[1:]), y.astype(jnp.int32).reshape(y.shape[0], -1)
    if y.shape[1:] != out_shape:
        shapes = [f"(n, {', '.join(map(str, shape))})" for shape in (positions, out_shape)]
        raise ValueError(
            f"CrossEntropy of outputs of shape {out_shape} needs integer labels {shapes[0]} or probabilities "
            f"{shapes[1]}, got {describe(y)}"
        )
    rows = loss.targets(y.reshape(-1, classes), classes)
    return Unflattened(loss, out_shape, out_shape), rows.reshape(y.shape[0], -1)
