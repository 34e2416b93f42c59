"""The polar factor of a matrix, smoothed where a singular value crosses zero."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def smoothed_polar(a: Float[Array, "rows columns"], eps: Float[Array, ""]) -> Float[Array, "rows columns"]:
    r"""$A (A^\top A + \epsilon^2)^{-1/2}$: singular values s become s/sqrt(s^2 + eps^2), about 1 above eps and 0 at 0.

    It is differentiable even where singular values are equal or 0, where the SVD has no derivatives.
    """
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return (u * (s / jnp.hypot(s, eps))[None, :]) @ v


@smoothed_polar.defjvp
def _smoothed_polar_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (a, eps), (e, e_eps) = primals, tangents
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    root = jnp.hypot(s, eps)
    # With B = A^T A + eps^2 the divided difference of B^(-1/2) is -1/(r_i r_j (r_i + r_j)), r = sqrt(s^2 + eps^2).
    # Because r_i^2 - s_i^2 = eps^2, no differences of singular values remain.
    inner = u.T @ e @ v.T
    product = root[:, None] * root[None, :]
    mixed = (eps**2 + product) * inner - s[:, None] * s[None, :] * inner.T
    change = u @ (mixed / (product * (root[:, None] + root[None, :])) - jnp.diag(s * eps / root**3) * e_eps) @ v
    # The part of E outside the singular vectors, which a matrix that is not square has on one side.
    left, right = e - u @ (u.T @ e), e - (e @ v.T) @ v
    outside = (left @ v.T / root[None, :]) @ v if a.shape[0] >= a.shape[1] else u @ (u.T @ right / root[:, None])
    return (u * (s / root)[None, :]) @ v, change + outside
