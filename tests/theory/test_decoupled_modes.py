"""Modes that do not mix: the closed form against integration of the weights, and its identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import DecoupledModes, TwoLayerLine
from tests import cases
from tests.linear_cases import aligned, assert_every_rate_matters, decades, errors, signs, whitened


CLOSED = DecoupledModes()
TS = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0])


@pytest.mark.x64_only
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    first=st.lists(st.tuples(decades(-3, 0.3), signs), min_size=2, max_size=2),
    ratios=st.lists(st.sampled_from([0.0, 0.3, -0.3, 0.7, 2.5, -2.5]), min_size=2, max_size=2),
    targets=st.lists(st.one_of(st.just(0.0), decades(-1, 0.5)), min_size=2, max_size=2),
    ratio=decades(-1, 1),
    gamma=signs,
)
def test_equals_flow_of_the_weights(seed, first, ratios, targets, ratio, gamma):
    # Any pair (a, b) per mode but those that end in the saddle, where rounding grows: one of them zero, of opposite
    # signs, equal or zero targets.
    strengths = np.array([[size * sign for size, sign in first]] * 2) * [[1.0, 1.0], ratios]
    problem = aligned(seed, (3, 4, 2), eta=(ratio, 1 / ratio), strengths=strengths, targets=targets, gamma=gamma)
    assert bool(CLOSED.check(problem).exact)
    assert (
        max(errors(problem, CLOSED, TS).values()) < 5e-10
    )  # measured: 7e-12 over 15 draws, the reference's; more near the saddle


@pytest.mark.slow
@pytest.mark.x64_only
def test_saxes_formula_and_its_half_time():
    # u(t) = s e^{2st}/(e^{2st} - 1 + s/u_0), half at t = ln(s/u_0 - 1)/(2s).
    problem = aligned(0, (3, 3, 3), strengths=0.1, targets=[2.0, 1.0, 0.5])
    lines = CLOSED.reduce(problem)
    k = np.asarray(lines.k)
    s, u0 = np.asarray(lines.y) / k, 0.01
    T = np.linspace(0, 10, 9)[:, None]
    saxe = s * np.exp(2 * s * T) / (np.exp(2 * s * T) - 1 + s / u0)
    strengths = jax.vmap(lines.layer_product)(jnp.asarray(T / k**2))
    np.testing.assert_allclose(strengths, saxe, rtol=1e-12)
    half = np.log(s / u0 - 1) / (2 * s)
    np.testing.assert_allclose(lines.layer_product(jnp.asarray(half / k**2)), s / 2, rtol=1e-12)


@pytest.mark.x64_only
def test_printed_hyperbolic_form():
    # Equal rates in a different form: u = (|delta|/2) sinh th, tau = tanh(th/2) follows a Moebius map.
    problem = aligned(0, (1, 1, 1), strengths=[[0.3], [0.9]], targets=[1.4])
    line = CLOSED.reduce(problem)
    a, b, k = 0.9, 0.3, float(line.k[0])
    s = float(line.y[0]) / k
    delta = a**2 - b**2
    R = np.sqrt(delta**2 + 4 * s**2)
    plus, minus = (-delta + R) / (2 * s), (-delta - R) / (2 * s)
    tau0 = np.tanh(np.arcsinh(2 * a * b / delta) / 2)
    for t in (0.2, 1.0, 4.0):
        ratio = (tau0 - plus) / (tau0 - minus) * np.exp(-R * t)
        tau = (plus - ratio * minus) / (1 - ratio)
        np.testing.assert_allclose(
            line.layer_product(t / k**2)[0], delta / 2 * np.sinh(2 * np.arctanh(tau)), rtol=1e-12
        )


@pytest.mark.slow
@pytest.mark.x64_only
def test_one_input_is_the_line():
    keys = jax.random.split(jax.random.key(3), 3)
    net = js.nets.TwoLayerLinear(
        in_size=1, width_size=20, scaling=js.nets.Scaling.ntk(0.7, eta=(0.3, 2.0)), key=keys[0]
    )
    problem = js.Problem(net, jax.random.normal(keys[1], (6, 1)), jax.random.normal(keys[2], (6,)))
    watched = [js.observe.outputs(), js.observe.kernel(), js.observe.weight_norms(), js.observe.layer_alignment()]
    one, other = (js.solve(problem, f, jnp.append(TS, jnp.inf), observe=watched) for f in (CLOSED, TwoLayerLine()))
    for name in one.observed:
        np.testing.assert_allclose(one[name], other[name], atol=1e-13 * float(jnp.max(jnp.abs(other[name]))))


@pytest.mark.slow
@pytest.mark.x64_only
def test_hidden_vectors_of_any_length():
    # Each mode owns three neurons, its layers unaligned and unbalanced: beyond Saxe's modes.
    rng = np.random.default_rng(1)
    U, V = (np.linalg.qr(rng.normal(size=(2, 2)))[0] for _ in range(2))
    hidden = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    mine = lambda: np.stack([hidden[:, 3 * i : 3 * i + 3] @ rng.normal(size=3) for i in range(2)], axis=1)
    net = js.nets.TwoLayerLinear(
        in_size=2,
        out_size=2,
        width_size=6,
        scaling=js.nets.Scaling.standard(),
        init=js.nets.Given([mine() @ V.T, U @ mine().T]),
        key=jax.random.key(0),
    )
    x = whitened(0, 5, 2, 2)
    problem = js.Problem(net, x, x @ (U @ np.diag([1.5, -0.4]) @ V.T).T)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 1e-10


@pytest.mark.x64_only
def test_twins_without_a_rate_fail():
    assert_every_rate_matters(aligned(2, (3, 3, 2), eta=(0.5, 2.0), balance=False), CLOSED, TS)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("t", [pytest.param(0.6, marks=pytest.mark.slow), jnp.inf])
def test_gradients_equal_finite_differences(t):
    @jax.jit
    def f(scales):
        problem = aligned(
            5,
            (3, 3, 2),
            eta=(scales[0], 1.0),
            strengths=scales[1] * jnp.array([[0.5, 0.2], [0.1, 0.7]]),
            gamma=scales[2],
        )
        outputs = CLOSED.at(problem, jnp.asarray(t)).net.weights[0]
        return jnp.sum(outputs * jnp.arange(9.0).reshape(3, 3))

    at = jnp.array([1.2, 1.0, 0.9])
    differences = jnp.stack([(f(at + h) - f(at - h)) / 2e-6 for h in 1e-6 * jnp.eye(3)])
    np.testing.assert_allclose(jax.grad(f)(at), differences, atol=1e-8)
    np.testing.assert_allclose(jax.jacfwd(f)(at), differences, atol=1e-8)


@pytest.mark.slow
def test_float32_loses_no_more_than_its_digits():
    problem = aligned(0, (3, 3, 3), strengths=0.1, targets=[2.0, 1.0, 0.5])
    assert bool(CLOSED.check(problem).exact)
    s, t = np.array([2.0, 1.0, 0.5]), 2.3
    k2 = float(problem.net.scaling.multiplier[0] * problem.net.scaling.multiplier[1] * 1.7) ** 2
    gamma = float(problem.net.scaling.multiplier[0] * problem.net.scaling.multiplier[1])
    # The product of the layers in the network's own units: target s/gamma, time (1.7 gamma)^2 t.
    target, time = s / gamma, k2 * t
    exact = np.sort(target / (1 + (target / 0.01 - 1) * np.exp(-2 * target * time)))
    product = CLOSED.at(problem, jnp.asarray(t)).net.weights
    found = np.sort(np.linalg.svd(np.asarray(product[1] @ product[0], float), compute_uv=False))
    np.testing.assert_allclose(found, exact, rtol=cases.eps(100))


@pytest.mark.slow
def test_refuses_modes_that_mix():
    problem = aligned(1, (3, 3, 3))
    w, a = problem.net.weights
    with_start = lambda *weights: js.Problem(
        js.nets.TwoLayerLinear(
            in_size=3,
            out_size=3,
            width_size=3,
            scaling=problem.net.scaling,
            init=js.nets.Given(weights),
            key=jax.random.key(0),
        ),
        problem.x,
        problem.y,
    )
    named = lambda p: CLOSED.check(p).missed()
    assert named(problem) == ""
    assert "share their singular vectors (violation" in named(with_start(w.at[0, 0].add(0.1), a))
    overlapping = jnp.ones((3, 1)) @ w[:1]
    assert "hidden vectors of different modes" in named(
        with_start(w, a + 0.1 * (jnp.ones((3, 3)) - a @ w @ overlapping.T))
    )
