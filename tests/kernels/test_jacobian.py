"""Products with the Jacobian, layer by layer, against the whole Jacobian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import kernels, nets
from tests import cases
from tests.inside import Bias, Conv, Dense, Gain, LayeredJacobian, SpatialMean, StandardizeGroups
from tests.kernels.stacks import DENSE, TANH, zoo


SKIP = nets.Residual((TANH, Conv(1, stride=2), Bias(1)), (Conv(2, stride=2),))
# Layers, shapes of the weights, of the biases and of the gains, and of a sample.
STACKS = {
    "dense": (
        DENSE,
        ((5, 4), (6, 5), (3, 6)),
        (5, 6, 3),
        (),
        (4,),
    ),
    "images": (
        (
            Conv(0),
            StandardizeGroups(2),
            Gain(0),
            Bias(0),
            SKIP,
            nets.Residual((TANH, Conv(3))),
            SpatialMean(),
            Dense(4),
        ),
        ((4, 2, 3, 3), (3, 4, 3, 3), (3, 4, 1, 1), (3, 3, 2, 2), (2, 3)),
        (4, 3),
        (4,),
        (2, 5, 4),
    ),
}


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(jnp.result_type(float))


@pytest.fixture(scope="module", params=STACKS)
def case(request):
    """A network, inputs, and its whole Jacobian, (n, c, parameters)."""
    stack, weights, biases, gains, shape = STACKS[request.param]
    net = zoo(jax.random.key(0), stack, weights, biases, gains, shape)
    x = jnp.asarray(draw(3, *shape))
    params, rest = nets.partition(net)
    flat, unravel = ravel_pytree(params)
    outputs = lambda w: jax.vmap(eqx.combine(unravel(w), rest))(x)
    return net, x, np.asarray(jax.jit(jax.jacrev(outputs))(flat))


@eqx.filter_jit
def products(net, x, v, q):
    held, params = LayeredJacobian(net, x), nets.partition(net)[0]
    pulled = held.pull(q)
    return held.push(ravel_pytree(params)[1](v)), ravel_pytree(pulled)[0], held.ntk(nets.rates(net))


def close(found, expected, units):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=cases.eps(units) * np.max(np.abs(expected)))


def rates(net):
    params = nets.partition(net)[0]
    return np.asarray(ravel_pytree(jax.tree.map(lambda r, p: jnp.broadcast_to(r, p.shape), nets.rates(net), params))[0])


def test_products_are_those_of_the_whole_jacobian(case):
    net, x, jacobian = case
    v, q = draw(jacobian.shape[2]), draw(*jacobian.shape[:2])
    pushed, pulled, ntk = products(net, x, v, q)

    def check(scale):
        eta = rates(net) * np.where(np.arange(v.size) < net.weights[0].size, scale, 1)
        close(ntk, np.einsum("nap,p,mbp->namb", jacobian, eta, jacobian), 10)  # measured: 2

    check(1.0)
    cases.assert_fails(lambda: check(0.0))  # the first array is left out
    close(pushed, jacobian @ v, 10)  # measured: 2
    close(pulled, np.einsum("na,nap->p", q, jacobian), 10)  # measured: 2
    np.testing.assert_array_equal(ntk, np.transpose(ntk, (2, 3, 0, 1)))
    close(ntk, kernels.empirical(net, x, eta=nets.rates(net)).ntk, 4)  # measured: 0


def test_each_of_many_networks_is_what_it_is_alone():
    net, x = cases.mlp(jax.random.key(0)), cases.inputs(jax.random.key(1), 3)
    size = ravel_pytree(nets.partition(net)[0])[0].size
    v, q = draw(size), draw(3, 2)
    many = eqx.filter_vmap(lambda scale: products(_scaled(net, scale), x, v, q))(jnp.array([0.5, 1.0, 2.0]))
    for found, expected in zip(many, products(net, x, v, q), strict=True):
        close(found[1], expected, 10)
        assert np.max(np.abs(found[0] - expected)) > 0.01 * np.max(np.abs(expected))


def _scaled(net, scale):
    return eqx.tree_at(lambda n: n.weights, net, jax.tree.map(lambda w: scale * w, net.weights))
