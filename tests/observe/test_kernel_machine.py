"""The network as a kernel machine of its own tangent kernel, and what is observed of it."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import (
    as_kernel_machine,
    FrozenKernel,
    GradientFlow,
    kernels,
    losses,
    nets,
    observe,
    Problem,
    solve,
    View,
)
from tests.inside import least_map


@functools.cache
def _two_outputs():
    x = jr.normal(jr.key(1), (7, 3))
    net = nets.MLP(
        in_size=3, out_size=2, width_size=8, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(0)
    )
    y = jnp.concatenate([x[:, :1], x[:, 1:2] ** 2], axis=1)
    return Problem(net, x[:4], y[:4], test=(x[4:], y[4:]))


def test_predictions_are_the_end_of_the_frozen_flow():
    """By another path: the linearized flow to t = inf, in eigenvectors, with the kernel of a network elsewhere."""
    problem = _two_outputs()
    params = jax.tree.map(lambda w: w + 0.1 * jnp.cos(jnp.arange(w.size)).reshape(w.shape), problem.params)
    end = solve(problem, FrozenKernel(at=problem.network(params)), [jnp.inf], observe=observe.test_outputs())
    found = as_kernel_machine(problem, params)
    np.testing.assert_allclose(found.predictions, end["test_outputs"][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.outputs, problem.test_outputs(params), rtol=1e-6)
    first = as_kernel_machine(problem, problem.params)  # the kernel matters
    assert float(jnp.max(jnp.abs(first.predictions - found.predictions))) > 1e-2


def test_error_and_correlation_are_numpys():
    machine = as_kernel_machine(_two_outputs(), _two_outputs().params)
    f, g = np.asarray(machine.outputs), np.asarray(machine.predictions)
    np.testing.assert_allclose(machine.error, np.linalg.norm(f - g) / np.linalg.norm(f), rtol=1e-5)
    np.testing.assert_allclose(machine.correlation, np.corrcoef(f.ravel(), g.ravel())[0, 1], rtol=1e-4)


@pytest.mark.x64_only
def test_every_kernel_of_a_balanced_linear_run_learns_the_same_function():
    """Appendix F: A beta beta^T + I has one interpolator for every A, that of least norm. Twin: another direction."""
    x = 3**0.5 * jnp.linalg.qr(jr.normal(jr.key(1), (8, 3)))[0].T  # whitened, fewer samples than dimensions
    tests = jr.normal(jr.key(2), (5, 8))
    y = x @ jr.normal(jr.key(3), (8, 1))
    beta = jnp.linalg.lstsq(x, y)[0]

    def spread(direction):
        unit = direction / jnp.linalg.norm(direction)
        hidden = jnp.ones((4, 1)) / 2
        init = nets.Given([1e-2 * hidden @ unit.T, 1e-2 * hidden.T])
        net = nets.TwoLayerLinear(in_size=8, width_size=4, scaling=nets.Scaling.standard(), init=init, key=jr.key(0))
        problem = Problem(net, x, y, test=(tests, tests @ beta), centered=True)
        watched = [observe.cross_kernel(), observe.kernel(), observe.kernel_norm()]
        run = solve(problem, GradientFlow(rtol=1e-8), [0.0, 2.0, 4.0, 20.0], observe=watched)
        assert run["kernel_norm"][-1] > 1e3 * run["kernel_norm"][0]
        pairs = zip(run["kernel"], run["cross_kernel"], strict=True)
        found = np.stack([np.asarray(kernels.regression(K, y).predict(cross)) for K, cross in pairs])
        return np.abs(found - np.asarray(tests @ beta)).max()

    assert spread(beta) < 1e-7
    off = beta + jnp.linalg.norm(beta) * jnp.eye(8)[:, :1]
    assert spread(off) > 1e-2


def test_kernels_observed():
    problem = _two_outputs()
    view = View(problem, jnp.zeros(()), problem.params)
    np.testing.assert_allclose(observe.kernel_norm()(view), np.sqrt(np.sum(np.asarray(view.kernel) ** 2)), rtol=1e-6)
    both = problem.kernel(problem.params, jnp.concatenate([jnp.asarray(problem.x_test), problem.x]))
    np.testing.assert_allclose(observe.cross_kernel()(view), both[:3, :, 3:], rtol=1e-4, atol=1e-5)


def test_cosines_by_hand():
    """Of a layer with a known angle to the task. Twin: the plain cosine of the layer, not of its Gram matrix."""
    beta, w = np.array([3.0, 4.0]) / 5, np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    net = nets.TwoLayerLinear(
        in_size=2, width_size=3, scaling=nets.Scaling.standard(), init=nets.Given([w, [[1.0, 2.0, 3.0]]]), key=jr.key(0)
    )
    x = np.array([[2.0, 0.0], [1.0, 3.0], [0.5, 1.0]])
    problem = Problem(net, jnp.asarray(x), jnp.asarray(7 * x @ beta)[:, None])
    view = View(problem, jnp.zeros(()), problem.params)
    gram = w.T @ w
    np.testing.assert_allclose(least_map(problem)[0], 7 * beta, rtol=1e-5)
    np.testing.assert_allclose(observe.layer_cosine()(view), beta @ gram @ beta / np.linalg.norm(gram), rtol=1e-5)
    assert abs(np.linalg.norm(w @ beta) / np.linalg.norm(w) - float(observe.layer_cosine()(view))) > 0.01
    above, last = w @ beta, np.array([1.0, 2.0, 3.0])
    expected = (last @ above) ** 2 / (last @ last * (above @ above))
    np.testing.assert_allclose(observe.layer_cosine(1)(view), expected, rtol=1e-5)


def test_small_networks_in_single_precision():
    """The starts that align silently: squares of their kernels are below what float32 holds."""
    scaling = nets.Scaling.standard(sigma=1e-3)
    net = nets.DeepLinear(in_size=3, out_size=1, width_size=8, depth=4, scaling=scaling, key=jr.key(0), dtype="float32")
    problem = Problem(net, np.eye(3, dtype="float32"), np.array([[1.0], [-1.0], [0.5]], "float32"))
    view = View(problem, jnp.zeros(()), problem.params)
    kernel, weights = (jax.tree.map(lambda a: np.asarray(a, np.float64), one) for one in (view.kernel, net.weights))
    assert np.sum(np.asarray(view.kernel) ** 2) == 0
    np.testing.assert_allclose(observe.kernel_norm()(view), np.linalg.norm(kernel), rtol=1e-5)
    pulled = np.linalg.multi_dot([np.array([[1.0, -1.0, 0.5]]), *(w.T for w in weights[:4])])
    expected = np.sum((weights[4] @ pulled.T) ** 2) / (np.sum(weights[4] ** 2) * np.sum(pulled**2))
    np.testing.assert_allclose(observe.layer_cosine(4)(view), expected, rtol=1e-4)


def test_what_is_refused(as_users):
    problem = _two_outputs()
    untested = Problem(problem.net, problem.x, problem.y)
    with pytest.raises(ValueError, match="has no test set"):
        as_kernel_machine(untested, untested.params)
    with pytest.raises(TypeError, match="problem must be"):
        as_kernel_machine(3, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="params must be the parameters of this .*, such as problem.params.*got list"):
        as_kernel_machine(problem, [])
    with pytest.raises(TypeError, match="layer must be an integer"):
        observe.layer_cosine(0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="layer must be >= 0"):
        observe.layer_cosine(-1)


def test_another_loss_is_refused(as_users):
    one = _two_outputs()
    assert one.y_test is not None
    other = Problem(one.net, one.x, jnp.sign(one.y), test=(one.x_test, jnp.sign(one.y_test)), loss=losses.Logistic())
    with pytest.raises(ValueError, match="only the flow of MSE ends in kernel regression"):
        as_kernel_machine(other, other.params)
