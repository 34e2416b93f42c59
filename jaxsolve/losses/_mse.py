"""Mean squared error."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss, columns


class MSE(AbstractLoss):
    """1/(2n) sum_i |f_i - y_i|^2: a sum over outputs, an average over samples, and the half."""

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum((f - y) ** 2) / 2

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return columns(y, out_size)
