import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import kernels
from benchmarks._neural_tangents_server import Contestant, network
from benchmarks._said import on_cpu, row
from tests.cases import assert_fails, eps


SMALL = kernels.Case(n=7, d=3, depth=2, width=5, c=2)


def test_a_target_that_is_missed_is_called_missed():
    assert row("ratio", 59.9, ">=", 60).endswith("NOT MET")
    assert row("ratio", 60.0, ">=", 60).endswith(" met")
    assert row("memory", 2.01, "<=", 2).endswith("NOT MET")
    assert row("memory", 2.0, "<=", 2).endswith(" met")
    for sense in (">=", "<="):
        assert row("not measured", math.nan, sense, 1).endswith("NOT MET")


def test_work_on_the_cpu_is_framed(capsys):
    with on_cpu("one thread"):
        assert jax.config.jax_default_device == jax.devices("cpu")[0]  # pyright: ignore[reportAttributeAccessIssue]
    before, _, after = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"jax .* on CPU, \d+ cores, one thread, load [\d./]+ per core", before)
    assert re.fullmatch(r"load [\d./]+ per core at the end; wall time of it all 0 s", after)


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
