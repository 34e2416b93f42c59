"""Modular addition, as sequences of three tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._checks import require_key, require_size
from .._numerics import require_room
from ._dataset import Dataset


def modular_addition(modulus: int, n_train: int, *, key: PRNGKeyArray) -> Dataset:
    """All pairs (a, b) with 0 <= a, b < p, and a + b modulo p as their class: the task on which networks grok.

    A sample is the three tokens a, b, "=", one-hot over p + 1 tokens. The pairs that are not in the training set form
    the test set.

    Args:
        modulus: p, at least 2.
        n_train: number of training pairs, from 1 to p^2.
        key: random key, new style or legacy, for the choice of training pairs.

    Returns:
        A Dataset with x of shape `(n, 3, p + 1)` and one-hot classes y of shape `(n, p)`. It has no test set if all
        pairs are training pairs.

    Example:
        >>> data = js.data.modular_addition(5, 15, key=jax.random.key(0))
        >>> a, b, _ = jnp.argmax(data.x[0], axis=1)
        >>> data.x.shape, len(data.x_test), bool(jnp.argmax(data.y[0]) == (a + b) % 5)
        ((15, 3, 6), 10, True)

    Reference:
        @article{power2022grokking, author={Alethea Power and Yuri Burda and Harri Edwards and Igor Babuschkin and
          Vedant Misra}, title={Grokking: generalization beyond overfitting on small algorithmic datasets}, year={2022}}

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range.
    """
    require_size(modulus, "modulus", least=2)
    require_size(n_train, "n_train")
    require_key(key)
    pairs, dtype = modulus**2, jnp.result_type(float)
    if n_train > pairs:
        raise ValueError(f"n_train must be at most {pairs}, the number of pairs below {modulus}, got {n_train}")
    require_room(pairs * 3 * (modulus + 1) * jnp.dtype(dtype).itemsize, "this dataset", key)
    order = jax.random.permutation(key, pairs)
    a, b = order // modulus, order % modulus
    x = jax.nn.one_hot(jnp.stack([a, b, jnp.full_like(a, modulus)], axis=1), modulus + 1, dtype=dtype)
    y = jax.nn.one_hot((a + b) % modulus, modulus, dtype=dtype)
    test = (x[n_train:], y[n_train:]) if n_train < pairs else ()
    source = f"addition modulo {modulus}: {n_train} of {pairs} pairs"
    return Dataset(x[:n_train], y[:n_train], *test, source=source)
