"""Radius and direction of neurons: their rates against the exact time derivative of the weights, and their limits."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import neuron_forces, neurons
from tests import cases
from tests.cases import assert_fails, eps
from tests.inside import Neurons


WIDTH, IN_SIZE, SAMPLES, STARTS = 5, 3, 6, 20


def network(activation, key, **changes):
    rule = cases.scaling(2, **changes)
    return js.nets.MLP(
        in_size=IN_SIZE,
        out_size=1,
        width_size=WIDTH,
        depth=1,
        activation=cases.ACTIVATIONS[activation][0],
        scaling=rule,
        key=key,
    )


def problem(activation, key, *, loss: js.losses.AbstractLoss = js.losses.MSE(), centered=False, **changes):
    keys = jr.split(key, 3)
    x = jr.normal(keys[0], (SAMPLES, IN_SIZE))
    y = jnp.where(jnp.arange(SAMPLES)[:, None] % 2 == 0, 1.0, -1.0)
    return js.Problem(network(activation, keys[1], **changes), x, y, loss=loss, centered=centered)


def by_hand(params):
    """(mu, bhat, beta) of equation (10), from the weights."""
    w, a = params.weights[0], params.weights[1][0]
    length = jnp.sqrt(jnp.sum(w**2, axis=1))
    return a * length, w / length[:, None], a[:, None] * w


def derivatives(given, params):
    """The time derivative of `by_hand` along gradient flow at these parameters, by forward differentiation."""
    gradient = jax.grad(given.objective)(params)
    velocity = jax.tree.map(lambda g, eta: -eta * g, gradient, given.eta)
    return jax.jvp(by_hand, (params,), (velocity,))[1]


def rates(given, params):
    all_of_them, forces = neurons(given.network(params)), neuron_forces(given, params)
    return all_of_them.radius_rate(forces), all_of_them.direction_rate(forces), all_of_them.beta_rate(forces)


def gap(one, two):
    return jnp.max(jnp.abs(one - two)) / jnp.max(jnp.abs(two))


MSE, LOGISTIC = js.losses.MSE(), js.losses.Logistic()


@pytest.mark.parametrize(
    ("activation", "loss", "centered"),
    [("relu", MSE, False), ("relu", LOGISTIC, True), ("leaky_relu(0.3)", MSE, True), ("linear", LOGISTIC, False)],
)
def test_rates_are_the_derivatives_of_the_weights(activation, loss, centered):
    @jax.jit
    @jax.vmap
    def errors(key, sigma, eta, gamma):
        given = problem(activation, key, loss=loss, centered=centered, sigma=sigma, eta=eta, gamma=gamma)
        start = given.params
        moved = jax.tree.map(lambda w: 1.1 * w + 0.01, start)  # else a centered relu network is at f = 0
        right, said = derivatives(given, moved), rates(given, moved)
        without_rates = eqx.tree_at(lambda p: p.net.scaling.eta, given, jnp.ones_like(eta))
        gaps = lambda found: [gap(a, b) for a, b in zip(found, right, strict=True)]
        return gaps(said), gaps(rates(without_rates, moved))

    rng = np.random.default_rng(0)
    good, wrong = errors(
        jr.split(jr.key(1), STARTS),
        jnp.asarray(10 ** rng.uniform(-1.5, 1.5, (STARTS, 2))),
        jnp.asarray(10 ** rng.uniform(-1, 1, (STARTS, 2))),
        jnp.asarray(10 ** rng.uniform(-1, 1, STARTS) * rng.choice([-1, 1], STARTS)),
    )
    for error in good:
        assert float(jnp.max(error)) < eps(90)  # measured 10 eps
    for error in wrong:
        assert_fails(lambda error=error: np.testing.assert_array_less(np.min(error), 1e-4))


def test_the_loss_gradient_is_made_of_the_forces(getkey):
    given = problem("leaky_relu(0.3)", getkey(), loss=LOGISTIC)
    gradient, forces = eqx.filter_jit(lambda p: (jax.grad(p.objective)(p.params), neuron_forces(p)))(given)
    w, a = given.params.weights[0], given.params.weights[1][0]
    np.testing.assert_allclose(gradient.weights[1][0], jnp.sum(w * forces, axis=1), rtol=eps(1e3), atol=eps(10))
    np.testing.assert_allclose(gradient.weights[0], a[:, None] * forces, rtol=eps(1e3), atol=eps(10))


def test_the_network_is_the_sum_of_its_neurons(getkey):
    given = problem("relu", getkey())
    net, found = given.net, neurons(given.net)
    w, a = (np.asarray(w) for w in net.weights)
    eta_w, eta_a = (float(rate) for rate in net.scaling.eta)
    np.testing.assert_allclose(found.delta, eta_w * a[0] ** 2 - eta_a * np.sum(w**2, axis=1), rtol=eps(1e3))
    np.testing.assert_allclose(found.beta, a[0][:, None] * w, rtol=eps(50))
    np.testing.assert_allclose(found.upstream, eta_w * a[0] ** 2, rtol=eps(1e3))
    np.testing.assert_allclose(found.downstream, eta_a * np.sum(w**2, axis=1), rtol=eps(1e3))
    gates = (given.x @ w.T > 0).astype(float)
    outer = net.scaling.gamma * jnp.prod(net.scaling.multiplier)
    f = outer * jnp.sum(gates * (given.x @ found.beta.T), axis=1)
    np.testing.assert_allclose(given.outputs(given.params)[:, 0], f, rtol=eps(1e3))


def test_delta_is_that_of_the_sphere_start(getkey):
    """Kunin et al., D.1: delta = tau^2 (alpha^2 - alpha^-2), for every neuron."""
    tau, alpha = 0.7, 1.6
    rule = js.nets.Scaling(np.ones(2), [tau / alpha, alpha * tau], np.ones(2))
    net = js.nets.MLP(
        in_size=4,
        out_size=1,
        width_size=6,
        depth=1,
        activation="relu",
        scaling=rule,
        init=js.nets.Sphere(),
        key=getkey(),
    )
    np.testing.assert_allclose(neurons(net).delta, tau**2 * (alpha**2 - alpha**-2), rtol=eps(50))


# --- limits ---


@jax.jit
def right_hand_sides(delta, mu, mixed):
    direction = jnp.array([[0.6, 0.8]])
    neuron = Neurons(jnp.asarray(delta)[None], jnp.asarray(mu)[None], direction, jnp.asarray(mixed))
    forces = jnp.array([[0.3, -1.7]])
    return neuron.radius_rate(forces)[0], neuron.direction_rate(forces)[0], neuron.beta_rate(forces)[0]


def printed(delta, mu, mixed):
    """(9) and (10) as printed, in 80-bit arithmetic."""
    delta, mu, mixed = (np.longdouble(value) for value in (delta, mu, mixed))
    b, forces = np.array([0.6, 0.8], np.longdouble), np.array([0.3, -1.7], np.longdouble)
    kappa = np.sqrt(delta**2 + 4 * mixed**2 * mu**2)
    across = forces - b * (b @ forces)
    matrix = (kappa + delta) / 2 * np.eye(2) + (kappa - delta) / 2 * np.outer(b, b)
    return -kappa * (b @ forces), -(kappa + delta) / (2 * mu) * across, -matrix @ forces


logs = lambda low, high: st.floats(low, high).map(lambda e: 10.0**e)
signs = st.sampled_from([-1.0, 1.0])


@pytest.mark.x64_only
@settings(max_examples=30, deadline=None)
@given(logs(-3, 3), signs, logs(-3, 3), signs, logs(-2, 2))
def test_equals_the_printed_right_hand_sides(size, sign, mu, mu_sign, mixed):
    delta, mu = sign * size, mu_sign * mu
    for said, right in zip(right_hand_sides(delta, mu, mixed), printed(delta, mu, mixed), strict=True):
        # The printed form cancels where mixed mu << -delta; 80 bits leave nearly nine digits of its worst case.
        right = right.astype(float)
        np.testing.assert_allclose(said, right, rtol=5e-9)  # measured: 1.15e-9


@pytest.mark.x64_only
def test_small_radius_in_the_three_regimes():
    mixed, b, forces = 0.7, np.array([0.6, 0.8]), np.array([0.3, -1.7])
    across = forces - b * (b @ forces)
    for mu in (1e-12, -1e-12, 1e-150, -1e-150):
        downstream, balanced, upstream = (right_hand_sides(delta, mu, mixed)[1] for delta in (-2.0, 0.0, 2.0))
        np.testing.assert_allclose(downstream, -(mixed**2) * mu / 2 * across, rtol=1e-14)
        np.testing.assert_allclose(balanced, -mixed * np.sign(mu) * across, rtol=1e-14)
        np.testing.assert_allclose(upstream, -2 / mu * across, rtol=1e-14)
        radius = [right_hand_sides(delta, mu, mixed)[0] for delta in (-2.0, 0.0, 2.0)]
        wanted = -np.array([2.0, 2 * mixed * abs(mu), 2.0]) * (b @ forces)
        np.testing.assert_allclose(radius, wanted, rtol=1e-14)
    for delta in (-2.0, 0.0, 2.0):  # no limit from above zero, hence 0
        np.testing.assert_array_equal(right_hand_sides(delta, 0.0, mixed)[1], 0)


@pytest.mark.x64_only
def test_the_printed_factor_cancels_downstream():
    """(kappa + delta)/(2 mu) in double precision has no digit left where the stable form has all."""
    delta, mu, mixed = -2.0, 1e-9, 0.7
    kappa = np.sqrt(delta**2 + 4 * mixed**2 * mu**2)
    across = np.array([0.3, -1.7]) - np.array([0.6, 0.8]) * (0.6 * 0.3 - 0.8 * 1.7)
    exact = -(mixed**2) * mu / 2 * across
    np.testing.assert_allclose(right_hand_sides(delta, mu, mixed)[1], exact, rtol=1e-14)
    assert_fails(lambda: np.testing.assert_allclose(-(kappa + delta) / (2 * mu) * across, exact, rtol=0.5))


def given_weights(w, a, activation="relu"):
    init = js.nets.Given([np.asarray(w, float), np.asarray(a, float)[None, :]])
    rule = js.nets.Scaling(np.ones(2), np.ones(2), [2.0, 0.5])
    return js.nets.MLP(
        in_size=2, out_size=1, width_size=len(a), depth=1, activation=activation, scaling=rule, init=init, key=jr.key(0)
    )


@pytest.mark.x64_only
def test_dead_neurons_are_finite_and_so_are_their_derivatives():
    net = given_weights([[0.0, 0.0], [1.0, -2.0], [0.0, 0.0], [1e-200, 0], [1e200, 0]], [1.0, 0.0, 0.0, 1e-200, 1e-200])
    x, y = jnp.array([[1.0, 0.5], [-0.5, 1.0]]), jnp.array([1.0, -1.0])
    given = js.Problem(net, x, y)
    found = neurons(net)
    np.testing.assert_allclose(found.direction[3:], [[1, 0], [1, 0]], rtol=1e-15)
    np.testing.assert_allclose(found.radius[3:], [0.0, 1.0], rtol=1e-14)
    np.testing.assert_array_equal(found.radius[:3], 0)
    for rate in rates(given, given.params):
        assert np.all(np.isfinite(rate[:3]))

    def total(params):
        return sum(jnp.sum(rate[:3] ** 2) for rate in rates(given, params))

    start = eqx.tree_at(lambda p: p.weights[0], given.params, given.params.weights[0].at[3:].set(1.0))
    gradient = jax.jit(jax.grad(total))(start)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


@pytest.mark.x64_only
def test_gradients_agree_with_finite_differences(getkey):
    given = problem("leaky_relu(0.3)", getkey())

    @jax.jit
    def measured(eta, scale):
        changed = eqx.tree_at(lambda p: p.net.scaling.eta, given, given.net.scaling.eta * eta)
        moved = jax.tree.map(lambda w: w * scale, changed.params)
        return sum(jnp.sum(jnp.sin(rate)) for rate in rates(changed, moved))

    h = 1e-5
    for argnum, (up, down) in enumerate((((1 + h, 1.0), (1 - h, 1.0)), ((1.0, 1 + h), (1.0, 1 - h)))):
        numeric = (measured(*up) - measured(*down)) / (2 * h)
        np.testing.assert_allclose(jax.jit(jax.grad(measured, argnums=argnum))(1.0, 1.0), numeric, rtol=1e-7)


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    given = problem("relu", jr.key(3))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), given)
    rates_at_start = eqx.filter_jit(lambda p: rates(p, p.params))
    for fine, rough in zip(rates_at_start(given), rates_at_start(single), strict=True):
        assert rough.dtype == jnp.float32
        assert float(gap(rough.astype(float), fine)) < 2e-6  # measured 3e-7


@pytest.mark.x64_only
def test_a_flow_follows_the_rates():
    """Differences of the observed radius and direction along an integration of the weights."""
    given = problem("relu", jr.key(5))
    t, h = 0.3, 1e-3
    flow = js.GradientFlow(diffrax.Dopri8(), rtol=1e-12, atol=1e-14, land_on_ts=True)
    watched = [js.observe.neuron_radius(), js.observe.neuron_direction()]
    run = js.solve(given, flow, jnp.array([t - h, t, t + h]), observe=watched)
    middle = js.solve(given, flow, jnp.array([0.0, 0.1, t])).final.params
    said = rates(given, middle)
    for name, rate in zip(("neuron_radius", "neuron_direction"), said[:2], strict=True):
        numeric = (run[name][2] - run[name][0]) / (2 * h)
        assert float(gap(numeric, rate)) < 4e-6  # measured 4e-7, of the order h^2


def test_other_networks_are_refused(getkey, as_users):
    rest = {"in_size": 2, "width_size": 3, "scaling": js.nets.Scaling.ntk(), "key": getkey()}
    mlp = lambda depth, out, phi, **kw: js.nets.MLP(depth=depth, out_size=out, activation=phi, **rest, **kw)
    for net, message in [
        (mlp(1, 1, "tanh"), "the activation tanh"),
        (mlp(2, 1, "relu"), "3 weight matrices"),
        (mlp(1, 2, "relu"), "2 outputs"),
        (mlp(1, 1, "relu", bias=True), "biases"),
        (eqx.nn.MLP(2, 1, 3, 1, key=getkey()), "got MLP"),
    ]:
        with pytest.raises(js.NotApplicable, match=message):
            neurons(net)
