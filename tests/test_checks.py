import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import Problem
from tests.cases import mlp, X64
from tests.inside import one_number, require_key, require_size


def test_counts():
    assert require_size(3, "n") == 3
    assert type(require_size(np.int32(3), "n")) is int
    with pytest.raises(ValueError, match="n must be an integer >= 2, got 1"):
        require_size(1, "n", least=2)
    for value in (1.0, True, "1", None):
        with pytest.raises(TypeError, match=f"n must be an integer >= 0, got {type(value).__name__}"):
            require_size(value, "n", least=0)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), jnp.asarray(2)])
def test_scalars_of_any_kind(value):
    array = one_number(value, "s")
    assert array == 2
    assert array.dtype == jnp.result_type(float)


def test_bad_scalars():
    with pytest.raises(ValueError, match=r"s must be one finite number >= 0, got an array of shape.*use jax.vmap"):
        one_number(jnp.zeros(2), "s", zero=True)
    for value in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"s must be one finite number > 0, got {value}"):
            one_number(value, "s")


def test_texts_are_no_numbers_and_hints_end_a_message():
    with pytest.raises(TypeError, match="s must be one finite number > 0, got str '1'; say it as 1.0"):
        one_number("1", "s", hint="; say it as 1.0")


def test_traced_scalars_pass():
    assert jax.jit(lambda s: one_number(s, "s"))(-1.0) == -1.0


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_keys(make):
    require_key(make(0))
    jax.vmap(lambda key: require_key(key))(jax.random.split(make(0), 2))
    with pytest.raises(ValueError, match=r"key must be one key, got a batch of shape \(3.*jax.vmap"):
        require_key(jax.random.split(make(0), 3))


@pytest.mark.parametrize("value", [0, None, np.zeros(2, np.uint32), jnp.zeros(2)])
def test_what_is_no_key(value):
    with pytest.raises(TypeError, match=r"key must be a JAX random key such as jax.random.key\(0\), got"):
        require_key(value)


def test_rounded_products_are_warned_of_once(monkeypatch):
    given = mlp(jax.random.key(0)), np.ones((4, 3)), np.ones((4, 2))

    def make(dtype):
        cast = lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf
        return Problem(*jax.tree.map(cast, given))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(jnp.float32)
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where factors are rounded unless JAX is told
        if X64:
            make(jnp.float64)
        with jax.default_matmul_precision("highest"):
            make(jnp.float32)
    with pytest.warns(UserWarning, match="'jax_default_matmul_precision', 'highest'") as found:
        make(jnp.float32)
    assert len(found) == 1
