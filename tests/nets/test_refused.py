"""What no network is made of."""

import jax
import jax.numpy as jnp
import pytest

from jaxsolve.nets import AbstractInit, Mirrored, MLP, Scaling, Start


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
        ({"depth": 10**7}, ValueError, "depth must give at most 10000 weight matrices"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_what_no_network_is_made_of(change, error, message):
    plain = {
        "in_size": 2,
        "width_size": 4,
        "depth": 1,
        "out_size": 1,
        "scaling": Scaling.ntk(),
        "key": jax.random.key(0),
    }
    with pytest.raises(error, match=message):
        MLP(**(plain | change))


class Ones(AbstractInit):
    """Without biases, and without the last weights if `short`."""

    short: bool = False

    def __call__(self, shapes, scaling, key):
        weights = tuple(jnp.ones(shape) for shape in shapes.weights)
        return Start(weights[:-1] if self.short else weights, ())


@pytest.mark.parametrize("within", [lambda init: init, Mirrored])
@pytest.mark.usefixtures("as_users")
def test_what_an_init_leaves_out_is_missed(within):
    make = lambda init, bias: MLP(
        in_size=2,
        out_size=1,
        width_size=4,
        depth=1,
        bias=bias,
        scaling=Scaling.ntk(),
        init=within(init),
        key=jax.random.key(0),
    )
    for init, bias in ((Ones(), True), (Ones(short=True), False)):
        with pytest.raises(ValueError, match=r"Ones needs .* of shapes \(\(\(4, 2\), \(1, 4\)\), .*, got "):
            make(init, bias)
    assert len(make(Ones(), False).weights) == 2
