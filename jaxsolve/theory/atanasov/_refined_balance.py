r"""Balance at a finite start: how unequal the layers' singular values stay, on average over Gaussian starts.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", appendix G.2. The
conserved matrices $\lambda_l = W_{l+1}^\top W_{l+1}/\eta_{l+1} - W_l W_l^\top/\eta_l$ are replaced by their mean, a
multiple of the identity. They are close to it only where the layers narrow quickly, N_l >> N_{l+1} and
N_{l+2} >> N_{l+1}: at equal widths their eigenvalues spread over several sigma^2.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, require_not_negative, require_size
from ..._numerics import nonzero
from ._balanced_kernel import mean_rate, read_mode, read_rates, safe_power


def mean_conserved(
    sizes: Sequence[int], sigma: Float[ArrayLike, " matrices"], eta: Float[ArrayLike, " matrices"]
) -> Float[Array, " hidden"]:
    r"""The mean conserved matrices of a start $W_l \sim N(0, \sigma_l^2)$, as multiples of the identity (eq. 56).

    $\lambda_l = \sigma_{l+1}^2 N_{l+2}/\eta_{l+1} - \sigma_l^2 N_l/\eta_l$, l = 1 to L - 1, with W_l of shape
    (N_{l+1}, N_l). The paper has sigma_l^2 = sigma^2/N_l, unit rates, and the opposite sign:
    -sigma^2 (1 - N_{l+2}/N_{l+1}).

    Arguments:
        sizes: N_1 to N_{L+1}, from the inputs to the outputs.
        sigma: standard deviation of the entries of every m_l W_l, shape (L,).
        eta: m_l^2 eta_l, shape (L,), > 0.

    Example:
        >>> (conserved,) = js.theory.mean_conserved([100, 50, 100], sigma=jnp.array([0.1, 0.2]), eta=jnp.ones(2))
        >>> print(f"{conserved:.2f}")
        3.00

    Raises:
        ValueError: sizes, sigma and eta are not for the same L >= 2 matrices, a sigma is negative or a rate is not
            positive.
        TypeError: a size is not an integer.
    """
    sigma = jnp.asarray(sigma, jnp.result_type(jnp.asarray(sigma), float))
    eta = read_rates(eta, sigma.dtype)
    require_not_negative(sigma, "sigma")
    matrices = eta.shape[0]
    if sigma.shape != eta.shape or len(sizes) != matrices + 1:
        raise ValueError(
            f"{matrices} rates need {matrices} sigmas and {matrices + 1} sizes, got {sigma.shape} and {len(sizes)}"
        )
    N = jnp.asarray([require_size(size, "each of sizes") for size in sizes], sigma.dtype)
    variance = sigma**2 / eta
    # E[W^T W] is sigma^2 times the number of rows, E[W W^T] times the number of columns, both times the identity.
    return variance[1:] * N[2:] - variance[:-1] * N[:-2]


def balance_offsets(conserved: Float[ArrayLike, " hidden"]) -> Float[Array, " matrices"]:
    r"""The squared singular values of the layers, divided by their rates, minus those of the last layer (eq. 57).

    $u_l^2/\eta_l - u_L^2/\eta_L = -\sum_{k=l}^{L-1} \lambda_k$ for conserved $\lambda_l I$. In the paper's setting this
    is sigma^2 g_l with g_l = L - l - sum_{k=l+1}^L N_{k+1}/N_k (corrected: the printed sum has k from l to L - 1).

    Example:
        >>> print(js.theory.balance_offsets(jnp.array([1.0, 2.0])))
        [-3. -2.  0.]

    Raises:
        ValueError: conserved is not a vector.
    """
    conserved = jnp.asarray(conserved, jnp.result_type(jnp.asarray(conserved), float))
    if conserved.ndim != 1:
        raise ValueError(f"conserved must hold a factor for each pair of layers, shape (L - 1,), got {conserved.shape}")
    sums = jnp.cumsum(conserved[::-1])[::-1]
    return jnp.concatenate([-sums, jnp.zeros_like(sums[:1])])


def layer_values(
    c: Float[ArrayLike, ""], eta: Float[ArrayLike, " matrices"], conserved: Float[ArrayLike, " hidden"]
) -> Float[Array, " matrices"]:
    r"""The singular values u_l of all layers in a mode with prod_l u_l = c, to first order in the conserved factors.

    $u_l = \sqrt{\eta_l}\,[v + (o_l - \bar o)/(2 v)]$ with $v = (c/\sqrt{\prod \eta})^{1/L}$, the offsets o from
    `js.theory.balance_offsets` and their mean $\bar o$. For the last layer, in the paper's setting and after training,
    $u \simeq s^{1/L} - g \sigma^2/(2 L s^{1/L})$ with $g = \sum_l g_l$ (eq. 59, corrected: the printed equation gives
    u^2, from s^2).

    Arguments:
        c: the strength of the mode, > 0.
        eta: the rates of all L >= 2 weight matrices, from the input; > 0.
        conserved: the multiples of the identity, shape (L - 1,), such as `js.theory.mean_conserved`.

    Example:
        >>> print(*(f"{u:.2f}" for u in js.theory.layer_values(1.0, jnp.ones(2), conserved=jnp.array([0.2]))))
        0.95 1.05

    Raises:
        ValueError: c or a rate is not positive, or the lengths of eta and conserved do not match.
    """
    c, eta = read_mode(c, eta)
    offsets = balance_offsets(conserved).astype(c.dtype)
    if offsets.shape != eta.shape:
        raise ValueError(
            f"{eta.shape[0]} rates are for {eta.shape[0] - 1} conserved numbers, got {offsets.shape[0] - 1}"
        )
    known = concrete(c)
    if known is not None and not np.all(known > 0):
        raise ValueError("a mode of strength 0 has no layers to expand around; give c > 0")
    v = safe_power(c, 1 / eta.shape[0]) / jnp.sqrt(mean_rate(eta))
    return jnp.sqrt(eta) * (v + (offsets - jnp.mean(offsets)) / (2 * nonzero(v)))
