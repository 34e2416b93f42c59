"""Sums of neurons that users write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.nets import Neurons
from tests.cases import eps


def _neuron(theta, direction, x):
    return jnp.stack([theta["u"] * theta["v"] * (direction @ x), theta["u"] ** 2 * x[0]])


def _net(key):
    keys = jax.random.split(key, 3)
    weights = {"u": jax.random.normal(keys[0], (4,)), "v": jax.random.normal(keys[1], (4,))}
    return Neurons(_neuron, weights, degree=2, constants=jax.random.normal(keys[2], (4, 3)))


def test_is_the_sum(getkey):
    net, x = _net(getkey()), jax.random.normal(getkey(), (3,))
    u, v, directions = (np.asarray(a) for a in (net.params["u"], net.params["v"], net.constants.arrays))
    expected = [np.sum(u * v * (directions @ np.asarray(x))), np.sum(u**2) * x[0]]
    np.testing.assert_allclose(jax.jit(lambda x: net(x))(x), expected, rtol=eps(100))


def test_constants_do_not_train(getkey):
    net, x = _net(getkey()), jax.random.normal(getkey(), (5, 3))
    problem = js.Problem(net, x, jax.random.normal(getkey(), (5, 2)))
    assert sorted(leaf.shape for leaf in jax.tree.leaves(problem.params)) == [(4,), (4,)]
    run = js.solve(problem, js.GradientFlow(), [0.0, 1.0])
    assert run["loss"][1] < run["loss"][0]
    np.testing.assert_array_equal(run.final.net.constants.arrays, net.constants.arrays)


@pytest.mark.usefixtures("as_users")
def test_what_is_refused():
    with pytest.raises(TypeError, match="g must be a function"):
        Neurons(3.0, jnp.ones((2, 1)), degree=2)
    for params, constants in (({}, None), (jnp.ones(()), None), (jnp.ones((2, 1)), jnp.ones((3, 1)))):
        with pytest.raises(ValueError, match="first axis is that of the neurons"):
            Neurons(_neuron, params, degree=2, constants=constants)
    with pytest.raises(ValueError, match="degree"):
        Neurons(_neuron, jnp.ones((2, 1)), degree=-1)
