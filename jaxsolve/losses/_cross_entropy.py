"""Cross entropy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, describe
from ._base import AbstractLoss, columns


class CrossEntropy(AbstractLoss):
    """-sum_c y_c log softmax(f)_c, with targets one-hot (or probabilities) of shape (n, c), or integer labels (n,).

    Example:
        >>> loss = js.losses.CrossEntropy()
        >>> y = loss.targets([0, 2], out_size=3)
        >>> y.tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        >>> print(f"{loss.value(jnp.zeros((2, 3)), y):.4f}")  # log 3
        1.0986
    """

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return -jnp.sum(y * jax.nn.log_softmax(f))

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        if out_size < 2:
            raise ValueError("CrossEntropy needs a network with at least two outputs; for one output use Logistic")
        labels = y if isinstance(y, jax.Array) else _read(y)
        if labels.ndim == 1 and jnp.issubdtype(labels.dtype, jnp.integer):
            known = concrete(labels)
            if known is not None and known.size and not (0 <= known.min() and known.max() < out_size):
                raise ValueError(
                    f"labels must lie in 0..{out_size - 1} for {out_size} outputs, got {known.min()}..{known.max()}"
                )
            return jax.nn.one_hot(labels, out_size, dtype=jnp.result_type(float))
        if labels.ndim == 1:
            raise ValueError(f"CrossEntropy needs integer labels (n,) or rows (n, {out_size}), got {describe(labels)}")
        rows = columns(labels, out_size)
        known = concrete(rows)
        if known is not None and not (np.all(known >= 0) and np.allclose(known.sum(1), 1, atol=1e-5)):
            raise ValueError("CrossEntropy needs rows of probabilities: non-negative, summing to one")
        return rows


def _read(y: Any) -> Array:
    try:
        return jnp.asarray(y)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"targets must be integer labels or rows of probabilities, got {describe(y)}") from error
