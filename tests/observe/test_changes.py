"""How far kernels on the test set, weights and outputs have moved, by their definitions in NumPy."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import FrozenKernel, nets, observe, Problem, solve, View
from tests import cases
from tests.nets.images import convolve


@functools.cache
def _view(centered=True):
    """A problem with a test set, and parameters that are not those of its start."""
    net = cases.mlp(jr.key(0), "tanh", bias=True)
    problem = cases.problem(net, jr.key(1), n=4, test=3, centered=centered)
    return View(problem, jnp.zeros(()), cases.randomized(problem.params, jr.key(2)))


def _read(observable, view):
    return np.asarray(eqx.filter_jit(observable)(view))


def _flat(tree):
    return np.asarray(ravel_pytree(tree)[0], float)


def _test_kernel(view, params):
    """By central differences of the outputs in NumPy."""
    problem = view.problem
    hand = cases.by_hand(Problem(problem.net, problem.x_test, problem.y_test), "tanh")
    theta, step = _flat(params), 1e-5
    moved = [(hand.outputs(theta + e) - hand.outputs(theta - e)).ravel() for e in step * np.eye(theta.size)]
    jacobian = np.array(moved).T / (2 * step)
    return (jacobian * hand.eta) @ jacobian.T


@pytest.mark.x64_only
@pytest.mark.parametrize("centered", [True, False])
def test_kernels_of_the_test_inputs(centered):
    view = _view(centered)
    k, k0 = _test_kernel(view, view.params), _test_kernel(view, view.problem.params)
    unit = lambda kernel: kernel / np.linalg.norm(kernel)
    expected = {
        "test_kernel": k.reshape(3, 2, 3, 2),
        "test_kernel_change": np.linalg.norm(k - k0) / np.linalg.norm(k0),
        "test_kernel_distance": 1 - np.sum(unit(k) * unit(k0)),
    }
    for name, value in expected.items():
        observable = getattr(observe, name)()
        assert observable.name == name
        check = functools.partial(np.testing.assert_allclose, desired=value, rtol=1e-8, atol=1e-8)
        check(_read(observable, view))
        if name != "test_kernel":  # on the training inputs it is another number
            training = getattr(observe, name.removeprefix("test_"))()
            cases.assert_fails(lambda found=_read(training, view), check=check: check(found))


def test_weights_of_all_kinds_count():
    view = _view()
    now, start = _flat(view.params), _flat(view.problem.params)
    found = _read(observe.weight_change(), view)
    np.testing.assert_allclose(found, np.linalg.norm(now - start) / np.linalg.norm(start), rtol=cases.eps(20))
    matrices = [
        np.linalg.norm(_flat(tree.weights))
        for tree in (jax.tree.map(jnp.subtract, view.params, view.problem.params), view.problem.params)
    ]
    assert abs(found - matrices[0] / matrices[1]) > 1e-3  # biases left out


@pytest.mark.parametrize("centered", [True, False])
def test_outputs_from_where_they_started(centered):
    view = _view(centered)
    inputs = np.asarray(view.problem.x), np.asarray(view.problem.x_test)
    for name, x in zip(("output_change", "test_output_change"), inputs, strict=True):
        nets_ = view.net, view.problem.net
        now, start = (np.array([cases.forward(net, one, np.tanh) for one in x]) for net in nets_)
        found = _read(getattr(observe, name)(), view)
        np.testing.assert_allclose(found, np.sqrt(np.mean((now - start) ** 2)), rtol=cases.eps(200))
        assert abs(found - np.sqrt(np.mean(now**2))) > 1e-3  # the start left out
        assert found.shape == ()


@pytest.mark.parametrize(
    "name", ["weight_change", "output_change", "test_output_change", "test_kernel_change", "test_kernel_distance"]
)
def test_nothing_has_moved_at_the_start(name):
    view, observable = _view(), getattr(observe, name)()
    start = View(view.problem, view.t, view.problem.params)
    np.testing.assert_allclose(_read(observable, start), 0, atol=cases.eps(10))
    gradient = jax.jit(jax.grad(lambda params: observable(View(view.problem, view.t, params))))
    assert np.any(_flat(gradient(view.params)) != 0)
    assert np.all(np.isfinite(_flat(gradient(view.problem.params))))


def _preactivations(net, x):
    """z_l = m_l W_l phi(z_{l-1}) + b_l of the hidden layers of a tanh network, in NumPy."""
    found, signal = [], np.asarray(x)
    for layer in range(len(net.weights) - 1):
        w, b = (np.asarray(one[layer]) for one in (net.weights, net.biases))
        z = float(net.scaling.multiplier[layer]) * signal @ w.T + b
        found.append(z)
        signal = np.tanh(z)
    return found


@pytest.mark.x64_only
def test_preactivations_move_as_finite_differences_say():
    view, step = _view(), 1e-5
    problem = view.problem
    hand = cases.by_hand(problem, "tanh")
    theta, unravel = ravel_pytree(view.params)
    velocity = -hand.eta * hand.loss_and_gradient(np.asarray(theta))[1]
    ends = [_preactivations(problem.network(unravel(theta + sign * step * velocity)), problem.x) for sign in (1, -1)]
    expected = [np.sqrt(np.mean(((a - b) / (2 * step)) ** 2)) for a, b in zip(*ends, strict=True)]
    found = _read(observe.preactivation_velocity(), view)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    plain = eqx.tree_at(lambda v: v.problem.net.scaling.eta, view, jnp.ones(3))  # the rates left out
    assert np.all(np.abs(_read(observe.preactivation_velocity(), plain) / found - 1) > 1e-2)


def test_padding_does_not_count():
    scaling, watched = nets.Scaling.lazy(0.5), observe.preactivation_velocity()
    make = lambda width: nets.MLP(
        in_size=3,
        out_size=1,
        width_size=width,
        depth=2,
        activation=nets.softplus(5.0),
        bias=True,
        scaling=scaling,
        key=jr.key(0),
    )
    found = [
        _read(watched, View(problem, jnp.zeros(()), problem.params))
        for problem in (cases.problem(make(width), jr.key(1)) for width in (4, nets.Padded(4, 7)))
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=cases.eps(100))


@pytest.mark.x64_only
def test_preactivations_of_a_convolutional_network():
    images = nets.ConvNet(
        in_shape=(1, 5, 5), out_size=1, width_size=3, activation="tanh", scaling=nets.Scaling.mup(), key=jr.key(0)
    )
    problem = Problem(images, jr.normal(jr.key(1), (4, 1, 5, 5)), jnp.ones((4, 1)))
    found, step = _read(observe.preactivation_velocity(), View(problem, jnp.zeros(()), problem.params)), 1e-5
    gradient = jax.jit(jax.grad(problem.objective))(problem.params)
    velocity = jax.tree.map(lambda rate, g: -rate * g, problem.eta, gradient)

    def signals(sign):
        """After each of the four convolutions, in NumPy."""
        z, layers = np.asarray(problem.x), []
        for layer, stride in enumerate((2, 1, 2, 1)):
            w = np.asarray(images.weights[layer] + sign * step * velocity.weights[layer])
            signal = np.tanh(z) if layer else z
            z = float(images.scaling.multiplier[layer]) * np.stack([convolve(w, one, stride) for one in signal])
            layers.append(z)
        return layers

    moved = [(a - b) / (2 * step) for a, b in zip(signals(1), signals(-1), strict=True)]
    close = lambda mean: np.testing.assert_allclose(found, [np.sqrt(mean(v**2)) for v in moved], rtol=5e-9)
    close(np.mean)  # measured: 5e-10
    cases.assert_fails(lambda: close(lambda squares: np.mean(squares.sum((2, 3)))))  # not averaged over pixels


def test_what_is_refused():
    view = _view()
    problem = Problem(view.problem.net, view.problem.x, view.problem.y)
    for observable in (observe.test_kernel_change(), observe.test_kernel(), observe.test_output_change()):
        with pytest.raises(ValueError, match=r"no test set; give Problem\(..., test=\(x, y\)\)"):
            observable(View(problem, view.t, view.params))
    with pytest.raises(ValueError, match="'test_kernel_change' needs parameters, but FrozenKernel provides only"):
        solve(view.problem, FrozenKernel(), 1.0, observe=observe.test_kernel_change())
    linear = Problem(cases.Linear(jnp.ones((1, 2))), jnp.eye(2), jnp.ones(2))
    with pytest.raises(ValueError, match=r"whose hidden layers follow one another, such as nets.MLP .* tests.cases"):
        observe.preactivation_velocity()(View(linear, jnp.zeros(()), linear.params))
