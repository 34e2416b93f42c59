"""Losses of outputs that are not vectors, such as outputs at the positions of a sequence."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from .._checks import concrete, describe, real_array
from ._base import AbstractLoss, Pointwise, Unflattened
from ._cross_entropy import CrossEntropy, read_labels


def fit(loss: AbstractLoss, y: Any, out_shape: tuple[int, ...]) -> tuple[AbstractLoss, Shaped[Array, "n target"]]:
    """The loss as a function of flat outputs and targets, and the flat targets, for outputs of shape `out_shape`.

    Raises:
        ValueError: the targets do not suit such outputs.
    """
    if isinstance(loss, Unflattened):
        fitted, found = fit(loss.loss, y, out_shape)
        if fitted != loss:
            raise ValueError(
                f"targets must be of the same kind as those of training: of shape {loss.target_shape} for each sample"
            )
        return loss, found
    if len(out_shape) == 1:
        return loss, loss.targets(y, out_shape[0])
    array = y if isinstance(y, jax.Array) else real_array(y, "targets")
    if isinstance(loss, Pointwise):  # targets cannot be checked: the function may accept any shape
        return Unflattened(loss, out_shape, array.shape[1:], False), array.reshape(array.shape[0], -1)
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
        return Unflattened(loss, out_shape, y.shape[1:], True), y.astype(jnp.int32).reshape(y.shape[0], -1)
    if y.shape[1:] != out_shape:
        shapes = [f"(n, {', '.join(map(str, shape))})" for shape in (positions, out_shape)]
        raise ValueError(
            f"CrossEntropy of outputs of shape {out_shape} needs integer labels {shapes[0]} or probabilities "
            f"{shapes[1]}, got {describe(y)}"
        )
    rows = loss.targets(y.reshape(-1, classes), classes)
    return Unflattened(loss, out_shape, out_shape, True), rows.reshape(y.shape[0], -1)
