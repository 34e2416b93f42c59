import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import kernels
from benchmarks._neural_tangents_server import Contestant, network
from tests.cases import assert_fails, eps


SMALL = kernels.Case(n=7, d=3, depth=2, width=5, c=2)


def test_both_sides_are_given_one_network():
    """The same outputs from the module and from the matrices, and others without the middle layer."""
    net, weights, x = kernels.sides(SMALL, str(jnp.result_type(float)))
    assert [w.shape for w in weights] == [(3, 5), (5, 5), (5, 2)]
    other = jax.jit(network)
    outputs = np.asarray(eqx.filter_jit(lambda net, x: jax.vmap(net)(x))(net, x))
    assert outputs.shape == (SMALL.n, SMALL.c)
    close = lambda ws: np.testing.assert_allclose(np.asarray(other(ws, x)), outputs, rtol=0, atol=eps(10))
    close(weights)
    assert_fails(lambda: close([weights[0], weights[2]]))


def test_the_products_are_those_of_the_formula():
    """Of a network 3-5-5-2 and 7 samples, counted by hand."""
    forward, backward = [(7, 3, 5), (7, 5, 5)], [(14, 5, 5)]
    grams = [(7, 3, 7), (7, 5, 7), (7, 5, 7), (14, 5, 14), (14, 5, 14)]
    assert sorted(kernels.products(SMALL)) == sorted([*forward, *backward, *grams])


def test_all_take_their_turns():
    """Every contestant is called, and its answer is that of its function."""
    x = jnp.ones(2)
    contestants = [Contestant(str(index), lambda x, index=index: (index + 1) * x, x) for index in range(3)]
    seconds = kernels.take_turns(contestants, budget=0.01)
    assert all(len(seconds[str(index)]) >= 1 and min(seconds[str(index)]) > 0 for index in range(3))
    for index, contestant in enumerate(contestants):
        np.testing.assert_array_equal(contestant.answer(), (index + 1) * np.ones(2))
