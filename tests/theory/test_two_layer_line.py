"""The closed form of Xu & Liu Ziyin against integration of the weights, its limits, and its identities."""

import operator

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import ReducedLine, TwoLayerLine
from tests.linear_cases import assert_every_rate_matters, decades, signs


pytestmark = pytest.mark.x64_only  # errors of 1e-10, times of 1e300

CLOSED = TwoLayerLine()
# Measured: largest error 5e-12 over these cases (and over the 200 of `benchmarks foundations`).
REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)
IN_SIZE, SAMPLES = 3, 6


def line_problem(width, seed, *, gamma=1.0, sigma=1.0, eta=(1.0, 1.0), slope=1.0, centered=False, curved=0.3):
    keys = jax.random.split(jax.random.key(seed), 3)
    direction = jax.random.normal(keys[0], (IN_SIZE,))
    along = jax.random.normal(keys[1], (SAMPLES,))
    x = along[:, None] * (direction / jnp.linalg.norm(direction))[None, :]
    y = slope * along + curved * jnp.sin(3 * along)
    scaling = js.nets.Scaling.ntk(gamma, sigma=sigma, eta=eta)
    net = js.nets.TwoLayerLinear(in_size=IN_SIZE, width_size=width, scaling=scaling, key=keys[2])
    return js.Problem(net, x, y, centered=centered)


def both(problem, ts):
    watched = [js.observe.outputs(), js.observe.layer_alignment(), js.observe.kernel()]
    runs = [js.solve(problem, d, ts, observe=watched, throw=False) for d in (CLOSED, REFERENCE)]
    return [(run.observed, run.final.params, run.result == js.RESULTS.successful) for run in runs]


def error_over_time(a, b):
    """Largest difference relative to the curve's largest value."""
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


def random_cases(width, count, seed):
    """Rates over six decades in ratio, both signs of y and gamma, scales from a tenth to three."""
    rng = np.random.default_rng(seed)
    ratio = 10 ** rng.uniform(-1.5, 1.5, count)
    return {
        "seed": jnp.arange(count),
        "gamma": jnp.asarray(10 ** rng.uniform(-1, 1, count) * rng.choice([-1, 1], count)),
        "sigma": jnp.asarray(10 ** rng.uniform(-1, 0.5, count)),
        "eta": jnp.asarray(np.stack([ratio, 1 / ratio], axis=1)),
        "slope": jnp.asarray(10 ** rng.uniform(-1, 0.5, count) * rng.choice([-1, 1], count)),
    }


def lane_errors(width, count, seed):
    def lane(case):
        problem = line_problem(width, **case)
        ts = CLOSED.reduce(problem).timescale.t_c * jnp.array([0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0])
        (exact, exact_end, fine), (flow, flow_end, ended) = both(problem, ts)
        gap = lambda a, b: jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))
        return jax.tree.leaves(jax.tree.map(gap, (exact, exact_end), (flow, flow_end))), fine & ended

    errors, fine = eqx.filter_jit(jax.vmap(lane))(random_cases(width, count, seed))
    assert bool(jnp.all(fine))
    return float(jnp.max(jnp.stack(errors)))


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gamma=st.tuples(decades(-1, 1), signs),
    sigma=decades(-1, 0.5),
    ratio=decades(-1.5, 1.5),
    slope=st.one_of(st.just(0.0), st.builds(operator.mul, decades(-1, 0.5), signs)),
)
def test_equals_flow_over_drawn_problems(seed, gamma, sigma, ratio, slope):
    problem = line_problem(10, seed, gamma=gamma[0] * gamma[1], sigma=sigma, eta=(ratio, 1 / ratio), slope=slope)
    ts = CLOSED.reduce(problem).timescale.t_c * jnp.array([0.0, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0])
    (exact, exact_end, fine), (flow, flow_end, ended) = both(problem, ts)
    assert fine
    assert ended
    assert max(map(error_over_time, jax.tree.leaves((exact, exact_end)), jax.tree.leaves((flow, flow_end)))) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 3, 10, 30, 100, 300, 1000])
def test_equals_flow_of_the_weights(width):
    assert lane_errors(width, 25, seed=width) < 1e-10


def test_twins_without_a_rate_fail():
    assert_every_rate_matters(line_problem(10, 0, gamma=0.5, eta=(2.0, 0.3)), CLOSED, jnp.linspace(0, 10, 8))


def test_centered_and_test_inputs_off_the_line(getkey):
    problem = line_problem(20, 3, gamma=2.0, eta=(0.5, 2.0), centered=True)
    off = jax.random.normal(getkey(), (5, IN_SIZE))
    problem = js.Problem(problem.net, problem.x, problem.y, test=(off, jnp.zeros(5)), centered=True)
    ts = jnp.array([0.0, 0.5, 2.0, 8.0])
    cmp = js.compare(problem, [CLOSED, REFERENCE], ts, observe=[js.observe.outputs(), js.observe.test_outputs()])
    assert max(float(e) for e in cmp.errors[REFERENCE.name].values()) < 1e-10


# --- degenerate starts ---


def reduced(a, b, k, y):
    return ReducedLine.from_layers(jnp.asarray(a, float), jnp.asarray(b, float), jnp.asarray(k), jnp.asarray(y))


EXTREMES = np.array([0.0, 1e-300, 1e300, np.inf])
A = np.array([0.3, -1.2, 0.7, 0.4])


@pytest.mark.parametrize(
    ("a", "b", "k", "y", "f_end"),
    [
        (A, -A, 1.3, 2.0, 0.0),  # P = 0, y > 0: into the saddle
        (A, -A, 1.3, -2.0, -2.0),  # P = 0, y < 0: fits
        (A, A, 1.3, -2.0, 0.0),  # Q = 0, y < 0: into the saddle
        (A, A, 1.3, 2.0, 2.0),  # Q = 0, y > 0: fits
        (A, -A, 1.3, 0.0, 0.0),  # P = 0, y = 0: into the saddle, algebraically
        (A, A, 1.3, 0.0, 0.0),
        (A, A[::-1], 1.3, 0.0, 0.0),  # y = 0 with a product
        (0 * A, 0 * A, 1.3, 2.0, 0.0),  # stuck at the saddle
        (A, 0 * A, 1.3, 2.0, 2.0),  # one layer zero
        (A, 2 * A, 1.3, 5.0, 5.0),  # parallel, unequal
        (A, A[::-1], 0.0, 2.0, 0.0),  # gamma = 0: nothing moves
        (1e-150 * A, 1e-150 * A[::-1], 1.3, 2.0, 2.0),
        (1e100 * A, 1e100 * A[::-1], 1e-100, 2.0, 2.0),
    ],
)
def test_limits_are_finite_and_right(a, b, k, y, f_end):
    line = reduced(a, b, k, y)
    f = line.f(EXTREMES)
    start = k * np.dot(a, b)
    np.testing.assert_allclose(f[:2], start, rtol=1e-12, atol=1e-298)  # f itself is of the order t there
    np.testing.assert_allclose(f[2:], f_end, rtol=1e-12, atol=1e-300)
    for value in (line.zeta(EXTREMES), line.ntk(EXTREMES), line.residual(EXTREMES), *line.squared_norms(EXTREMES)):
        assert np.all(np.isfinite(value))
    assert np.all(np.abs(line.zeta(EXTREMES)) <= 1)


def test_into_the_saddle_follows_the_printed_degenerate_solution():
    # Proposition 1 of the paper's first version (equations.md A.6): xi^2 = (1 + kQ/2y) e^{2kyt} - kQ/2y.
    k, y, Q = 1.3, 2.0, float(np.sum(A**2) * 2)
    line, t = reduced(A, -A, k, y), jnp.linspace(0, 20, 30)
    xi2 = (1 + k * Q / (2 * y)) * np.exp(2 * k * y * np.asarray(t)) - k * Q / (2 * y)
    np.testing.assert_allclose(line.f(t), -(k / 2) * Q / xi2, rtol=1e-11)
    np.testing.assert_allclose(line.log_xi(t), np.log(xi2) / 2, rtol=1e-12)
    np.testing.assert_allclose(line.zeta(t), -1.0, rtol=1e-12)
    flat = reduced(A, -A, k, 0.0)
    np.testing.assert_allclose(flat.f(t), -(k / 2) * Q / (1 + k**2 * Q * np.asarray(t)), rtol=1e-12)


def test_weights_at_the_saddle_vanish():
    net = js.nets.TwoLayerLinear(
        in_size=1,
        width_size=4,
        scaling=js.nets.Scaling.standard(),
        key=jax.random.key(0),
        init=js.nets.Given([A[:, None], -A[None, :]]),
    )
    problem = js.Problem(net, jnp.ones((1, 1)), jnp.array([2.0]))
    view = CLOSED.at(problem, jnp.array(jnp.inf))
    assert all(float(jnp.max(jnp.abs(w))) == 0 for w in view.params.weights)
    assert float(jnp.max(jnp.abs(view.outputs))) == 0


# --- the reduced flow ---

logs = lambda low, high: st.floats(low, high).map(lambda e: 10.0**e)
lines = st.builds(
    lambda P, Q, share, k, y, sign: (P, Q, 2 * share * np.sqrt(P * Q), k, sign * y),
    logs(-3, 3),
    logs(-3, 3),
    st.floats(-1, 1),
    logs(-2, 2),
    logs(-2, 2),
    st.sampled_from([-1, 1]),
)


def printed_xi2(P, Q, k, y, t):
    """The printed solution (7)-(14) in 80-bit arithmetic."""
    P, Q, k, y, t = (np.longdouble(v) for v in (P, Q, k, y, t))
    R = np.sqrt(y**2 + k**2 * P * Q)
    plus, minus = (y + R) / (k * P), (y - R) / (k * P)
    E = np.exp(-2 * k * R * t)
    return ((1 - minus) * plus - (1 - plus) * minus * E) / ((1 - minus) - (1 - plus) * E)


@settings(max_examples=60, deadline=None)
@given(lines, logs(-3, 1))
def test_equals_the_printed_theorem(case, time):
    P, Q, phi, k, y = case
    line = ReducedLine.from_pq(P, Q, phi, k, y)
    t = time / float(2 * line.rate)
    xi2 = printed_xi2(P, Q, k, y, t)
    f = (k / 2) * (P * xi2 - Q / xi2)
    scale = max(abs(float(f)), abs(y), k * abs(P - Q) / 2)
    assert abs(float(line.f(t)) - float(f)) <= 1e-12 * scale
    ntk = float(k**2 * (P * xi2 + Q / xi2))
    assert abs(float(line.ntk(t)) - ntk) <= 1e-11 * ntk
    assert abs(float(line.log_xi(t)) - float(np.log(xi2)) / 2) <= 1e-11 * (1 + abs(float(np.log(xi2))))


@settings(max_examples=60, deadline=None)
@given(lines)
def test_alignment_rises_exactly_when_the_target_exceeds_the_output(case):
    line = ReducedLine.from_pq(*case)
    zeta = np.asarray(line.zeta(jnp.linspace(0, 3, 20) / (2 * line.rate)))
    wanted = np.sign(case[4] - float(line.f(0.0)))
    assert np.all(np.diff(zeta) * wanted >= -1e-12)


@settings(max_examples=40, deadline=None)
@given(lines)
def test_squared_norms_conserve_phi_and_gram(case):
    line = ReducedLine.from_pq(*case)
    t = jnp.linspace(0, 3, 7) / (2 * line.rate)
    aa, bb = line.squared_norms(t)
    size = np.asarray(aa + bb)
    np.testing.assert_array_less(np.abs(aa - bb - line.phi), 1e-12 * size)
    gram = np.asarray(aa * bb - line.layer_product(t) ** 2)
    np.testing.assert_array_less(np.abs(gram - line.gram**2), 1e-11 * size**2)


def test_rescaling_in_four_cases():
    # eq. (26): the norms grow exactly while (y - f) f > 0.
    for y, f0 in [(2.0, 0.5), (0.5, 2.0), (2.0, -0.5), (-2.0, -0.5)]:
        a, b = np.array([1.0, 0.3]), np.array([f0, 0.2])
        b = b - (a @ b - f0) * a / (a @ a)
        line = reduced(a, b, 1.0, y)
        t = jnp.linspace(0, 4, 400)
        growth = np.diff(np.asarray(line.squared_norms(t)[0]))
        f = np.asarray(line.f((t[1:] + t[:-1]) / 2))
        clear = np.abs((y - f) * f) > 1e-2
        np.testing.assert_array_equal(np.sign(growth[clear]), np.sign((y - f) * f)[clear])


def test_timescale_is_split_as_in_equation_17():
    problem = line_problem(5, 1, gamma=0.7, eta=(0.4, 3.0))
    line = CLOSED.reduce(problem)
    scale = line.timescale
    net, (eta_w, eta_u) = problem.net, problem.net.rates().weights
    direction = problem.x[0] / jnp.linalg.norm(problem.x[0])
    u, v = net.weights[1][0], net.weights[0] @ direction
    gamma = net.scaling.gamma * jnp.prod(net.scaling.multiplier)
    rho2 = jnp.mean(jnp.sum(problem.x**2, axis=1))
    feature = 2 * jnp.abs(gamma) * jnp.sqrt(rho2 * eta_u * eta_w) * jnp.abs(line.y)
    gap = (eta_w * u @ u + eta_u * v @ v) ** 2 - 4 * eta_u * eta_w * (u @ v) ** 2
    kernel = 2 * gamma**2 * rho2 * jnp.sqrt(gap / 4)
    np.testing.assert_allclose([scale.feature, scale.kernel], [feature, kernel], rtol=1e-12)
    np.testing.assert_allclose(scale.t_c**-2, feature**2 + kernel**2, rtol=1e-12)


def test_from_pq_equals_from_layers():
    a, b = np.array([0.3, -1.2, 0.7]), np.array([1.0, 0.1, -0.4])
    one = reduced(a, b, 0.8, 1.5)
    two = ReducedLine.from_pq(((a + b) ** 2).sum() / 2, ((a - b) ** 2).sum() / 2, a @ a - b @ b, 0.8, 1.5)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-13)
    t = jnp.array([0.0, 0.4, 3.0])
    zeta, f, ntk = two.observe(t)
    np.testing.assert_array_equal(zeta, two.zeta(t))
    np.testing.assert_array_equal(f, two.f(t))
    np.testing.assert_array_equal(ntk, two.ntk(t))


def test_late_residual_keeps_its_digits():
    line = reduced([0.5, 0.2], [0.1, 0.3], 1.0, 1.0)
    t = 200 / line.rate
    rate = (jnp.log(line.residual(t)) - jnp.log(line.residual(1.5 * t))) / (0.5 * t)
    np.testing.assert_allclose(rate, 2 * line.rate, rtol=1e-12)  # e^{-400}: far below the rounding of y - f


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0, 0.0, 1.0, 1.0), "P must be >= 0"),
        ((1.0, -1.0, 0.0, 1.0, 1.0), "Q must be >= 0"),
        ((1.0, 1.0, 0.0, -1.0, 1.0), "k must be >= 0"),
        ((1.0, 1.0, 3.0, 1.0, 1.0), "Cauchy"),
    ],
)
def test_impossible_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReducedLine.from_pq(*arguments)


# --- transformations ---


@pytest.mark.slow
@pytest.mark.parametrize("t", [0.3, 5.0, np.inf])
def test_gradients_agree_with_finite_differences(t):
    def final_zeta(sigma):
        return CLOSED.reduce(line_problem(6, 2, sigma=sigma, eta=(2.0, 0.5))).zeta(t)

    h = 1e-5
    numeric = (final_zeta(1.0 + h) - final_zeta(1.0 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(final_zeta)(1.0), numeric, rtol=1e-8)
    np.testing.assert_allclose(jax.jit(jax.grad(final_zeta))(1.0), numeric, rtol=1e-8)


def test_gradients_pass_through_degenerate_points():
    def f(P, y, t):
        return ReducedLine.from_pq(P, 1.0, 0.0, 1.0, y).f(t)

    for arguments in [(1.0, 0.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, jnp.inf)]:
        assert np.all(np.isfinite(jax.grad(f, argnums=(0, 1))(*arguments)))
    h = 1e-6
    numeric = (f(1.0, 1e-6, 1.0) - f(1.0, -1e-6, 1.0)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f, argnums=1)(1.0, 0.0, 1.0), numeric, rtol=1e-8)


@pytest.mark.slow
def test_float32_keeps_its_digits():
    problem = line_problem(50, 4, gamma=2.0, eta=(0.1, 3.0))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem)
    ts = np.array([0.0, 0.1, 1.0, 10.0, np.inf])
    watched = [js.observe.outputs(), js.observe.layer_alignment(), js.observe.kernel()]
    fine = js.solve(problem, CLOSED, ts, observe=watched)
    rough = js.solve(single, CLOSED, ts, observe=watched)
    for name in fine.observed:
        assert rough[name].dtype == jnp.float32
        assert error_over_time(rough[name].astype(float), fine[name]) < 5e-6


def test_vmap_over_times_and_problems_equals_a_loop():
    ts = jnp.array([0.0, 0.7, 3.0])
    swept = jax.jit(jax.vmap(lambda g: CLOSED.reduce(line_problem(4, 0, gamma=g)).zeta(ts)))(jnp.array([0.5, 2.0]))
    looped = jnp.stack([CLOSED.reduce(line_problem(4, 0, gamma=g)).zeta(ts) for g in (0.5, 2.0)])
    np.testing.assert_allclose(swept, looped, rtol=1e-14)


# --- where it applies ---


def refuse(problem, message):
    with pytest.raises(js.NotApplicable, match=message):
        js.solve(problem, CLOSED, 1.0)
    with pytest.raises(js.NotApplicable, match=message):
        js.exact(problem)


@pytest.mark.slow
def test_other_kinds_of_problem_are_refused_by_name(getkey):
    x, key, rule = jnp.ones((4, 2)), getkey(), js.nets.Scaling.ntk()
    rest = {"in_size": 2, "width_size": 3, "scaling": rule, "key": key}
    mlp = lambda depth, out, phi, **kw: js.nets.MLP(depth=depth, out_size=out, activation=phi, **rest, **kw)
    refuse(js.Problem(mlp(1, 1, "relu"), x, jnp.ones(4)), "linear activation: it has relu")
    refuse(js.Problem(mlp(1, 1, "linear", bias=True), x, jnp.ones(4)), "no biases")
    refuse(js.Problem(mlp(2, 1, "linear"), x, jnp.ones(4)), "2 weight matrices: it has 3 matrices")
    refuse(js.Problem(mlp(1, 2, "linear"), x, jnp.ones((4, 2))), "1 output: it has 2 outputs")
    refuse(js.Problem(eqx.nn.MLP(2, 1, 3, 1, key=key), x, jnp.ones(4)), "a dense network: it has MLP")


def test_a_violation_is_measured(getkey):
    problem = line_problem(4, 0)
    assert js.exact(problem) == CLOSED
    bent = eqx.tree_at(lambda p: p.x, problem, problem.x + 1e-3 * jax.random.normal(getkey(), problem.x.shape))
    share = {a.name: float(a.violation) for a in CLOSED.check(bent).assumptions}["inputs lie on a line"]
    assert 1e-4 < share < 1e-2
    refuse(bent, "inputs lie on a line .violation")
    assert js.solve(bent, CLOSED, 1.0, throw=False).result == js.RESULTS.not_applicable
    refuse(line_problem(4, 0, eta=(1.0, 0.0)), "all rates are positive")


@pytest.mark.slow
def test_every_network_of_the_kind_is_solved(getkey):
    x, y = jnp.array([[0.5, 1.0], [-1.0, -2.0]]), jnp.array([1.0, -0.5])
    rule = js.nets.Scaling.ntk(eta=(0.5, 2.0))
    nets = [
        js.nets.MLP(in_size=2, out_size=1, width_size=3, depth=1, activation="linear", scaling=rule, key=getkey()),
        js.nets.DeepLinear(in_size=2, width_size=3, depth=1, scaling=rule, key=getkey()),
        js.nets.SingleNeuron(in_size=2, scaling=rule, key=getkey()),
    ]
    for net in nets:
        problem = js.Problem(net, x, y)
        cmp = js.compare(problem, [js.exact(problem), REFERENCE], jnp.array([0.0, 1.0, 5.0]))
        assert max(float(e) for e in cmp.errors[REFERENCE.name].values()) < 1e-10
