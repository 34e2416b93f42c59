"""Coordinates of inputs: a linear network sees them through their span alone."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Basis(NamedTuple):
    """Inputs in an orthonormal basis.

    Attributes:
        train: coordinates of the training set.
        test: of the test set, of which what lies outside of the basis is left out; None without one.

    Example:
        >>> js.dmft.basis(jnp.ones((2, 7)), None).train.shape  # the span of two samples
        (2, 2)
    """

    train: Float[Array, "n i"]
    test: Float[Array, "m i"] | None


def basis(x: Float[Array, "n d"], x_test: Float[Array, "m d"] | None) -> Basis:
    """The inputs' own coordinates, or those in the span of the training set if it has fewer dimensions.

    What lies outside of the span of the training set never learns: an infinitely wide network starts, and stays, at 0.

    Example:
        >>> train = jnp.array([[3.0, 0.0, 4.0]])
        >>> found = js.dmft.basis(train, jnp.array([[6.0, 5.0, 8.0]]))
        >>> print((found.test / found.train).round(3))
        [[2.]]
    """
    if x.shape[1] <= x.shape[0]:
        return Basis(x, x_test)
    q, r = jnp.linalg.qr(x.T)
    return Basis(r.T, None if x_test is None else x_test @ q)
