"""The motion of the singular values of a lambda-balanced two-layer linear network."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import require_size
from ..._numerics import safe_hypot
from .._arguments import as_floats, as_positive


class SpectralVelocity(NamedTuple):
    """The singular values of beta, in descending order, and their time derivatives."""

    values: Float[Array, " k"]
    velocities: Float[Array, " k"]


def spectral_velocity(
    beta: Float[ArrayLike, "d c"],
    gradient: Float[ArrayLike, "d c"],
    delta: Float[ArrayLike, ""],
    eta_a: Float[ArrayLike, ""] = 1.0,
    eta_w: Float[ArrayLike, ""] = 1.0,
    *,
    width: int | None = None,
) -> SpectralVelocity:
    r"""The mirror flow of singular values (Kunin et al., Theorem B.6; rates added).

    For f(x) = A^T W x, beta = W^T A = sum_i lambda_i u_i v_i^T and eta_w A A^T - eta_a W W^T = delta I:
    $\dot\lambda_i = -\sqrt{\delta^2 + 4 \eta_a \eta_w \lambda_i^2}\; u_i^\top G v_i$, for the singular values that the
    hidden layer can hold, i = 1, ..., h; any further ones stay zero. With delta != 0 it is the mirror flow of
    `HyperbolicEntropy.of_singular_values`. Positive singular values must be distinct; k = min(d, c). Zero singular
    values (to rounding) have no directions of their own. They grow at |delta| times the singular values of G between
    the null spaces of beta^T and beta, for h = c hidden neurons if delta > 0 and h = d if delta < 0, as in
    `isotropic_velocity`.

    For a network with multipliers and gamma, A = m_2 W_2^T and W = m_1 W_1 with the rates m_2^2 eta_2 and m_1^2 eta_1,
    and f(x) = gamma beta^T x.

    Arguments:
        beta: W^T A.
        gradient: G, the gradient of the loss with respect to beta: gamma X^T (gamma X beta - Y)/n for `losses.MSE`.
        delta: any finite number.
        eta_a, eta_w: rates of A and W.
        width: h; None means h >= k. beta does not determine h: a zero singular value moves if it has a neuron.

    Returns:
        The singular `values`, in descending order, and their `velocities`; NaN for zeros whose direction beta does not
        determine (h < k, delta != 0).

    Example:
        >>> beta, target = jnp.diag(jnp.array([2.0, 0.5])), jnp.diag(jnp.array([3.0, 1.5]))
        >>> print(js.theory.spectral_velocity(beta, beta - target, delta=0.0).velocities)  # 2 lambda times the gap
        [4. 1.]

    Raises:
        ValueError: beta and gradient are not matrices of one shape, a number is not finite, a rate is not positive, or
            width < 1.
        TypeError: width is not an integer.
    """
    beta, gradient = as_floats(beta, "beta"), as_floats(gradient, "gradient")
    if beta.ndim != 2 or beta.shape != gradient.shape:
        raise ValueError(f"beta and gradient must be matrices of one shape (d, c), got {beta.shape}, {gradient.shape}")
    delta = as_floats(delta, "delta").astype(beta.dtype)
    eta_a, eta_w = (as_positive(eta, name).astype(beta.dtype) for eta, name in ((eta_a, "eta_a"), (eta_w, "eta_w")))
    u, values, vt = jnp.linalg.svd(beta, full_matrices=False)
    k = values.shape[0]
    along = jnp.sum(u * (gradient @ vt.T), axis=0)
    speed = safe_hypot(delta, 2 * jnp.sqrt(eta_a) * jnp.sqrt(eta_w) * values)
    # The numerical rank, by the rule of NumPy's `matrix_rank`.
    positive = values > max(beta.shape) * jnp.finfo(values.dtype).eps * values[0]
    rank = jnp.sum(positive)
    u, v = jnp.where(positive[None, :], u, 0), jnp.where(positive[None, :], vt.T, 0)
    # The gradient between the null spaces; if there are none, anything with distinct singular values.
    rest = gradient - u @ (u.T @ gradient)
    rest = rest - (rest @ v) @ v.T
    distinct = jnp.eye(*beta.shape, dtype=beta.dtype) * (1 + jnp.arange(beta.shape[1], dtype=beta.dtype))[None, :]
    rest = jnp.where(rank == k, distinct, rest)
    strengths = jnp.linalg.svd(rest, compute_uv=False)
    # Zeros come last, and take the strengths in order.
    grown = jnp.abs(delta) * strengths[jnp.clip(jnp.arange(k) - rank, 0)]
    held = k if width is None else min(require_size(width, "width"), k)
    if held < k:
        grown = jnp.where((delta == 0) | (strengths[0] == 0), 0, jnp.nan)
    velocities = jnp.where(positive, -speed * along, grown)
    return SpectralVelocity(values, jnp.where(jnp.arange(k) < held, velocities, 0))
