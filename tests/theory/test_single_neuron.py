"""One linear neuron: its closed form against integration of the weights, at its limits, and at extreme balances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import ReducedNeuron, SingleNeuronFlow
from tests import cases
from tests.linear_cases import assert_every_rate_matters, decades, errors, neuron, signs, whitened


CLOSED = SingleNeuronFlow()
TS = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0])
B = np.array([0.8, -1.1, 0.5])
W = np.array([0.4, 0.2, -0.7])


def reduced(a, w=W, b=B, speed=1.0):
    return ReducedNeuron(*(jnp.asarray(value, float) for value in (a, w, b, speed)))


@pytest.mark.x64_only
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sigma=st.tuples(decades(-2, 0.3), decades(-2, 0.3)),
    ratio=decades(-1, 1),
    gamma=st.tuples(decades(-0.5, 0.3), signs),
    slope=decades(-1, 0.3),
)
def test_equals_flow_of_the_weights(seed, sigma, ratio, gamma, slope):
    problem = neuron(seed, eta=(ratio, 1 / ratio), sigma=sigma, gamma=gamma[0] * gamma[1], slope=slope)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 5e-10  # measured: 7e-11, all of it the reference's


@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("rank", "sigma", "options"),
    [(2, 1.0, {}), (1, 0.1, {}), (3, (0.0, 1.0), {}), (3, (1.0, 0.0), {}), (3, 1.0, {"centered": True})],
    ids=["rank 2", "rank 1", "w = 0", "a = 0", "centered"],
)
def test_degenerate_problems(rank, sigma, options):
    problem = neuron(3, eta=(2.0, 0.3), sigma=sigma, rank=rank, **options)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 5e-10


@pytest.mark.x64_only
def test_twins_without_a_rate_fail():
    assert_every_rate_matters(neuron(1, eta=(2.0, 0.3)), CLOSED, TS)


def by_mpmath(a, w, b, T):
    """(w, a) at T from e^{FT} and the quadratic form of its integral, in 60 digits."""
    with mpmath.workdps(60):
        d = len(w)
        w, b, a = [mpmath.mpf(float(v)) for v in w], [mpmath.mpf(float(v)) for v in b], mpmath.mpf(float(a))
        delta = a**2 - sum(v**2 for v in w)
        F = mpmath.zeros(d + 1)
        for i in range(d):
            F[i, i] = -delta / 2
            F[i, d] = F[d, i] = b[i]
        F[d, d] = delta / 2
        values, vectors = mpmath.eigsy(F)
        start = vectors.T * mpmath.matrix([*w, a])
        top = max(values) * T
        moved = mpmath.matrix([s * mpmath.exp(e * T - top) for s, e in zip(start, values, strict=True)])
        grown = sum(
            s**2 * ((mpmath.exp(2 * (e * T - top)) - mpmath.exp(-2 * top)) / (2 * e) if e else T * mpmath.exp(-2 * top))
            for s, e in zip(start, values, strict=True)
        )
        end = vectors * moved / mpmath.sqrt(mpmath.exp(-2 * top) + grown)
        return np.array([float(v) for v in end])


@pytest.mark.x64_only
@pytest.mark.parametrize("delta", [0.0, *(sign * 10.0**e for e in (-12, -6, -2, 0, 2, 4, 6) for sign in (1, -1))])
def test_any_balance_and_time(delta):
    # w keeps its direction, its length and a make up delta; a small start for small delta.
    size = np.sqrt((np.sqrt(delta**2 + 0.04) - delta) / 2)
    w = W / np.linalg.norm(W) * size
    a = -0.1 / size
    neuron_ = reduced(a, w)
    for T in (0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3, 1e6):
        exact = by_mpmath(a, w, B, T)
        found = neuron_.weights(T)
        beta = exact[:-1] * exact[-1]
        np.testing.assert_allclose(np.asarray(neuron_.beta(T)), beta, atol=1e-9 * float(np.linalg.norm(B)))
        np.testing.assert_allclose(np.asarray(found[0]), exact[-1], atol=1e-9 * abs(exact[-1]))
    np.testing.assert_allclose(neuron_.beta(jnp.inf), B, rtol=1e-13)


def test_both_sides_of_balance_meet_in_the_printed_balanced_solution():
    # delta = 0: phi = tanh z, mu = cosh^2 z/(cosh^2 c/mu_0 + (2(z - c) + sinh 2z - sinh 2c)/(2|b|)).
    a = np.linalg.norm(W)
    T = np.linspace(0, 3, 7)
    mu, phi = jax.vmap(reduced(a).radius_and_alignment)(jnp.asarray(T, float))
    b = np.linalg.norm(B)
    c = np.arctanh(W @ B / (np.linalg.norm(W) * b))
    z = c + b * T
    denominator = np.cosh(c) ** 2 / a**2 + (2 * (z - c) + np.sinh(2 * z) - np.sinh(2 * c)) / (2 * b)
    np.testing.assert_allclose(phi, np.tanh(z), rtol=cases.eps(100))
    np.testing.assert_allclose(mu, np.cosh(z) ** 2 / denominator, rtol=cases.eps(100))
    for side in (1 + cases.eps(1e3), 1 - cases.eps(1e3)):
        near = jax.vmap(reduced(a * side).radius_and_alignment)(jnp.asarray(T, float))
        np.testing.assert_allclose(near[0], mu, rtol=cases.eps(1e5))


@pytest.mark.parametrize(("a", "sign"), [(0.3, 1), (-0.3, -1), (-2.0, -1), (2.0, 1)])
def test_basin_is_where_the_flow_ends(a, sign):
    for b in (B, -B):
        one = reduced(a, b=b)
        basin = float(one.basin)
        assert np.sign(float(one.weights(jnp.inf)[0])) == basin
        if float(one.delta) >= 0:
            assert basin == sign
        delta = float(one.delta)
        rule = W @ b + a / 2 * (delta + np.sqrt(delta**2 + 4 * (b @ b)))
        assert basin == np.sign(rule)


def test_saddle():
    # With a = 0 and w across b nothing moves; from w against b at delta = 0 the flow runs into the origin.
    # Across to the last bit: any overlap would grow.
    across, b = np.array([0.0, 0.5, 1.1]), np.array([1.0, 0.0, 0.0])
    for t in (0.0, 1.0, jnp.inf):
        a, w = reduced(0.0, across, b).weights(t)
        np.testing.assert_allclose(a, 0.0, atol=cases.eps(10))
        np.testing.assert_allclose(w, across, rtol=cases.eps(10))
    against = np.array([-0.5, 0.0, 0.0])
    into = reduced(0.5, against, np.array([1.0, 0.0, 0.0]))
    assert float(into.basin) == 0
    a, w = into.weights(jnp.inf)
    np.testing.assert_allclose([float(a), *w], 0.0, atol=cases.eps())  # pyright: ignore[reportArgumentType, reportCallIssue]
    np.testing.assert_allclose(into.weights(1.0)[0], 0.5 * np.exp(-1) / np.sqrt(1 + 0.25 * (1 - np.exp(-2))), rtol=1e-6)


def test_preconditioner_and_its_printed_form():
    one = reduced(0.9)
    beta = one.beta(0.4)
    kappa = np.sqrt(float(one.delta) ** 2 + 4 * float(beta @ beta))
    delta, unit = float(one.delta), np.asarray(beta) / np.linalg.norm(beta)
    printed = (kappa + delta) / 2 * np.eye(3) + (kappa - delta) / 2 * np.outer(unit, unit)
    np.testing.assert_allclose(one.preconditioner(0.4), printed, atol=cases.eps(100))
    velocity = jax.jvp(one.beta, (jnp.asarray(0.4),), (jnp.asarray(1.0),))[1]
    np.testing.assert_allclose(velocity, -printed @ (np.asarray(beta) - B), atol=cases.eps(1e3))


def test_beta_is_the_function_of_the_network_at_any_rates():
    """At the end the least squares of the targets; before it the outputs on the unit vectors."""
    scaling = js.nets.Scaling.standard()
    scaling = eqx.tree_at(lambda s: (s.eta, s.gamma), scaling, (jnp.array([0.5, 1.7]), jnp.array(-0.8)))
    net = js.nets.SingleNeuron(in_size=2, scaling=scaling, key=jax.random.key(2))
    problem = js.Problem(net, jnp.eye(2), jnp.array([1.0, -2.0]))
    one = CLOSED.reduce(problem)
    np.testing.assert_allclose(one.beta(jnp.inf), [1.0, -2.0], rtol=cases.eps(100))
    outputs = js.solve(problem, CLOSED, [0.7], observe=js.observe.outputs())["outputs"][0, :, 0]
    np.testing.assert_allclose(one.beta(0.7), outputs, rtol=cases.eps(100))
    a, w = one.weights(0.7)
    cases.assert_fails(lambda: np.testing.assert_allclose(a * w, outputs, rtol=0.1))


@pytest.mark.x64_only
def test_limits_of_large_balance():
    errors_up, errors_down = [], []
    for delta in (1e2, 1e4):
        up = reduced(np.sqrt(delta + W @ W))
        T = jnp.array([0.3, 1.0, 3.0]) / delta
        errors_up.append(max(float(jnp.max(jnp.abs(up.beta(t) - up.upstream(t)))) for t in T))
        scaled = W * np.sqrt(delta) / np.linalg.norm(W)
        down = reduced(0.05, scaled)
        late = jnp.array([0.3, 1.0, 3.0]) * delta / float(B @ B)
        errors_down.append(max(float(jnp.max(jnp.abs(down.beta(t) - down.downstream(t)))) for t in late))
    assert errors_up[1] < min(errors_up[0] / 9, 2e-3)  # order delta^-1/2, as beta_0 grows with delta
    assert errors_down[1] < min(errors_down[0] / 90, 1e-6)  # order 1/delta or better


@pytest.mark.x64_only
def test_kernel_moves_as_the_regimes_say():
    # Upstream the kernel stays, balanced and downstream it moves (kernel distance of Kunin et al.).
    moved = {}
    for delta, sigma in {30.0: (0.02, 5.5), 0.0: (0.6, 0.6 * 3**0.5), -30.0: (3.2, 0.03)}.items():
        problem = neuron(2, sigma=sigma)
        run = js.solve(problem, CLOSED, jnp.array([0.0, jnp.inf]), observe=js.observe.kernel_distance())
        moved[delta] = float(run["kernel_distance"][-1])
    assert moved[30.0] < 1e-8 < 1e-3 < moved[0.0]
    assert moved[-30.0] > 0.1


@pytest.mark.x64_only
@pytest.mark.parametrize("t", [0.0, 0.7, 30.0, jnp.inf])
def test_gradients_equal_finite_differences(t):
    def f(scales):
        one = ReducedNeuron(jnp.asarray(-0.4) * scales[0], jnp.asarray(W) * scales[1], jnp.asarray(B), scales[2])
        a, w = one.weights(t)
        return a + jnp.sum(w * jnp.arange(1.0, 4.0))

    at = jnp.array([1.0, 1.1, 0.9])
    step = 1e-6 * jnp.eye(3)
    differences = jnp.stack([(f(at + h) - f(at - h)) / 2e-6 for h in step])
    np.testing.assert_allclose(jax.grad(f)(at), differences, atol=1e-8)
    np.testing.assert_allclose(jax.jacfwd(f)(at), differences, atol=1e-8)


def test_gradient_at_balance_is_finite():
    read_out = lambda a: ReducedNeuron(a, jnp.asarray(W, float), jnp.asarray(B, float), jnp.ones(())).weights(1.0)[0]
    at = jnp.asarray(np.linalg.norm(W), float)
    step = cases.eps() ** (1 / 3)
    np.testing.assert_allclose(
        jax.grad(read_out)(at), (read_out(at + step) - read_out(at - step)) / (2 * step), rtol=100 * step**2
    )


def test_gradient_without_a_target_is_right():
    # f decays: with b = 0 and delta = a^2 - |w|^2 the scale of the start enters through delta alone.
    def size(scale):
        a, w = ReducedNeuron(0.3 * scale, scale * jnp.asarray(W, float), jnp.zeros(3), jnp.ones(())).weights(2.0)
        return a + jnp.sum(w)

    at, step = jnp.ones(()), cases.eps() ** (1 / 3)
    np.testing.assert_allclose(jax.grad(size)(at), (size(at + step) - size(at - step)) / (2 * step), rtol=100 * step**2)


def test_float32_loses_no_more_than_its_digits():
    T = jnp.linspace(0, 5, 9)
    low = ReducedNeuron(*(jnp.asarray(v, jnp.float32) for v in (0.3, W, B, 1.0)))
    # The result's own rounding, and that of exp: within ten units of float32.
    for t in T:
        exact = by_mpmath(np.float32(0.3), np.float32(W), np.float32(B), float(t))
        a, w = low.weights(jnp.asarray(t, jnp.float32))
        assert a.dtype == w.dtype == jnp.float32
        np.testing.assert_allclose([*w, a], exact, atol=10 * float(np.finfo(np.float32).eps))


def test_refuses_what_it_does_not_solve():
    x = whitened(0, 5, 3, 3)
    stretched = x * jnp.array([1.0, 1.0, 1.1])[None, :]
    net = neuron(0).net
    spread = CLOSED.check(js.Problem(net, stretched, jnp.ones(5)))
    assert not bool(spread.exact)
    assert "whitened" in spread.missed()
    eigenvalues = np.linalg.eigvalsh(np.asarray(stretched.T @ stretched))
    np.testing.assert_allclose(
        spread.assumptions[-2].violation, 1 - eigenvalues[0] / eigenvalues[-1], rtol=cases.eps(1e3)
    )
    wide = js.nets.TwoLayerLinear(in_size=3, width_size=2, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
    with pytest.raises(js.NotApplicable, match=r"1 hidden neuron: it has hidden layers of \(2,\)"):
        CLOSED.at(js.Problem(wide, x, jnp.ones(5)), jnp.asarray(1.0))


@pytest.mark.parametrize("n", [1000, 60000])
def test_small_directions_of_many_samples_count(n):
    """2 to 19 % of the largest direction in float32: below n eps in the second moment, but far above rounding."""
    signs = jnp.where(jnp.arange(n) % 2 == 0, 1.0, -1.0)
    net = neuron(0, d=2, rank=2).net
    check = lambda second: CLOSED.check(js.Problem(net, jnp.stack([jnp.ones(n), second * signs], axis=1), signs))
    small = (n * cases.eps(5)) ** 0.5
    seen = check(small)
    assert not bool(seen.exact)
    np.testing.assert_allclose(seen.assumptions[-2].violation, 1 - small**2, rtol=cases.eps(100))
    for allowed in (0.0, cases.eps(), 1.0):  # one direction, one and its rounding, two of one size
        assert bool(check(allowed).exact)
