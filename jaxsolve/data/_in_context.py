"""In-context linear regression: sequences of pairs, each with its own weights, and a set with the same moments."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, Real

from .._checks import concrete, describe, real_array, require_finite, require_key, require_size
from .._numerics import require_room
from ._dataset import Dataset
from ._synthetic import covariance_root, matmul


def in_context(
    n_train: int,
    covariance: Real[ArrayLike, "..."],
    context: int,
    *,
    n_test: int = 0,
    key: PRNGKeyArray,
) -> Dataset:
    """Sequences (x_1, y_1), ..., (x_N, y_N), (x_q, 0) with target y_q: the pairs determine the weights.

    In each sequence, y = w . x with an independent w ~ N(0, I); all x ~ N(0, covariance).

    Args:
        n_train: number of training sequences, at least 1.
        covariance: eigenvalues >= 0, shape `(D,)`, or a symmetric positive definite matrix, shape `(D, D)`.
        context: N, at least 1.
        key: random key, new style or legacy.

    Other Arguments:
        n_test: number of test sequences, drawn like the training sequences; 0 for no test set.

    Returns:
        A Dataset with x of shape `(n, N + 1, D + 1)` and y of shape `(n, 1)`.

    Example:
        >>> js.data.in_context(100, jnp.array([0.4, 0.3]), 31, key=jax.random.key(0)).x.shape
        (100, 32, 3)

    Reference:
        @inproceedings{zhang2025training, title={Training dynamics of in-context learning in linear attention},
          author={Yedi Zhang and Aaditya K. Singh and Peter E. Latham and Andrew Saxe}, booktitle={ICML}, year={2025},
          note={arXiv 2501.16265}}

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range or has the wrong shape.
    """
    require_size(n_train, "n_train")
    require_size(n_test, "n_test", least=0)
    require_size(context, "context")
    require_key(key)
    size, dtype = _size(covariance), jnp.result_type(float)
    root = covariance_root(covariance, size)
    require_room((n_train + n_test) * (context + 1) * (size + 1) * jnp.dtype(dtype).itemsize, "this dataset", key)

    def sample(n: int, key: PRNGKeyArray) -> tuple[Float[Array, "n tokens numbers"], Float[Array, "n one"]]:
        key_x, key_w = jax.random.split(key)
        x = matmul(jax.random.normal(key_x, (n, context + 1, size), dtype), root.T)
        y = matmul(x, jax.random.normal(key_w, (n, size, 1), dtype))
        return jnp.concatenate([x, y.at[:, -1].set(0)], axis=2), y[:, -1]

    keys = jax.random.split(key)
    test = sample(n_test, keys[1]) if n_test else ()
    return Dataset(*sample(n_train, keys[0]), *test, source=f"regression in context: {size} inputs, {context} pairs")


def in_context_moments(covariance: Real[ArrayLike, "..."], context: int) -> Dataset:
    r"""D^2 + 1 sequences on which the loss of linear attention equals its expected loss on those of `in_context`.

    Linear attention (`js.nets.LinearAttention`) sees a sequence only through $z = b x_q^\top$, where
    $b = \frac1N \sum_n y_n x_n$. Under mean squared error, its loss and gradient therefore depend on second moments
    alone. With the covariance $\Lambda$ of the inputs, these are

    $$E[b b^\top] = \Lambda^2 + \frac{\Lambda^2 + \Lambda \operatorname{tr} \Lambda}{N} =: E, \quad
    E[z z^\top] = E \otimes \Lambda, \quad E[y_q z] = \Lambda^2, \quad E[y_q^2] = \operatorname{tr} \Lambda.$$

    The sequences returned have these moments, and each has a single pair (b, 1) as its context. The loss is half the
    squared error. For any other network, the losses differ.

    Args:
        covariance: $\Lambda$: eigenvalues >= 0, shape `(D,)`, or a symmetric positive definite matrix, shape `(D, D)`.
        context: N, at least 1: the number of pairs in the sequences of `in_context`.

    Returns:
        A Dataset with x of shape `(D^2 + 1, 2, D + 1)` and y of shape `(D^2 + 1, 1)`.

    Example:
        >>> data = js.data.in_context_moments(jnp.array([0.4, 0.3, 0.2, 0.1]), 31)
        >>> print(data.x.shape, jnp.mean(data.y**2).round(4))
        (17, 2, 5) 1.0

    Reference:
        @inproceedings{zhang2025training, title={Training dynamics of in-context learning in linear attention},
          author={Yedi Zhang and Aaditya K. Singh and Peter E. Latham and Andrew Saxe}, booktitle={ICML}, year={2025},
          note={arXiv 2501.16265}}

    Raises:
        TypeError: context is not an integer, or the covariance does not hold real numbers.
        ValueError: an argument is outside its range or has the wrong shape.
    """
    require_size(context, "context")
    size = _size(covariance)
    left, root, _ = jnp.linalg.svd(covariance_root(covariance, size))
    values, n = root**2, size**2 + 1
    # The eigenvalues of E / Lambda (both have the same eigenvectors): at least tr Lambda / N.
    ratio = values + (values + jnp.sum(values)) / context
    if (known := concrete(values)) is not None and not np.any(known > 0):
        raise ValueError("covariance must have a positive eigenvalue")
    means = n**0.25 * left * jnp.sqrt(ratio * values)[None, :]
    queries = n**0.25 * left * root[None, :]
    # Sequence (i, j) has b along eigenvector i and x_q along j. The last one is zero; its target adds what z leaves.
    first = jnp.concatenate([jnp.repeat(means.T, size, axis=0), jnp.ones((size**2, 1), root.dtype)], axis=1)
    second = jnp.concatenate([jnp.tile(queries.T, (size, 1)), jnp.zeros((size**2, 1), root.dtype)], axis=1)
    x = jnp.stack([first, second], axis=1)
    y = jnp.diag(values / jnp.sqrt(ratio)).ravel()
    # tr Lambda minus the other sequences' share, written without cancellation.
    left_over = jnp.sum(values * (values + jnp.sum(values)) / (context * ratio))
    return Dataset(
        jnp.concatenate([x, jnp.zeros((1, 2, size + 1), root.dtype)]),
        n**0.5 * jnp.concatenate([y, jnp.sqrt(left_over)[None]])[:, None],
        source=f"moments of regression in context: {size} inputs, {context} pairs",
    )


def _size(covariance: object) -> int:
    shape = real_array(covariance, "covariance").shape
    if not shape or not shape[0]:
        raise ValueError(f"covariance must have shape (D,) or (D, D), got {describe(covariance)}")
    require_finite(covariance, "covariance")
    return shape[0]
