"""The plateaus of linear attention that learns in-context regression."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, require_size
from .._arguments import as_floats


def in_context_losses(eigenvalues: Float[ArrayLike, " in"], context: int) -> Float[Array, " saddles"]:
    r"""The mean squared errors of linear attention at its saddles, with 0, 1, ..., D principal components learned.

    With separate keys and queries of rank one, and from small weights, `js.nets.LinearAttention` moves from saddle to
    saddle. At the m-th saddle, m heads have learned the m largest eigenvalues $\lambda$ of the input covariance
    $\Lambda$, in order:

    $$E (y_q - f)^2 = \operatorname{tr} \Lambda
    - \sum_{d \le m} \frac{\lambda_d}{1 + (1 + \operatorname{tr} \Lambda/\lambda_d)/N}.$$

    `js.losses.MSE` is half of this. The last value is the best that linear attention can do.

    Arguments:
        eigenvalues: lambda > 0, shape (D,), in any order.
        context: N, the number of pairs in the context.

    Returns:
        Mean squared errors, shape (D + 1,), largest first.

    Example:
        >>> print(*(f"{loss:.3f}" for loss in js.theory.in_context_losses(jnp.array([0.4, 0.3, 0.2, 0.1]), 31)))
        1.000 0.641 0.377 0.210 0.136

    Reference:
        @inproceedings{zhang2025training, title={Training dynamics of in-context learning in linear attention},
          author={Yedi Zhang and Aaditya K. Singh and Peter E. Latham and Andrew Saxe}, booktitle={ICML}, year={2025},
          note={arXiv 2501.16265}}

    Raises:
        ValueError: an eigenvalue is not positive and finite, the shape is wrong, or context is below 1.
    """
    values, context = as_floats(eigenvalues, "eigenvalues"), require_size(context, "context")
    known = concrete(values)
    if values.ndim != 1 or not values.size or (known is not None and not np.all((known > 0) & np.isfinite(known))):
        raise ValueError(f"eigenvalues must be positive numbers, shape (D,), got {describe(eigenvalues)}")
    values = jnp.sort(values)[::-1]
    # What remains of each component once it is learned: a sum of positive terms, where a difference would cancel.
    noise = (values + jnp.sum(values)) / context
    stays = jnp.concatenate([jnp.zeros(1, values.dtype), jnp.cumsum(values * noise / (values + noise))])
    untouched = jnp.concatenate([jnp.cumsum(values[::-1])[::-1], jnp.zeros(1, values.dtype)])
    return stays + untouched
