"""Cross entropy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._checks import concrete, describe
from ._base import AbstractLoss, columns


class CrossEntropy(AbstractLoss):
    """-sum_c y_c log softmax(f)_c, with targets one-hot (or probabilities) of shape (n, c), or integer labels (n,).

    For outputs at positions, (T, V) for a sequence or (H, W, V) for an image, it is the average over all positions of
    all samples. Targets are then integer labels, (n, T), or probabilities, (n, T, V). These labels stay integers; they
    are not expanded into one-hot rows. A negative label is masked: its position does not count.

    Example:
        >>> loss = js.losses.CrossEntropy()
        >>> y = loss.targets([0, 2], out_size=3)
        >>> y.tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        >>> print(f"{loss.value(jnp.zeros((2, 3)), y):.4f}")  # log 3
        1.0986
        >>> net = lambda bias, tokens: jnp.broadcast_to(bias, (2, 5))  # at 2 positions, for 5 tokens
        >>> net = js.nets.Function(net, jnp.zeros(5))
        >>> problem = js.Problem(net, jnp.array([[3, 4]]), jnp.array([[4, -1]]), loss=loss)
        >>> print(f"{problem.objective(problem.params):.4f}")  # log 5, of the first position alone
        1.6094
    """

    def pointwise(self, f: Float[Array, "*positions out"], y: Shaped[Array, "..."]) -> Float[Array, ""]:
        """The loss of one sample, summed over its positions if it has any."""
        if jnp.issubdtype(y.dtype, jnp.floating):
            return -jnp.sum(y * jax.nn.log_softmax(f))
        at_label = jnp.take_along_axis(jax.nn.log_softmax(f), jnp.maximum(y, 0)[..., None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(y >= 0, at_label, 0))

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        if out_size < 2:
            raise ValueError("CrossEntropy needs a network with at least two outputs; for one output use Logistic")
        labels = y if isinstance(y, jax.Array) else read_labels(y)
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


def read_labels(y: Any) -> Array:
    """Labels or rows as an array; raises TypeError if they cannot be one."""
    try:
        return jnp.asarray(y)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"targets must be integer labels or rows of probabilities, got {describe(y)}") from error
