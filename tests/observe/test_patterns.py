"""Hamming distance of activation patterns and distance of parameters, by their definition in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


def _patterns(weights, biases, x, activation):
    found, z = [], np.asarray(x)
    for layer, w in enumerate(weights[:-1]):
        z = z @ np.asarray(w).T
        z = z * MULTIPLIERS[layer] + (np.asarray(biases[layer]) if biases else 0)
        found.append(z > 0)
        z = np.maximum(z, activation * z)
    return np.concatenate(found, axis=1)


MULTIPLIERS = np.array([0.8, 1.3, 0.6])


@pytest.mark.parametrize("bias", [False, True])
def test_patterns_are_counted_in_all_hidden_layers(bias, getkey):
    net = js.nets.MLP(
        in_size=3,
        out_size=1,
        width_size=20,
        depth=2,
        activation="leaky_relu",
        bias=bias,
        scaling=cases.scaling(3),
        key=getkey(),
    )
    problem = js.Problem(net, jr.normal(getkey(), (30, 3)), jr.normal(getkey(), (30, 1)))
    moved = jax.tree.map(lambda w: w + 0.5 * jr.normal(jr.key(w.size), w.shape), problem.params)
    view = js.View(problem, jnp.zeros(()), moved)
    before = _patterns(net.weights, net.biases, problem.x, 0.01)
    after = _patterns(moved.weights, moved.biases, problem.x, 0.01)
    found = float(js.observe.hamming_distance()(view))
    assert found > 1
    np.testing.assert_allclose(found, np.mean(np.sum(before != after, axis=1)), rtol=cases.eps(10))
    first = np.mean(np.sum((before != after)[:, :20], axis=1))  # without the second layer
    cases.assert_fails(lambda: np.testing.assert_allclose(found, first, rtol=1e-2))

    flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (moved, problem.params)]
    distance = float(js.observe.parameter_distance()(view))
    np.testing.assert_allclose(distance, np.linalg.norm(flat[0] - flat[1]), rtol=cases.eps(20))
    layer = np.linalg.norm(np.asarray(moved.weights[1]) - np.asarray(net.weights[1]))
    cases.assert_fails(lambda: np.testing.assert_allclose(distance, layer, rtol=1e-2))


def test_distances_keep_the_precision_of_the_network(getkey):
    net = js.nets.MLP(
        in_size=2, out_size=1, width_size=4, depth=1, activation="relu", scaling=js.nets.Scaling.ntk(), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (3, 2)), jr.normal(getkey(), (3, 1)))
    problem = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem)
    view = js.View(problem, jnp.zeros((), jnp.float32), jax.tree.map(lambda w: 2 * w, problem.params))
    for observable in (js.observe.parameter_distance(), js.observe.weight_change()):
        assert observable(view).dtype == jnp.float32


def test_quantiles_of_a_network_that_has_diverged_are_unknown(getkey):
    """Those of a padded one are of its units alone."""
    net = js.nets.MLP(
        in_size=2, out_size=1, width_size=4, depth=1, activation="tanh", scaling=js.nets.Scaling.ntk(), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (3, 2)), jr.normal(getkey(), (3, 1)))
    at = lambda params: js.observe.preactivation_quantiles(1)(js.View(problem, jnp.zeros(()), params))
    assert np.all(np.isfinite(at(problem.params)))
    first = problem.params.weights[0].at[2, 0].set(jnp.nan)
    assert np.all(np.isnan(at(eqx.tree_at(lambda p: p.weights[0], problem.params, first))))


@pytest.mark.slow
def test_along_a_flow_both_begin_at_zero(getkey):
    net = js.nets.MLP(
        in_size=2, out_size=1, width_size=10, depth=1, activation="relu", scaling=js.nets.Scaling.ntk(), key=getkey()
    )
    problem = js.Problem(net, jr.normal(getkey(), (8, 2)), 3 * jr.normal(getkey(), (8, 1)))
    watched = [js.observe.hamming_distance(), js.observe.parameter_distance(), js.observe.weight_distances()]
    run = js.solve(problem, js.GradientFlow(rtol=1e-3), np.array([0.0, 5.0]), observe=watched)
    assert run["hamming_distance"][0] == run["parameter_distance"][0] == 0
    assert run["hamming_distance"][1] > 0
    by_layer = np.sqrt(np.sum(np.asarray(run["weight_distances"][1]) ** 2))
    np.testing.assert_allclose(run["parameter_distance"][1], by_layer, rtol=cases.eps(20))


def test_networks_without_kinks_are_refused(getkey):
    net = js.nets.MLP(
        in_size=2, out_size=1, width_size=4, depth=1, activation="tanh", scaling=js.nets.Scaling.ntk(), key=getkey()
    )
    problem = js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
    message = r"piecewise linear activation, such as nets\.MLP\(\.\.\., activation='relu'\); none was found in MLP"
    with pytest.raises(js.NotApplicable, match=message):
        js.solve(problem, js.GradientFlow(), 1.0, observe=js.observe.hamming_distance())
