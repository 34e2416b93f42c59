"""Gram matrices of hidden layers: by NumPy, by the theory of balanced networks, and as probes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from tests import cases


def _view(net, n=6, tests=4):
    x, y = jr.normal(jr.key(1), (n, 3)), jr.normal(jr.key(2), (n, 1))
    test = (jr.normal(jr.key(3), (tests, 3)), jnp.zeros((tests, 1)))
    problem = js.Problem(net, x, y, test=test)
    return problem, js.View(problem, jnp.zeros(()), problem.params)


def test_gram_matrices_of_each_layer_in_numpy():
    scaling = cases.scaling(3)
    net = js.nets.MLP(
        in_size=3, out_size=1, width_size=8, depth=2, activation="tanh", bias=True, scaling=scaling, key=jr.key(0)
    )
    problem, view = _view(net)
    signals = [np.asarray(problem.x), np.asarray(problem.x_test)]
    for layer in (1, 2):
        w, b, factor = (np.asarray(part[layer - 1]) for part in (net.weights, net.biases, scaling.multiplier))
        signals = [np.tanh(factor * z @ w.T + b) for z in signals]
        gram = js.observe.hidden_kernel(layer)(view)
        np.testing.assert_allclose(gram, signals[0] @ signals[0].T, rtol=cases.eps(50), atol=cases.eps(50))
        cross = js.observe.hidden_cross_kernel(layer)(view)
        np.testing.assert_allclose(cross, signals[1] @ signals[0].T, rtol=cases.eps(50), atol=cases.eps(50))


def test_the_last_kernel_is_the_part_of_the_ntk_that_the_read_out_has():
    net = js.nets.LeNet(in_shape=(1, 8, 8), out_size=2, scaling=js.nets.Scaling.kaiming(), key=jr.key(0))
    problem = js.Problem(net, jr.normal(jr.key(1), (3, 1, 8, 8)), jnp.ones((3, 2)))
    view = js.View(problem, jnp.zeros(()), problem.params)
    gradients = (
        np.asarray(jax.jacrev(problem.outputs)(problem.params).weights[-1])[:, 0, 0] / net.scaling.multiplier[-1]
    )
    found = js.observe.hidden_kernel(4)(view)
    np.testing.assert_allclose(found, gradients @ gradients.T, rtol=cases.eps(100), atol=cases.eps(10))
    cases.assert_fails(lambda: np.testing.assert_allclose(js.observe.hidden_kernel(3)(view), found, rtol=1e-3))


def test_trained_linear_networks_have_the_kernels_of_balanced_modes():
    beta = np.array([[2.0, 0.5, 0.0]])
    net = js.nets.DeepLinear(
        in_size=3, out_size=1, width_size=8, depth=2, scaling=js.nets.Scaling.standard(sigma=1e-2), key=jr.key(0)
    )
    problem = js.Problem(net, 3**0.5 * jnp.eye(3), 3**0.5 * jnp.asarray(beta).T)
    watched = [js.observe.hidden_kernel(1), js.observe.hidden_kernel(2)]
    run = js.solve(problem, js.GradientFlow(rtol=1e-6), [0.0, 2000.0], observe=watched)
    modes = js.theory.BalancedModes.from_map(jnp.asarray(beta), eta=jnp.ones(3))
    for layer in (1, 2):
        expected = 3 * np.asarray(modes.hidden_kernel(layer))
        # Off by the square of the start, of the order of 1e-3.
        np.testing.assert_allclose(run[f"hidden_kernel_{layer}"][1], expected, atol=5e-3)
        cases.assert_fails(
            lambda layer=layer, expected=expected: np.testing.assert_allclose(
                run[f"hidden_kernel_{3 - layer}"][1], expected, atol=5e-3
            )
        )


def test_a_linear_probe_of_the_last_layer_is_least_squares_on_its_signals():
    net = js.nets.MLP(
        in_size=3,
        out_size=1,
        width_size=4,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.standard(),
        key=jr.key(0),
    )
    problem, view = _view(net, n=9)
    gram, cross = js.observe.hidden_kernel(1)(view), js.observe.hidden_cross_kernel(1)(view)
    ridge = 1e-2
    signals, tests = (np.tanh(np.asarray(x) @ np.asarray(net.weights[0]).T) for x in (problem.x, problem.x_test))
    solved = np.linalg.solve(signals.T @ signals + ridge * np.eye(4), signals.T @ np.asarray(problem.y))
    found = np.asarray(cross) @ np.linalg.solve(np.asarray(gram) + ridge * np.eye(9), np.asarray(problem.y))
    np.testing.assert_allclose(found, tests @ solved, rtol=1e-8 if cases.eps(1) < 1e-10 else 1e-2)


@pytest.mark.usefixtures("as_users")
def test_what_has_no_such_layer_is_refused():
    with pytest.raises(ValueError, match="layer must be >= 1, the number of weight arrays below, got 0"):
        js.observe.hidden_kernel(0)
    with pytest.raises(TypeError, match="layer must be an integer >= 1, got"):
        js.observe.hidden_cross_kernel(1.0)  # pyright: ignore
    net = js.nets.MLP(in_size=3, out_size=1, width_size=4, depth=1, scaling=js.nets.Scaling.ntk(), key=jr.key(0))
    _, view = _view(net)
    with pytest.raises(ValueError, match="one of the hidden ones, 1 to 1, got 2"):
        js.observe.hidden_kernel(2)(view)
    wide = js.nets.WideResNet(
        in_shape=(1, 8, 8), out_size=2, k=1, b=1, scaling=js.nets.Scaling.kaiming(), key=jr.key(0)
    )
    problem = js.Problem(wide, jnp.ones((2, 1, 8, 8)), jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="the kernel of a hidden layer is for networks whose hidden layers follow"):
        js.observe.hidden_kernel(1)(js.View(problem, jnp.zeros(()), problem.params))
    plain = js.Problem(net, jnp.ones((2, 3)), jnp.ones((2, 1)))
    with pytest.raises(ValueError, match="no test set"):
        js.solve(plain, js.GradientFlow(), [0.0, 1.0], observe=js.observe.hidden_cross_kernel(1))
