"""Logistic loss."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractLoss, signs


class Logistic(AbstractLoss):
    """log(1 + exp(-f y)) with y = -1 or +1, summed over outputs.

    Example:
        >>> print(f"{js.losses.Logistic().value(jnp.zeros((2, 1)), jnp.array([[1.0], [-1.0]])):.4f}")  # log 2
        0.6931
    """

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.softplus(-f * y))

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return signs(y, out_size, "Logistic")
