"""The hinge family."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import one_number
from ._base import AbstractLoss, signs


class Hinge(AbstractLoss):
    """max(0, 1 - f y) with y = -1 or +1, summed over outputs. Its Hessian is zero wherever it exists.

    Example:
        >>> js.losses.Hinge().value(jnp.array([[0.5], [2.0]]), jnp.ones((2, 1))).tolist()
        0.25
    """

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.relu(1 - f * y))

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return signs(y, out_size, "Hinge")


class SoftHinge(AbstractLoss):
    """log(1 + exp(beta (1 - f y))) / beta: the hinge, smoothed over a margin of 1/beta, summed over outputs.

    Example:
        >>> print(f"{js.losses.SoftHinge(20.0).value(jnp.array([[1.0]]), jnp.ones((1, 1))):.4f}")  # log(2)/20
        0.0347

    Raises:
        ValueError: beta is not one finite number > 0.
        TypeError: it is not a number.
    """

    beta: Float[Array, ""]

    def __init__(self, beta: Any = 20.0):
        self.beta = one_number(beta, "beta")

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        beta = self.beta.astype(f.dtype)
        return jnp.sum(jax.nn.softplus(beta * (1 - f * y))) / beta

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return signs(y, out_size, "SoftHinge")


class QuadraticHinge(AbstractLoss):
    """max(0, 1 - f y)^2 / 2 with y = -1 or +1, summed over outputs.

    Example:
        >>> js.losses.QuadraticHinge().value(jnp.array([[0.0], [2.0]]), jnp.ones((2, 1))).tolist()
        0.25
    """

    def pointwise(self, f: Float[Array, " out"], y: Float[Array, " out"]) -> Float[Array, ""]:
        return jnp.sum(jax.nn.relu(1 - f * y) ** 2) / 2

    def targets(self, y: Any, out_size: int) -> Float[Array, "n out"]:
        return signs(y, out_size, "QuadraticHinge")
