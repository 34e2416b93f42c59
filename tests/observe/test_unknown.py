"""Observables where there is nothing to see: in runs that failed, of layers that are not there, at starts at 0."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import jaxsolve as js
from jaxsolve import nets, observe


def test_a_failed_run_has_no_accuracy_and_no_patterns():
    net = nets.MLP(
        in_size=4, out_size=3, width_size=16, depth=1, activation="relu", scaling=nets.Scaling.standard(), key=jr.key(0)
    )
    x, labels = jr.normal(jr.key(1), (8, 4)), jnp.array([0, 0, 0, 0, 0, 0, 1, 2])
    y = jnp.eye(3)[labels]
    watched = [observe.accuracy(), observe.test_accuracy(), observe.hamming_distance(), observe.loss()]
    problem = js.Problem(net, x, y, test=(x, y))
    run = js.solve(problem, js.Descent(optax.sgd(1e3)), [0.0, 1e4, 1e5], observe=watched, throw=False)
    assert run.result == js.RESULTS.diverged
    for item in watched:
        assert np.isfinite(run[item.name][0])
        assert np.all(np.isnan(run[item.name][1:])), (
            item.name
        )  # not the share of class 0, and not the units that were on


def test_layers_are_counted():
    net = nets.TwoLayerLinear(in_size=2, width_size=4, scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
    with pytest.raises(ValueError, match=r"layer_cosine\(2\) counts from 0, and this network has 2 layers"):
        js.solve(problem, js.GradientFlow(), 1.0, observe=observe.layer_cosine(2))
    assert observe.layer_cosine(1).require == observe.layer_cosine(1).require  # so that it compiles once


@pytest.mark.parametrize("rate", [1.0, 100.0])
def test_neuron_delta_is_measured_by_its_terms(rate):
    scaling = nets.Scaling([1.0, 1.0], [1.0, 1.0], [rate, rate])
    net = nets.MLP(in_size=2, out_size=1, width_size=20, depth=1, activation="relu", scaling=scaling, key=jr.key(0))
    problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
    scale = observe.neuron_delta().scale
    assert scale is not None
    terms = rate * jnp.max(net.weights[1][0] ** 2 + jnp.sum(net.weights[0] ** 2, axis=1))
    np.testing.assert_allclose(scale(js.View(problem, jnp.zeros(()), problem.params)), terms, rtol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
def test_changes_in_the_rich_limit_are_from_its_own_start(depth):
    scaling = nets.Scaling.mean_field()
    net = nets.MLP(in_size=2, out_size=1, width_size=20, depth=depth, activation="tanh", scaling=scaling, key=jr.key(0))
    x = jnp.eye(2)
    problem = js.Problem(net, x, jnp.array([[1.0], [-1.0]]), test=(x, jnp.ones((2, 1))))
    watched = [observe.output_change(), observe.test_output_change(), observe.outputs()]
    limit = js.RichLimit(nodes=20, samples=512)
    run = js.solve(problem, limit, [0.0, 1.0], observe=watched)
    np.testing.assert_allclose(run["output_change"][0], 0, atol=1e-6)
    for name in ("output_change", "test_output_change"):
        np.testing.assert_allclose(run[name][1], np.sqrt(np.mean(run["outputs"][1] ** 2)), rtol=1e-3)


def test_a_check_without_assumptions_applies():
    assert bool(js.Validity(()).applies)
    assert bool(js.Validity(()).exact)
    net = nets.TwoLayerLinear(in_size=2, width_size=4, scaling=nets.Scaling.ntk(), key=jr.key(0))
    assert bool(js.FrozenKernel().check(js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))).applies)
