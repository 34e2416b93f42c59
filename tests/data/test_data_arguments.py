import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.inside import require_count, require_key, require_scalar


def test_counts():
    assert require_count(3, "n", least=1) == 3
    assert type(require_count(np.int32(3), "n", least=1)) is int
    with pytest.raises(ValueError, match="n must be an integer >= 2, got 1"):
        require_count(1, "n", least=2)
    for value in (1.0, True, "1", None):
        with pytest.raises(TypeError, match=f"n must be an integer >= 0, got {type(value).__name__}"):
            require_count(value, "n", least=0)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), jnp.asarray(2)])
def test_scalars_of_any_kind(value):
    array = require_scalar(value, "s", positive=True)
    assert array == 2
    assert array.dtype == jnp.result_type(float)


def test_bad_scalars():
    with pytest.raises(ValueError, match=r"s must be a finite scalar >= 0, got an array of shape \(2,\).*use jax.vmap"):
        require_scalar(jnp.zeros(2), "s", positive=False)
    for value in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"s must be a finite scalar > 0, got {value}"):
            require_scalar(value, "s", positive=True)


def test_traced_scalars_pass():
    assert jax.jit(lambda s: require_scalar(s, "s", positive=True))(-1.0) == -1.0


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
