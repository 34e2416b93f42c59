"""Coordinates of inputs in the span of the training set, which is all that matters for training."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...._numerics import safe_sqrt


class Basis(NamedTuple):
    """Inputs in an orthonormal basis.

    Attributes:
        train: coordinates of the training inputs.
        test: coordinates of the test inputs; None without a test set.
        outside: the length of each test input's component outside the basis.
    """

    train: Float[Array, "n i"]
    test: Float[Array, "m i"] | None
    outside: Float[Array, " m"] | None


def basis(x: Float[Array, "n d"], x_test: Float[Array, "m d"] | None) -> Basis:
    """The original coordinates of the inputs, or those in the span of the training set if it has fewer dimensions."""
    if x.shape[1] <= x.shape[0]:
        return Basis(x, x_test, None if x_test is None else jnp.zeros_like(x_test[:, 0]))
    # x = r^T q^T: coordinates along the columns of q.
    q, r = jnp.linalg.qr(x.T)
    if x_test is None:
        return Basis(r.T, None, None)
    test = x_test @ q
    return Basis(r.T, test, safe_sqrt(jnp.sum((x_test - test @ q.T) ** 2, axis=1)))
