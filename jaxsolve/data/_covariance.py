"""Square roots of covariances."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import concrete, real_array, require_finite


def matmul(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """The product a @ b in full precision: accelerators would otherwise round float32 factors to a shorter format."""
    return jnp.matmul(a, b, precision="highest")


def covariance_root(covariance: Any, in_size: int) -> Float[Array, "d d"]:
    """A matrix L with L L^T = covariance.

    Args:
        covariance: eigenvalues >= 0, shape `(d,)`, or a symmetric positive definite matrix, shape `(d, d)`.
        in_size: d.

    Raises:
        TypeError: no array of real numbers.
        ValueError: another shape, or concrete values that are not finite, negative eigenvalues, or a matrix that is
            not symmetric and positive definite.
    """
    array = real_array(covariance, "covariance").astype(jnp.result_type(float))
    shape = array.shape
    if shape not in ((in_size,), (in_size, in_size)):
        raise ValueError(
            f"covariance must be eigenvalues of shape ({in_size},) or a matrix of shape ({in_size}, {in_size}), "
            f"got shape {shape}"
        )
    require_finite(covariance, "covariance")
    known = concrete(covariance)
    if len(shape) == 1:
        if known is not None and np.any(known < 0):
            raise ValueError(f"covariance has a negative eigenvalue, {known.min()}; eigenvalues must be >= 0")
        return jnp.diag(jnp.sqrt(array))
    if known is not None:
        if not np.allclose(known, known.T, rtol=1e-5, atol=1e-6 * np.abs(known).max()):
            raise ValueError(
                f"covariance must be symmetric; it differs from its transpose by {np.abs(known - known.T).max()}"
            )
        smallest, largest = np.linalg.eigvalsh(known)[[0, -1]]
        # Rounding alone gives the zero eigenvalues of a singular matrix about this size, of either sign.
        if smallest <= 10 * in_size * jnp.finfo(array.dtype).eps * largest:
            raise ValueError(
                f"covariance must be positive definite, but its eigenvalues go from {smallest} to {largest}; for a "
                "degenerate covariance give the eigenvalues, shape (d,), zeros included"
            )
    return jnp.linalg.cholesky(array)
