"""The laziness of a start: against differences in NumPy, its order in sigma, and its invariances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import curvature_ratio, laziness
from tests import cases
from tests.cases import assert_fails


measure = eqx.filter_jit(laziness)
estimate = eqx.filter_jit(curvature_ratio)


def by_differences(problem, activation):
    """The two rates in NumPy: the Jacobian by differences of outputs, its change by a step along gradient flow."""
    hand, step, time = cases.by_hand(problem, activation), 1e-4, 2e-4
    theta, eta = hand.start, hand.eta

    def jacobian(theta):
        moved = [hand.outputs(theta + e) - hand.outputs(theta - e) for e in step * np.eye(theta.size)]
        return np.stack(moved, axis=-1) / (2 * step) * np.sqrt(eta)

    loss, gradient = hand.loss_and_gradient(theta)
    velocity = -eta * gradient
    change = (jacobian(theta + time * velocity) - jacobian(theta - time * velocity)) / (2 * time)
    return np.linalg.norm(change) / np.linalg.norm(jacobian(theta)), -(gradient @ velocity) / loss


@pytest.mark.x64_only
@pytest.mark.parametrize("centered", [False, True])
def test_rates_are_those_of_the_flow(getkey, centered):
    problem = cases.problem(cases.mlp(getkey(), "tanh", bias=True), getkey(), centered=centered)
    said, (features, loss) = measure(problem), by_differences(problem, "tanh")

    def close(features, loss):
        np.testing.assert_allclose(said.features, features, rtol=7e-6)  # measured 7e-7
        np.testing.assert_allclose(said.loss, loss, rtol=1e-12)  # measured 4e-16

    close(features, loss)
    without_rates = measure(eqx.tree_at(lambda p: p.net.scaling.eta, problem, jnp.ones_like(problem.net.scaling.eta)))
    assert_fails(lambda: close(without_rates.features, loss))
    assert_fails(lambda: close(features, without_rates.loss))
    np.testing.assert_allclose(said.ratio, features / loss, rtol=7e-6)


def small(sigma, depth, activation, target=1.0):
    rule = js.nets.Scaling.ntk(sigma=sigma, eta=jnp.linspace(0.5, 2.0, depth + 1))
    net = js.nets.MLP(
        in_size=4, out_size=1, width_size=5, depth=depth, activation=activation, scaling=rule, key=jr.key(1)
    )
    x = jr.normal(jr.key(0), (6, 4))
    return js.Problem(net, x, target * jnp.sin(3 * x[:, :1]))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(("activation", "depth"), [("relu", 1), ("linear", 2), ("relu", 3)])
def test_the_order_in_sigma_is_minus_the_number_of_layers(activation, depth):
    @jax.jit
    @jax.vmap
    def ratios(sigma):
        problem = small(sigma, depth, activation)
        return jnp.log(laziness(problem).ratio), jnp.log(curvature_ratio(problem))

    sigma = jnp.array([1e-2, 1e-3, 1e-4])
    slopes = [np.diff(ratio) / np.diff(np.log(sigma)) for ratio in ratios(sigma)]
    for slope in slopes:
        # Corrections are of the order of the output at the start, sigma^layers.
        np.testing.assert_allclose(slope, -(depth + 1), atol=3e-4)
        np.testing.assert_allclose(slope[1], -(depth + 1), atol=3e-6)
        assert_fails(lambda s=slope: np.testing.assert_allclose(s, -depth, atol=3e-4))  # a layer left out


@pytest.mark.x64_only
@pytest.mark.parametrize(("activation", "depth"), [("relu", 1), ("linear", 2), ("relu", 3)])
def test_orders_of_outputs_and_kernel_at_the_start(activation, depth):
    """Of L = depth + 1 layers: f_0 ~ sigma^L and K_0 ~ sigma^(2L - 2), so that f_0 ~ K_0^(L/(2L - 2)) (appendix A)."""

    @jax.jit
    @jax.vmap
    def sizes(sigmas):
        problem = small(sigmas, depth, activation)
        found = problem.outputs(problem.params), problem.kernel(problem.params, problem.x)
        return jnp.log(jnp.stack([jnp.linalg.norm(one) for one in found]))

    def check(sigmas):
        orders = np.diff(sizes(sigmas), axis=0)[0] / np.log(10)
        np.testing.assert_allclose(orders, [depth + 1, 2 * depth], rtol=1e-12)  # homogeneous: exact powers

    sigma = jnp.array([[1e-3], [1e-2]])
    check(jnp.repeat(sigma, depth + 1, axis=1))
    assert_fails(lambda: check(jnp.repeat(sigma, depth + 1, axis=1).at[:, 0].set(1.0)))  # a layer left out


def test_units_of_the_output_tell_which_estimate_is_right():
    """Both ratios grow like the target; the estimates as printed, without the slope of the loss, do not."""

    @jax.jit
    @jax.vmap
    def measured(target):
        problem = small(1e-4, 1, "relu", target)
        outputs = problem.outputs(problem.params)
        loss, slope = problem.loss.value(outputs, problem.y), problem.loss.gradient(outputs, problem.y)
        right = curvature_ratio(problem)
        printed_62 = right * jnp.linalg.norm(slope)
        return laziness(problem).ratio, right, printed_62, printed_62 / loss**2

    def as_the_target(ratio):
        np.testing.assert_allclose(ratio[1] / ratio[0], 10, rtol=1e-5)

    ratio, right, printed_62, printed_11 = measured(jnp.array([1.0, 10.0]))
    as_the_target(ratio)
    as_the_target(right)
    np.testing.assert_allclose(printed_62[1] / printed_62[0], 100, rtol=1e-5)
    np.testing.assert_allclose(printed_11[1] / printed_11[0], 0.01, rtol=1e-5)
    for printed in (printed_62, printed_11):
        assert_fails(lambda p=printed: as_the_target(p))


def test_the_estimate_of_a_linear_network_by_hand():
    problem = small(0.7, 1, "linear")
    (w, u), (eta_w, eta_u) = (np.asarray(m) for m in problem.net.weights), np.asarray(problem.net.scaling.eta)
    m, x = float(np.prod(problem.net.scaling.multiplier)), np.asarray(problem.x)
    squares = np.sum(x**2)
    first = lambda eta_w, eta_u: m**2 * (eta_u * np.sum((x @ w.T) ** 2) + eta_w * np.sum(u**2) * squares)
    second = m * np.sqrt(2 * 5 * eta_u * eta_w * squares)
    residual = np.linalg.norm(m * x @ w.T @ u.T - np.asarray(problem.y))

    def close(first, second):
        np.testing.assert_allclose(estimate(problem), residual * second / (2 * first), rtol=cases.eps(200))

    close(first(eta_w, eta_u), second)
    assert_fails(lambda: close(first(eta_w, eta_u), second / np.sqrt(2)))  # half of the Hessian, which is symmetric
    assert_fails(lambda: close(first(1, eta_u), second))  # without a rate
    assert_fails(lambda: close(first(eta_w, 1), second))


@pytest.mark.x64_only
@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3), st.floats(-2, 2))
def test_the_abc_symmetry_and_the_unit_of_time_leave_the_ratio(exponents, unit):
    start = small(0.8, 2, "relu")
    s = jnp.asarray(10 ** np.array(exponents))
    where = lambda p: (p.net.scaling.multiplier, p.net.scaling.eta, *p.net.weights)
    m, eta, *weights = where(start)
    moved = eqx.tree_at(
        where, start, (m * s, eta / s**2 * 10.0**unit, *(w / f for w, f in zip(weights, s, strict=True)))
    )
    one, two = measure(start), measure(moved)
    np.testing.assert_allclose(two.ratio, one.ratio, rtol=1e-11)
    np.testing.assert_allclose(two.loss, one.loss * 10.0**unit, rtol=1e-11)
    np.testing.assert_allclose(two.features, one.features * 10.0**unit, rtol=1e-11)
    np.testing.assert_allclose(estimate(moved), estimate(start), rtol=1e-11)


def test_zero_weights_and_zero_loss():
    depth = 2
    zero = small(0.0, depth, "linear")
    assert tuple(float(v) for v in measure(zero)) == (0.0, 0.0, np.inf)
    assert float(estimate(zero)) == np.inf
    start = small(0.8, depth, "linear")
    fitted = eqx.tree_at(lambda p: p.y, start, start.outputs(start.params))
    assert tuple(float(v) for v in measure(fitted)) == (0.0, 0.0, 0.0)
    assert float(estimate(fitted)) == 0
    for problem in (fitted, start):
        slope = jax.jit(jax.grad(lambda s, p=problem: laziness(p, jax.tree.map(lambda w: s * w, p.params)).features))(
            1.0
        )
        assert np.isfinite(slope)


@pytest.mark.slow
@pytest.mark.x64_only
def test_gradients_agree_with_finite_differences():
    f = jax.jit(lambda sigma: jnp.log(laziness(small(sigma, 2, "relu")).ratio))
    h = 1e-5
    np.testing.assert_allclose(jax.jit(jax.grad(f))(0.6), (f(0.6 + h) - f(0.6 - h)) / (2 * h), rtol=1e-8)


def test_parameters_other_than_the_start(getkey):
    problem = small(0.8, 1, "relu")
    moved = cases.randomized(problem.params, getkey())
    there = eqx.tree_at(lambda p: p.net.weights, problem, moved.weights)
    for one, two in zip(measure(problem, moved), measure(there), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-13)
    np.testing.assert_allclose(estimate(problem, moved), estimate(there), rtol=1e-13)


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    problem = small(0.5, 2, "relu")
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem)
    for fine, rough in zip((*measure(problem), estimate(problem)), (*measure(single), estimate(single)), strict=True):
        assert rough.dtype == jnp.float32
        np.testing.assert_allclose(rough.astype(float), fine, rtol=1e-5)


def test_a_network_is_refused(getkey, as_users):
    net = small(1.0, 1, "relu").net
    for function in (laziness, curvature_ratio):
        with pytest.raises(TypeError, match="must be a jaxsolve.Problem"):
            function(net)
