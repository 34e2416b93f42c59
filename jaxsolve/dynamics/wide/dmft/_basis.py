"""Coordinates of inputs: a network sees the training set through its span alone."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...._numerics import safe_sqrt


class Basis(NamedTuple):
    """Inputs in an orthonormal basis.

    Attributes:
        train: coordinates of the training set.
        test: of the test set; None without one.
        outside: the length of what lies outside of the basis, of each test input.
    """

    train: Float[Array, "n i"]
    test: Float[Array, "m i"] | None
    outside: Float[Array, " m"] | None


def basis(x: Float[Array, "n d"], x_test: Float[Array, "m d"] | None) -> Basis:
    """The inputs' own coordinates, or those in the span of the training set if it has fewer dimensions."""
    if x.shape[1] <= x.shape[0]:
        return Basis(x, x_test, None if x_test is None else jnp.zeros_like(x_test[:, 0]))
    # x = r^T q^T: coordinates along the columns of q.
    q, r = jnp.linalg.qr(x.T)
    if x_test is None:
        return Basis(r.T, None, None)
    test = x_test @ q
    return Basis(r.T, test, safe_sqrt(jnp.sum((x_test - test @ q.T) ** 2, axis=1)))
