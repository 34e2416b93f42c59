"""Mean squared error."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss, columns


class MSE(AbstractLoss):
    """1/(2n) sum_i |f_i - y_i|^2: a sum over outputs, an average over samples, and a factor 1/2.

    Example:
        >>> loss, f, y = js.losses.MSE(), jnp.array([[3.0], [1.0]]), jnp.ones((2, 1))
        >>> float(loss.value(f, y)), loss.gradient(f, y).tolist()
        (1.0, [[1.0], [0.0]])
    """

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum((f - y) ** 2) / 2

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return columns(y, out_size)
