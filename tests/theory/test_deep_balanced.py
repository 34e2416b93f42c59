"""Balanced deep linear networks: the implicit law and its inversion, and the closed form against the weights."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import Balanced, DecoupledModes, DeepBalanced
from tests.inside import half_loss_time, mode_strength
from tests.linear_cases import aligned, assert_every_rate_matters, decades, errors, REFERENCE, signs


CLOSED = DeepBalanced()
TS = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0])


@pytest.mark.x64_only
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    strengths=st.lists(decades(-1, 0.1), min_size=2, max_size=2),
    sign=st.lists(signs, min_size=2, max_size=2),
    targets=st.lists(st.one_of(st.just(0.0), decades(-1, 0.3)), min_size=2, max_size=2),
    eta=st.tuples(decades(-0.3, 0.3), decades(-0.3, 0.3), decades(-0.3, 0.3)),
    gamma=signs,
)
def test_equals_flow_of_the_weights(seed, strengths, sign, targets, eta, gamma):
    # Modes that rise, fall, stay or fade, of either sign.
    sign = np.array(sign)
    problem = aligned(
        seed, (3, 3, 3, 2), eta=eta, strengths=[sign * strengths], targets=gamma * sign * targets, gamma=gamma
    )
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 5e-10  # measured: 1.3e-11 over 15 draws, the reference's


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((4, 4, 4, 1), {"gamma": -1.0, "targets": [-2.0]}),
        pytest.param((3, 3, 3, 3, 3), {"eta": (1.0, 2.0, 0.5, 0.7)}, marks=pytest.mark.slow),
        pytest.param((4, 5, 3), {"eta": (0.5, 2.0), "centered": True}, marks=pytest.mark.slow),
    ],
)
def test_other_depths(sizes, options):
    options = {"eta": (0.6, 1.3, 0.9), **options}
    options["eta"] = options["eta"][: len(sizes) - 1]
    problem = aligned(2, sizes, **options)
    assert bool(CLOSED.check(problem).exact)
    assert max(errors(problem, CLOSED, TS).values()) < 1e-10


@pytest.mark.x64_only
@pytest.mark.slow
def test_targets_of_the_opposite_sign():
    # They fall to the saddle, which the flow of the weights leaves when rounding has grown: times are short of that.
    problem = aligned(2, (3, 3, 3, 2), eta=(0.5, 1.2, 2.0), strengths=0.9, targets=[-0.8, 1.1])
    assert "starts at a saddle or falls towards one" in CLOSED.check(problem).missed()
    ts = TS / 10
    flow = js.solve(problem, REFERENCE, ts, observe=js.observe.outputs())["outputs"]
    np.testing.assert_allclose(jax.vmap(lambda t: CLOSED.at(problem, t).outputs)(ts), flow, atol=1e-10)


@pytest.mark.x64_only
def test_twins_without_a_rate_fail():
    assert_every_rate_matters(aligned(2, (3, 3, 3, 2), eta=(0.5, 1.2, 2.0)), CLOSED, TS)


# --- one mode ---


def time_by_mpmath(L, c, s):
    """t(c) of c' = L c^(2 - 2/L) (s - c) up to a constant, by 2F1 (c < s) with 40 digits."""
    with mpmath.workdps(40):
        b = mpmath.mpf(2) / L - 1
        c, s = mpmath.mpf(c), mpmath.mpf(s)
        return c**b / (L * s * b) * mpmath.hyp2f1(1, b, 1 + b, c / s)


@pytest.mark.x64_only
@pytest.mark.parametrize("L", [3, 4, 7, 10, 16])
def test_inverts_the_hypergeometric_law_over_twelve_decades(L):
    for s in (1e-6, 1.4, 1e6):
        c0 = [s * 10.0**-e for e in (12, 6, 3)]
        c1 = [s * x for x in (1e-9, 1e-4, 0.1, 0.5, 0.9, 1 - 1e-6, 1 - 1e-12)]
        pairs = [(a, b) for a in c0 for b in c1 if b > a]
        times = [float(time_by_mpmath(L, b, s) - time_by_mpmath(L, a, s)) for a, b in pairs]
        start, end = np.array(pairs).T
        found = mode_strength(jnp.asarray(start ** (1 / L)), jnp.full(len(pairs), s), jnp.asarray(times), matrices=L)
        # The time itself is rounded, by eps t: a relative error of c of eps t c'/c, which is large for small starts.
        rounding = np.finfo(float).eps * np.array(times) * L * end ** (1 - 2 / L) * (s - end)
        assert np.all(np.abs(found**L - end) / end < 20 * L * rounding + 1e-14)  # measured: 4.4 L roundings


@pytest.mark.x64_only
@pytest.mark.parametrize("L", [8, 10, 16])
def test_many_matrices_at_every_height(L):
    # Starts down to 1e-5 of the target, through the heights at which Newton's method in arcsinh(t) went astray.
    end = np.linspace(0.05, 0.99, 95)
    for start in (1e-5, 1e-2):
        times = np.array([float(time_by_mpmath(L, c, 1) - time_by_mpmath(L, start, 1)) for c in end])
        v = jnp.full(end.size, start ** (1 / L))
        law = jax.jit(jax.vmap(lambda v, t, L=L: mode_strength(v, jnp.ones(()), t, matrices=L) ** L))
        np.testing.assert_allclose(law(v, jnp.asarray(times)), end, rtol=1e-10)  # measured: 6e-12, of rounded times
        slope = jax.vmap(jax.grad(lambda t, v, L=L: mode_strength(v, jnp.ones(()), t, matrices=L) ** L))
        np.testing.assert_allclose(slope(jnp.asarray(times), v), L * end ** (2 - 2 / L) * (1 - end), rtol=1e-9)


@pytest.mark.x64_only
def test_ten_matrices_of_three_tenths():
    # All scalar weights 0.3 and target 1: c is 0.3 at this time, and only grows.
    times = jnp.asarray(np.linspace(1900.0, 1910.0, 101)).at[50].set(1905.24161)
    c = mode_strength(jnp.full(101, 0.3), jnp.ones(101), times, matrices=10) ** 10
    np.testing.assert_allclose(c[50], 0.3, rtol=1e-5)  # the time has nine digits
    assert np.all(np.diff(np.asarray(c)[np.argsort(times)]) > -1e-12)  # at its end c is 1 to rounding
    assert c[0] < 0.01
    assert c[-1] > 1 - 1e-9


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("L", [2, pytest.param(3, marks=pytest.mark.slow), 5, 16])
@pytest.mark.parametrize(("c", "s"), [(5.0, 1.4), (1e4, 1.4), (0.5, -1.4), (40.0, -0.01), (0.3, 0.0), (1.4, 1.4)])
def test_other_cases_follow_their_equation(L, c, s):
    t = np.array([0.0, 1e-4, 0.1, 1.0, 5.0, 20.0])
    v0 = c ** (1 / L)
    flow = scipy.integrate.solve_ivp(
        lambda _, v: v ** (L - 1) * (s - v**L), (0, 20), [v0], method="Radau", rtol=1e-12, atol=1e-15, t_eval=t
    ).y[0]
    found = mode_strength(jnp.full(6, v0), jnp.full(6, s), jnp.asarray(t), matrices=L)
    np.testing.assert_allclose(found, flow, atol=1e-9 * flow.max())
    end = max(s, 0.0) ** (1 / L)
    np.testing.assert_allclose(
        mode_strength(*map(jnp.asarray, (v0, s, 1e150)), matrices=L), end, atol=1e-12 + 2e-19 ** (1 / L)
    )


def test_stays_at_zero_and_at_the_target():
    for L in (2, 3, 6, 16):
        v = mode_strength(jnp.array([0.0, 0.0, 1.0]), jnp.array([1.0, -1.0, 1.0]), jnp.full(3, 7.0), matrices=L)
        np.testing.assert_array_equal(v, [0.0, 0.0, 1.0])


@pytest.mark.x64_only
@pytest.mark.parametrize("L", [3, 4, 6])
def test_early_law_and_the_printed_equation_without_its_factor(L):
    # Atanasov et al. (39), corrected by the factor L; as printed the same time leaves c far behind.
    s, c0 = 1.4, 0.35
    t = np.linspace(0.2, 2.0, 5)
    rate = lambda factor: scipy.integrate.solve_ivp(
        lambda _, c: factor * c ** (2 - 2 / L) * (s - c),
        (0, 2),
        [c0],
        rtol=1e-12,
        atol=1e-14,
        t_eval=t,
        method="DOP853",
    ).y[0]
    c = np.asarray(mode_strength(jnp.full(5, c0 ** (1 / L)), jnp.full(5, s), jnp.asarray(t), matrices=L)) ** L
    np.testing.assert_allclose(c, rate(L), rtol=1e-9)
    assert np.max(np.abs(c - rate(1))) > 0.4
    tiny = 1e-9
    early = (tiny ** -((L - 2) / L) - (L - 2) * s * t) ** (-L / (L - 2))
    c = np.asarray(mode_strength(jnp.full(5, tiny ** (1 / L)), jnp.full(5, s), jnp.asarray(t), matrices=L)) ** L
    np.testing.assert_allclose(c, early, rtol=1e-8)


@pytest.mark.x64_only
@pytest.mark.parametrize("L", [2, 3, 5])
def test_half_loss_time(L):
    v, s = jnp.array([0.3, 0.4, 0.9]), jnp.array([1.3, 0.7, 2.0])
    T = half_loss_time(v, s, matrices=L)
    c = mode_strength(v, s, T, matrices=L) ** L
    np.testing.assert_allclose((s - c) ** 2, (s - v**L) ** 2 / 2, rtol=1e-12)
    assert np.all(np.isnan(half_loss_time(jnp.array([0.0, 2.0]), jnp.array([1.0, 1.0]), matrices=L)))


@pytest.mark.slow
@pytest.mark.x64_only
def test_half_loss_times_of_a_problem():
    problem = aligned(3, (3, 3, 3, 1), eta=(0.5, 1.2, 2.0), strengths=0.4, targets=[1.5])
    (t,) = CLOSED.half_loss_times(problem)
    loss = js.solve(problem, REFERENCE, jnp.array([0.0, float(t)]), observe=js.observe.loss())["loss"]
    np.testing.assert_allclose(loss[1], loss[0] / 2, rtol=1e-9)


# --- identities, kernels, derivatives, precision ---


@pytest.mark.slow
@pytest.mark.x64_only
def test_two_matrices_are_the_other_forms():
    problem = aligned(4, (4, 4, 3), eta=(0.5, 1.8))
    watched = [js.observe.outputs(), js.observe.kernel()]
    runs = [js.solve(problem, f, TS, observe=watched) for f in (CLOSED, Balanced(), DecoupledModes())]
    for name in runs[0].observed:
        for other in runs[1:]:
            gap = 1e-11 * float(jnp.max(jnp.abs(other[name])))
            np.testing.assert_allclose(runs[0][name], other[name], atol=gap)


@pytest.mark.x64_only
def test_final_kernel_has_the_corrected_scale():
    # Atanasov et al. (42): s^(2(L-1)/L), and not s^(2L-2) as printed; spike L - 1.
    scale = js.nets.Scaling(multiplier=np.ones(3), sigma=np.ones(3), eta=np.ones(3), gamma=1.0)
    base = aligned(5, (3, 3, 3, 1), eta=(1.0, 1.0, 1.0), strengths=0.4, targets=[1.4])
    net = js.nets.DeepLinear(
        in_size=3,
        out_size=1,
        width_size=3,
        depth=2,
        scaling=scale,
        init=js.nets.Given(base.net.weights),
        key=jax.random.key(0),
    )
    problem = js.Problem(net, base.x, base.y)
    view = CLOSED.at(problem, jnp.asarray(jnp.inf))
    beta = np.asarray(view.net.weights[2] @ view.net.weights[1] @ view.net.weights[0])[0]
    s, unit = np.linalg.norm(beta), beta / np.linalg.norm(beta)
    x = np.asarray(problem.x)
    matrix = s ** (4 / 3) * (np.eye(3) + 2 * np.outer(unit, unit))
    np.testing.assert_allclose(view.kernel[:, 0, :, 0], x @ matrix @ x.T, rtol=1e-9, atol=1e-12)
    printed = s**4 * (np.eye(3) + 2 * np.outer(unit, unit))
    assert np.max(np.abs(view.kernel[:, 0, :, 0] - x @ printed @ x.T)) > 0.5 * np.max(np.abs(view.kernel))


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("t", [*(pytest.param(t, marks=pytest.mark.slow) for t in (0.0, 0.6)), jnp.inf])
def test_gradients_equal_finite_differences(t):
    @jax.jit
    def f(scales):
        strengths = scales[1] * jnp.array([[0.5, 0.8, 1.6]])
        problem = aligned(5, (3, 3, 3, 3), eta=(scales[0], 1.0, 0.5), strengths=strengths, targets=[2.0, -0.7, 1.0])
        return jnp.sum(CLOSED.at(problem, jnp.asarray(t)).net.weights[1] * jnp.arange(9.0).reshape(3, 3))

    at = jnp.array([1.2, 1.0])
    differences = jnp.stack([(f(at + h) - f(at - h)) / 2e-6 for h in 1e-6 * jnp.eye(2)])
    np.testing.assert_allclose(jax.grad(f)(at), differences, atol=2e-8)
    np.testing.assert_allclose(jax.jacfwd(f)(at), differences, atol=2e-8)


@pytest.mark.slow
def test_float32_loses_no_more_than_its_digits():
    v = jnp.asarray(np.geomspace(1e-4, 0.9, 12), jnp.float32)

    def integrate(start, s, T):
        rate = lambda _, u: u**2 * (np.float32(s) - u**3)
        return scipy.integrate.solve_ivp(rate, (0, T), [start], method="Radau", rtol=1e-10, atol=1e-16).y[0, -1]

    for s, T in ((1.4, 3.0), (-1.0, 2.0), (1e-3, 50.0)):
        low = mode_strength(v, jnp.full(12, s, jnp.float32), jnp.full(12, T, jnp.float32), matrices=3)
        flow = [integrate(float(one), s, T) for one in v]
        assert low.dtype == jnp.float32
        np.testing.assert_allclose(low, flow, rtol=30 * float(np.finfo(np.float32).eps))


def test_refuses_what_it_does_not_solve():
    problem = aligned(1, (3, 3, 3, 2), eta=(1.0, 1.0, 1.0))
    weights = list(problem.net.weights)
    sizes = {"in_size": 3, "out_size": 2, "width_size": 3, "depth": 2}
    start = lambda i: js.nets.Given([w + 0.1 * (j == i) for j, w in enumerate(weights)])
    shifted = lambda i: js.Problem(
        js.nets.DeepLinear(**sizes, scaling=problem.net.scaling, init=start(i), key=jax.random.key(0)),
        problem.x,
        problem.y,
    )
    assert CLOSED.check(problem).missed() == ""
    for i in range(3):
        missed = CLOSED.check(shifted(i)).missed()
        assert "adjacent layers are balanced (violation" in missed
        assert "share their singular vectors (violation" in missed
