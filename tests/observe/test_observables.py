"""Every observable against its formula in NumPy, on a small network away from its start."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import nets, observe, Problem, Quantity, View
from tests import cases


@functools.cache
def _view(activation="tanh", centered=True, bias=True):
    """A problem with a test set, and parameters that are not those of its start."""
    net = cases.mlp(jr.key(0), cases.ACTIVATIONS[activation][0], bias=bias)
    problem = cases.problem(net, jr.key(1), n=4, test=3, centered=centered)
    # Targets that are classes, of any two values: accuracy is of nothing else.
    classes = lambda y: jnp.where(y == jnp.max(y, axis=1, keepdims=True), 0.7, -0.4)
    fields = lambda p: (p.y, p.y_test)
    problem = eqx.tree_at(fields, problem, tuple(classes(y) for y in fields(problem)))
    return View(problem, jnp.zeros(()), cases.randomized(problem.params, jr.key(2)))


def _read(observable, view):
    return np.asarray(eqx.filter_jit(observable)(view))


def _arrays(view):
    return [np.asarray(w) for w in view.params.weights], [np.asarray(w) for w in view.problem.params.weights]


def _outputs(view, x):
    now, start = eqx.combine(view.params, view.problem.net), view.problem.net
    difference = [cases.forward(now, sample, np.tanh) - cases.forward(start, sample, np.tanh) for sample in x]
    return np.array(difference)


def _flat_kernel(view, params):
    """sum_p eta_p df/dp df/dp^T by central differences of the outputs in NumPy; rows are (sample, output)."""
    hand = cases.by_hand(view.problem, "tanh")
    theta, step = np.asarray(ravel_pytree(params)[0], float), 1e-5
    moved = [(hand.outputs(theta + e) - hand.outputs(theta - e)).ravel() for e in step * np.eye(theta.size)]
    jacobian = np.array(moved).T / (2 * step)
    return (jacobian * hand.eta) @ jacobian.T


def _gram(k):
    return k / np.linalg.norm(k)


def _formulas(view):
    """The value of every observable of a dense network, by its definition."""
    problem = view.problem
    now, start = _arrays(view)
    f, f_test = _outputs(view, problem.x), _outputs(view, problem.x_test)
    y, y_test = np.asarray(problem.y), np.asarray(problem.y_test)
    k, k0 = _flat_kernel(view, view.params), _flat_kernel(view, problem.params)
    right = lambda f, y: np.mean([np.argmax(a) == np.argmax(b) for a, b in zip(f, y, strict=True)])
    return {
        "loss": sum((f - y).ravel() ** 2) / 8,
        "test_loss": sum((f_test - y_test).ravel() ** 2) / 6,
        "outputs": f,
        "test_outputs": f_test,
        "accuracy": right(f, y),
        "test_accuracy": right(f_test, y_test),
        "weight_norms": [np.sqrt(np.sum(w**2)) for w in now],
        "weight_distances": [np.sqrt(np.sum((w - w0) ** 2)) for w, w0 in zip(now, start, strict=True)],
        "layer_alignment": [
            np.linalg.norm(b @ a) / (np.linalg.norm(a) * np.linalg.norm(b))
            for a, b in zip(now[:-1], now[1:], strict=True)
        ],
        "kernel": k.reshape(4, 2, 4, 2),
        "kernel_distance": 1 - np.sum(_gram(k) * _gram(k0)),
        "kernel_change": np.linalg.norm(k - k0) / np.linalg.norm(k0),
        "kernel_alignment": y.ravel() @ k @ y.ravel() / (np.linalg.norm(k) * np.sum(y**2)),
    }


@functools.cache
def _expected():
    return _formulas(_view())


NAMES = [
    "loss",
    "test_loss",
    "outputs",
    "test_outputs",
    "accuracy",
    "test_accuracy",
    "weight_norms",
    "weight_distances",
    "layer_alignment",
    "kernel",
    "kernel_distance",
    "kernel_change",
    "kernel_alignment",
]


@pytest.mark.x64_only
@pytest.mark.parametrize("name", NAMES)
def test_formula(name):
    observable, expected = getattr(observe, name)(), np.asarray(_expected()[name])
    assert observable.name == name
    value = _read(observable, _view())
    assert value.ndim == len(observable.dims)
    tolerance = 1e-8 if "kernel" in name else 1e-13  # the finite differences' own error
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    if "accuracy" not in name:  # four samples: it may not have changed
        start = View(_view().problem, jnp.zeros(()), _view().problem.params)
        assert np.abs(_read(observable, start) - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("name", NAMES)
def test_float_of_the_problem_and_batches(name):
    """Under vmap each row is that of its own parameters."""
    observable, view = getattr(observe, name)(), _view()
    stacked = jax.tree.map(lambda a, b: jnp.stack([a, b]), view.params, view.problem.params)
    rows = jax.jit(jax.vmap(lambda params: observable(View(view.problem, view.t, params))))(stacked)
    assert rows.dtype == jnp.result_type(float)
    one = _read(observable, view)
    np.testing.assert_allclose(rows[0], one, rtol=cases.eps(100), atol=cases.eps(100) * np.abs(one).max())
    if "distance" in name or name == "kernel_change":
        np.testing.assert_allclose(rows[1], 0, atol=cases.eps(10))
    else:
        assert name.endswith("accuracy") or not np.allclose(rows[1], one)


@pytest.mark.parametrize("name", ["loss", "layer_alignment", "kernel_distance", "weight_distances"])
def test_gradients_are_finite_at_the_start_too(name):
    observable, view = getattr(observe, name)(), _view()
    total = lambda params: jnp.sum(observable(View(view.problem, view.t, params)))
    gradient = jax.jit(lambda params: ravel_pytree(jax.grad(total)(params))[0])
    assert np.any(gradient(view.params) != 0)
    assert np.all(np.isfinite(gradient(view.params)))
    assert np.all(np.isfinite(gradient(view.problem.params)))


def test_accuracy_of_one_output_is_that_of_signs():
    x = jnp.eye(5)
    problem = Problem(
        cases.Linear(jnp.zeros((1, 5))), x, jnp.array([1.0, -1.0, 1.0, -1.0, 1.0]), test=(x[:2], jnp.ones(2))
    )
    params = eqx.tree_at(lambda p: p.w, problem.params, jnp.array([[2.0, -3.0, -1.0, 0.5, 0.0]]))
    view = View(problem, jnp.zeros(()), params)
    np.testing.assert_allclose(observe.accuracy()(view), 2 / 5, rtol=cases.eps(2))  # 0 has no right sign
    np.testing.assert_allclose(observe.test_accuracy()(view), 1 / 2)


# Alignment of two linear layers


def _linear_view(x, out_size=1, sign=1.0):
    net = nets.TwoLayerLinear(in_size=3, out_size=out_size, width_size=4, scaling=cases.scaling(2), key=jr.key(3))
    problem = Problem(net, x, jnp.ones((x.shape[0], out_size)))
    w, u = (jr.normal(key, leaf.shape) for key, leaf in zip(jr.split(jr.key(4)), net.weights, strict=True))
    return View(problem, jnp.zeros(()), eqx.tree_at(lambda p: p.weights, problem.params, (w, sign * u)))


DIRECTION = np.array([2.0, -1.0, 2.0]) / 3


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("along", [[1.0], [0.5, -2.0, 1.0], [0.0, -1.0]], ids=str)
def test_alignment_on_a_line_is_signed(sign, along):
    """zeta = u . W n/(|u| |W n|), where n points along the longest input."""
    x = jnp.asarray(np.outer(along, DIRECTION))
    view = _linear_view(x, sign=sign)
    w, u = (np.asarray(a) for a in view.params.weights)
    longest = np.sign(along[np.argmax(np.abs(along))])
    v = w @ (longest * DIRECTION)
    zeta = (u[0] @ v) / (np.linalg.norm(u) * np.linalg.norm(v))
    value = _read(observe.layer_alignment(), view)
    np.testing.assert_allclose(value, [zeta], rtol=cases.eps(100))
    matrices = np.linalg.norm(u @ w) / (np.linalg.norm(u) * np.linalg.norm(w))  # the direction is left out
    assert abs(value[0] - matrices) > 1e-3 * abs(zeta)
    assert np.sign(value[0]) == np.sign(zeta)


@pytest.mark.parametrize("out_size", [1, 2])
def test_alignment_elsewhere_is_that_of_the_matrices(out_size):
    """Off the line by little, or with more outputs."""
    x = jnp.asarray(np.outer([1.0, -2.0], DIRECTION))
    off = x.at[0, 0].add(1e-3) if out_size == 1 else x
    view = _linear_view(off, out_size)
    w, u = (np.asarray(a) for a in view.params.weights)
    expected = np.linalg.norm(u @ w) / (np.linalg.norm(u) * np.linalg.norm(w))
    np.testing.assert_allclose(_read(observe.layer_alignment(), view), [expected], rtol=cases.eps(100))
    assert out_size == 2 or abs(_read(observe.layer_alignment(), _linear_view(x))[0] - expected) > 0.01


# Conserved quantities


def test_conserved_of_linear_layers_is_a_matrix():
    net = nets.DeepLinear(in_size=3, out_size=2, width_size=4, depth=2, scaling=cases.scaling(3), key=jr.key(0))
    problem = cases.problem(net, jr.key(1))
    view = View(problem, jnp.zeros(()), cases.randomized(problem.params, jr.key(2)))
    weights, eta = _arrays(view)[0], np.asarray(net.scaling.eta)
    for index in (0, 1):
        above, below = weights[index + 1], weights[index]
        expected = above.T @ above / eta[index + 1] - below @ below.T / eta[index]
        value = _read(observe.conserved(index), view)
        np.testing.assert_allclose(value, expected, rtol=cases.eps(100), atol=cases.eps(100))
        assert np.abs(value - (above.T @ above - below @ below.T)).max() > 1e-3  # the rates are left out
        assert observe.conserved(index).name == f"conserved_{index}"


@pytest.mark.parametrize("bias", [True, False])
def test_conserved_of_relu_layers_is_a_number_per_neuron(bias):
    view = _view("relu", bias=bias)
    weights, scaling = _arrays(view)[0], view.problem.net.scaling
    for index in (0, 1):
        expected = np.zeros((5, 5))
        for neuron in range(5):
            outgoing = np.sum(weights[index + 1][:, neuron] ** 2) / scaling.eta[index + 1]
            incoming = np.sum(weights[index][neuron] ** 2) / scaling.eta[index]
            if bias:
                incoming += view.params.biases[index][neuron] ** 2 / scaling.bias_eta
            expected[neuron, neuron] = outgoing - incoming
        np.testing.assert_allclose(
            _read(observe.conserved(index), view), expected, rtol=cases.eps(100), atol=cases.eps(100)
        )


@pytest.mark.parametrize(("activation", "index", "count"), [("relu", 2, 2), ("relu", -1, 2), ("tanh", 0, 0)])
def test_conserved_that_there_is_not(activation, index, count):
    with pytest.raises(ValueError, match=f"has {count} conserved quantities, but index is {index}"):
        observe.conserved(index)(_view(activation))


def test_conserved_of_a_network_without_layers():
    problem = cases.modes([1.0], [1.0])
    with pytest.raises(ValueError, match="has 0 conserved quantities"):
        observe.conserved()(View(problem, jnp.zeros(()), problem.params))


# Observables of one's own


def test_an_observable_of_ones_own():
    gap = observe.Observable("gap", lambda view: jnp.max(jnp.abs(view.outputs - view.problem.y)), Quantity.OUTPUTS)
    view = _view()
    np.testing.assert_allclose(gap(view), np.abs(_read(observe.outputs(), view) - view.problem.y).max(), rtol=1e-6)
    assert gap.unit == "1"


@pytest.mark.parametrize(
    ("fn", "dims", "error", "message"),
    [
        (lambda view: view.outputs, (), ValueError, r"'mine' returned shape \(4, 2\), but its dims are \(\)"),
        (lambda view: view.loss, ("sample",), ValueError, r"returned shape \(\), but its dims are \('sample',\)"),
        (lambda view: 1.0, (), TypeError, "'mine' must return a JAX array, got float 1.0"),
        (lambda view: None, (), TypeError, "'mine' must return a JAX array, got NoneType"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_ill_shaped_observables(fn, dims, error, message):
    with pytest.raises(error, match=message):
        observe.Observable("mine", fn, dims=dims)(_view())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name must be a non-empty string"),
        ({"name": 3}, "name must be a non-empty string, got int 3"),
        ({"fn": "loss"}, "fn of observable 'mine' must be a function of a View, got str 'loss'"),
        ({"needs": "outputs"}, "needs of observable 'mine' must be a Quantity, got str 'outputs'"),
        ({"dims": ["sample"]}, "dims of observable 'mine' must be a tuple of names, got list"),
        ({"dims": "sample"}, "dims of observable 'mine' must be a tuple of names, got str"),
        ({"dims": (1,)}, "dims of observable 'mine' must be a tuple of names"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_observables(arguments, message):
    with pytest.raises(TypeError, match=message):
        observe.Observable(**({"name": "mine", "fn": lambda view: view.loss} | arguments))
