"""What no network is made of."""

import jax
import jax.numpy as jnp
import pytest

from jaxsolve.nets import MLP, Scaling


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": 0}, TypeError, "key must be a JAX random key such as jax.random.key.0., got int 0"),
        ({"key": None}, TypeError, "key must be a JAX random key"),
        ({"key": jax.random.split(jax.random.key(0), 2)}, ValueError, r"one key, got a batch of shape \(2,\)"),
        ({"dtype": jnp.int32}, ValueError, "dtype must be one of real numbers such as jnp.float32, or None, got int32"),
        ({"dtype": "wide"}, TypeError, "dtype must be a dtype such as"),
        ({"activation": lambda z: z[:1]}, ValueError, r"an activation must return an array of the shape it is given"),
        ({"activation": lambda z: z.missing}, TypeError, r"the activation .* cannot take an array of shape \(3,\)"),
        ({"depth": 10**7}, ValueError, "depth must be such that there are at most 10000 weight matrices"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_what_no_network_is_made_of(change, error, message):
    plain = {"in_size": 2, "width": 4, "depth": 1, "out_size": 1, "scaling": Scaling.ntk(), "key": jax.random.key(0)}
    with pytest.raises(error, match=message):
        MLP(**(plain | change))
