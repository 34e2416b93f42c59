"""Lambda-balanced two-layer networks: the closed form against integration of the weights, and where it is hard."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import Balanced, DecoupledModes, SingleNeuronFlow
from tests import cases
from tests.inside import ReducedBalanced
from tests.linear_cases import (
    aligned,
    assert_every_rate_matters,
    balanced,
    decades,
    errors,
    neuron,
    REFERENCE,
    signs,
    whitened,
)


CLOSED = Balanced()
TS = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0])


@pytest.mark.x64_only
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    delta=st.one_of(st.just(0.0), decades(-2, 0.5), decades(-2, 0.5).map(lambda x: -x)),
    sigma=decades(-2, 0.2),
    ratio=decades(-1, 1),
    gamma=st.tuples(decades(-0.5, 0.2), signs),
    slope=st.one_of(st.just(0.0), decades(-1, 0.3)),
)
def test_equals_flow_of_the_weights(seed, delta, sigma, ratio, gamma, slope):
    settings_ = dict(eta=(ratio, 1 / ratio), sigma=sigma, gamma=gamma[0] * gamma[1], slope=slope)
    problem = balanced(seed, (3, 3, 3), delta, **settings_)
    assert bool(CLOSED.check(problem).exact)
    assert (
        max(errors(problem, CLOSED, TS).values()) < 5e-10
    )  # measured: 7e-12 over 15 draws, the reference's; its corners reach 7e-11


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("sizes", "delta", "options"),
    [
        ((4, 4, 3), 0.0, {}),
        ((4, 2, 3), 1.2, {"eta": (0.5, 1.8)}),
        ((2, 3, 3), 1.2, {}),
        ((4, 3, 2), -0.8, {"eta": (0.5, 2.0), "centered": True}),
        ((5, 1, 1), -0.6, {}),
        ((3, 8, 2), 0.0, {"gamma": -0.7}),  # wider than the rank of a balanced start
        ((6, 3, 4), 3.0, {}),
        ((3, 3, 3), 40.0, {}),
        ((2, 6, 6), 0.5, {}),  # more neurons than inputs
    ],
)
def test_any_sizes(sizes, delta, options):
    problem = balanced(1, sizes, delta, **options)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 3e-10


@pytest.mark.x64_only
def test_twins_without_a_rate_fail():
    assert_every_rate_matters(balanced(1, delta=0.7, eta=(0.6, 1.5)), CLOSED, TS, atol=1e-9)


@pytest.mark.slow
@pytest.mark.x64_only
def test_blocks_have_the_norms_and_grams_of_the_weights():
    problem = balanced(2, (4, 3, 3), 0.9, eta=(0.5, 1.8))
    for t in (0.0, 0.4, 2.0):
        blocks = CLOSED.blocks(problem, jnp.asarray(t))
        w, a = js.solve(problem, REFERENCE, t, observe=js.observe.loss()).final.params.weights
        np.testing.assert_allclose(blocks.first @ blocks.first.T, w.T @ w / 0.5, atol=1e-9)
        np.testing.assert_allclose(blocks.last @ blocks.last.T, a @ a.T / 1.8, atol=1e-9)
        np.testing.assert_allclose(blocks.last @ blocks.first.T, a @ w / 0.9**0.5, atol=1e-9)


# --- where exponentials differ by more than floating point holds ---


def by_mpmath(first, last, target, balance, T):
    """QQ^T at T, with as many digits as the exponentials take away and 30 more."""
    fastest = np.hypot(np.linalg.norm(target, 2), balance / 2)
    with mpmath.workdps(30 + int(2 * fastest * T)):
        matrix = lambda m: mpmath.matrix([[mpmath.mpf(float(v)) for v in row] for row in np.atleast_2d(m)])
        d, c = first.shape[0], last.shape[0]
        F = mpmath.zeros(d + c)
        for i in range(d):
            F[i, i] = -mpmath.mpf(balance) / 2
        for j in range(c):
            F[d + j, d + j] = mpmath.mpf(balance) / 2
            for i in range(d):
                F[d + j, i] = F[i, d + j] = mpmath.mpf(float(target[j, i]))
        values, vectors = mpmath.eigsy(F)
        q = vectors.T * matrix(np.concatenate([first, last]))
        h = q.cols
        bracket = mpmath.eye(h)
        for n, f in enumerate(values):
            gain = (mpmath.exp(2 * f * T) - 1) / (2 * f) if abs(f) > mpmath.mpf(10) ** -25 else mpmath.mpf(T)
            bracket += gain * (q[n, :].T * q[n, :])
        moved = mpmath.diag([mpmath.exp(f * T) for f in values]) * q
        end = vectors * (moved * (mpmath.inverse(bracket) * moved.T)) * vectors.T
        return np.array(end.tolist(), dtype=float)


def reduced(first, last, target, balance):
    matrices = [jnp.asarray(m, float) for m in (first, last, target)]
    return ReducedBalanced.build(
        matrices[0], matrices[1], matrices[2], scale=jnp.ones(()), balance=jnp.asarray(balance, float)
    )


def start(sizes, balance, seed, small=0.3):
    """V_1^T and V_2, balanced to the last digit that mpmath needs."""
    d, h, c = sizes
    problem = balanced(seed, sizes, balance, sigma=small)
    w, a = problem.net.weights
    return np.asarray(w.T), np.asarray(a)


@pytest.mark.x64_only
@pytest.mark.parametrize("balance", [0.0, 2.0, 100.0, -100.0])
@pytest.mark.parametrize("T", cases.slow_after(3, [1e-8, 0.1, 8.0, 0.01, 1.0]))
def test_targets_of_very_different_size(balance, T):
    # Rates of 100, 10 and 0.1: e^{2fT} of the first is 1e695 when the last begins to move.
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    target = U @ np.diag([1e2, 10.0, 0.1]) @ V.T
    first, last = start((3, 3, 3), balance, 3)
    blocks = reduced(first, last, target, balance).blocks(jnp.asarray(T))
    q = np.concatenate([blocks.first, blocks.last])
    exact = by_mpmath(first, last, target, balance, T)
    scale = max(1e2, abs(balance))
    np.testing.assert_allclose(q @ q.T, exact, rtol=0, atol=1e-14 * scale)  # measured: 1.4e-15


@pytest.mark.x64_only
@pytest.mark.parametrize("balance", [1e6, -1e6, 1e4])
def test_large_balance(balance):
    target = np.random.default_rng(1).normal(size=(3, 3))
    first, last = start((3, 3, 3), balance, 4)
    one = reduced(first, last, target, balance)
    f0 = last @ first.T
    for x in (0.3, 1.0, 4.0):
        T = x / abs(balance)
        blocks = one.blocks(jnp.asarray(T))
        found = blocks.last @ blocks.first.T
        exact = by_mpmath(first, last, target, balance, T)[3:, :3]
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12 * np.abs(f0).max())
        # The lazy limit: f decays to the target at the rate |lambda|.
        off = lambda decay, found=found: np.abs(found - target - decay * (f0 - target)).max() * abs(balance) ** 0.5
        assert off(np.exp(-x)) < 1.5  # measured: at most 0.18
        assert min(off(1.0), off(np.exp(-x / 2))) > 1.5  # no decay, or at half the rate


@pytest.mark.slow
def test_end_is_the_best_approximation_of_that_rank():
    for sizes, delta in (((4, 2, 3), 1.2), ((4, 3, 2), -0.8)):
        problem = balanced(5, sizes, delta)
        end = CLOSED.at(problem, jnp.asarray(jnp.inf)).outputs
        u, s, v = np.linalg.svd(np.linalg.lstsq(np.asarray(problem.x), np.asarray(problem.y), rcond=None)[0])
        k = min(sizes)
        best = np.asarray(problem.x) @ (u[:, :k] * s[:k]) @ v[:k]
        np.testing.assert_allclose(end, best, atol=cases.eps(300))


# --- identities, derivatives, precision ---


@pytest.mark.slow
@pytest.mark.x64_only
def test_one_neuron_is_the_single_neuron():
    for seed, sigma in enumerate([(0.1, 1.0), (1.0, 0.1), (0.5, 0.5)]):
        problem = neuron(seed, eta=(0.5, 1.8), sigma=sigma, gamma=-0.8)
        assert bool(CLOSED.check(problem).exact)
        one, other = (
            js.solve(problem, f, TS, observe=[js.observe.outputs(), js.observe.kernel()])
            for f in (CLOSED, SingleNeuronFlow())
        )
        for name in one.observed:
            np.testing.assert_allclose(one[name], other[name], atol=1e-12 * float(jnp.max(jnp.abs(other[name]))))


@pytest.mark.slow
@pytest.mark.x64_only
def test_aligned_balanced_start_is_saxes_modes():
    problem = aligned(4, (4, 4, 3), eta=(0.5, 1.8))
    one, other = (
        js.solve(problem, f, TS, observe=[js.observe.outputs(), js.observe.kernel()])
        for f in (CLOSED, DecoupledModes())
    )
    for name in one.observed:
        np.testing.assert_allclose(one[name], other[name], atol=1e-11 * float(jnp.max(jnp.abs(other[name]))))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("sizes", "delta"),
    [
        ((3, 3, 3), 0.8),
        pytest.param((4, 3, 2), 0.0, marks=pytest.mark.slow),
        pytest.param((2, 5, 2), 0.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("t", [*(pytest.param(t, marks=pytest.mark.slow) for t in (0.0, 0.6)), jnp.inf])
def test_gradients_equal_finite_differences(sizes, delta, t):
    probe = np.random.default_rng(0).normal(size=(sizes[0] + 2, sizes[2]))

    @jax.jit
    def f(scales):
        lam = delta * scales[0] ** 2 if delta else 0.0
        problem = balanced(7, sizes, lam, eta=(scales[1], 1.0), sigma=0.5 * scales[0], gamma=scales[2])
        return jnp.sum(CLOSED.at(problem, jnp.asarray(t)).outputs * jnp.asarray(probe))

    at = jnp.array([1.0, 1.2, 0.9])
    differences = jnp.stack([(f(at + h) - f(at - h)) / 2e-6 for h in 1e-6 * jnp.eye(3)])
    np.testing.assert_allclose(jax.grad(f)(at), differences, atol=2e-7)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(at), differences, atol=2e-7)


@pytest.mark.slow
def test_float32_loses_no_more_than_its_digits():
    rng = np.random.default_rng(2)
    target = rng.normal(size=(3, 3)).astype(np.float32)
    first, last = (m.astype(np.float32) for m in start((3, 3, 3), 0.8, 5))
    low = ReducedBalanced.build(*(jnp.asarray(m, jnp.float32) for m in (first, last, target, 1.0, 0.8)))
    for T in (0.0, 0.3, 2.0, 30.0):
        blocks = low.blocks(jnp.asarray(T, jnp.float32))
        assert blocks.first.dtype == jnp.float32
        exact = by_mpmath(first, last, target, float(np.float32(0.8)), T)[3:, :3]
        np.testing.assert_allclose(blocks.last @ blocks.first.T, exact, atol=30 * float(np.finfo(np.float32).eps))


def test_refuses_what_it_does_not_solve():
    problem = balanced(0, (3, 3, 3), 0.5)
    w, a = problem.net.weights
    net = js.nets.TwoLayerLinear(
        in_size=3,
        out_size=3,
        width_size=3,
        scaling=problem.net.scaling,
        init=js.nets.Given([w * 1.1, a]),
        key=jax.random.key(0),
    )
    validity = CLOSED.check(js.Problem(net, problem.x, problem.y))
    assert not bool(validity.exact)
    assert "lambda-balanced (violation" in validity.missed()
    # A test input outside the row space of the training inputs meets weights known only up to a rotation.
    x = whitened(0, 5, 3, 2)
    inside, outside = (
        js.Problem(problem.net, x, problem.y, test=(t, jnp.zeros((2, 3)))) for t in (x[:2], jnp.eye(3)[:2])
    )
    named = lambda p: [a.name for a in CLOSED.check(p).assumptions if not bool(a.holds)]
    wanted = "test inputs lie in the row space of the training inputs"
    assert wanted not in named(inside)
    assert wanted in named(outside)


def test_parameters_cannot_be_observed():
    with pytest.raises(ValueError, match="parameters"):
        js.solve(balanced(0), CLOSED, 1.0, observe=js.observe.weight_norms())
