"""The interpolants that training selects, against the ends of gradient flows of the weights."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize
from hypothesis import given, settings, strategies as st
from jaxtyping import Array

import jaxsolve as js
from jaxsolve.theory import (
    DeepPotential,
    HyperbolicEntropy,
    implicit_bias,
    Interpolants,
    single_neuron_limit,
    SingleNeuronPotential,
)
from tests.cases import assert_fails, eps


# Measured: the ends below differ from the minimizers by 3e-12 at most.
FLOW = js.GradientFlow(diffrax.Dopri8(), rtol=1e-12, atol=1e-15, until=js.until.loss_below(1e-24), max_steps=20_000)
RNG = np.random.default_rng(7)
X, Y, START = RNG.normal(size=(2, 4)), RNG.normal(size=2), RNG.normal(size=4)
MULTIPLIERS, RATES, GAMMA = np.array([1.3, 0.7]), np.array([0.6, 1.9]), 0.8


def trained(net, x, y):
    """The network at the end of its flow."""
    problem = js.Problem(net, jnp.asarray(x), jnp.asarray(y))
    run = js.solve(problem, FLOW, jnp.array([0.0, jnp.inf]), observe=js.observe.loss(), throw=False)
    return run.final.net, run.result == js.RESULTS.event


def gap(a, b):
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b))))


# --- one neuron ---


def neuron(a, w):
    init = js.nets.Given([jnp.asarray(w)[None, :], jnp.asarray(a)[None, None]])
    scaling = js.nets.Scaling(MULTIPLIERS, np.ones(2), RATES, GAMMA)
    return js.nets.SingleNeuron(in_size=len(w), scaling=scaling, init=init, key=jax.random.key(0))


def rescaled(net):
    """m_2 a, m_1 w and their rates: what the theory calls a, w, eta_a, eta_w."""
    m, eta = net.scaling.multiplier, net.scaling.eta * net.scaling.multiplier**2
    return m[1] * net.weights[1][0, 0], m[0] * net.weights[0][0], eta[1], eta[0]


def start_with(delta, direction, sign):
    """Weights with that delta whose product is along `direction`."""
    m1, m2 = MULTIPLIERS
    eta_w, eta_a = RATES * MULTIPLIERS**2
    kappa = jnp.sqrt(delta**2 + 4 * eta_a * eta_w * jnp.sum(direction**2))
    a = sign * jnp.sqrt((kappa + delta) / (2 * eta_w))
    return neuron(a / m2, direction / a / m1)


DELTAS = jnp.array([2.0, 0.0, -2.0, 2.0, -0.5, -2.0])
SIGNS = jnp.array([1.0, 1.0, 1.0, -1.0, -1.0, 1.0])
# The last start points away from the targets, so that beta passes through zero.
STARTS = jnp.asarray(np.stack([START, -START, 0.3 * START, START, 0.5 * START, START]))
STARTS = STARTS.at[-1].set(-0.3 * (np.linalg.pinv(X) @ Y) + 0.2 * Interpolants(X, Y).across(jnp.asarray(START)))


@pytest.fixture(scope="module")
def neurons():
    """The six starts, beta at their ends, and whether a has changed its sign."""

    def lane(delta, direction, sign):
        net = start_with(delta, direction, sign)
        end, reached = trained(net, X, Y)
        a, w, _, _ = rescaled(end)
        return rescaled(net), a * w, a * sign < 0, reached

    starts, ends, crossed, reached = eqx.filter_jit(jax.vmap(lane))(DELTAS, STARTS, SIGNS)
    assert bool(jnp.all(reached))
    return starts, ends, crossed


def neuron_ends(starts, crossed, *, share_of_delta=1.0):
    def lane(start, crossed):
        potential = SingleNeuronPotential.from_weights(*start, crossed=crossed)
        potential = eqx.tree_at(lambda p: p.delta, potential, share_of_delta * potential.delta)
        return implicit_bias(potential, GAMMA * jnp.asarray(X), jnp.asarray(Y))

    return eqx.filter_jit(jax.vmap(lane))(starts, crossed)


@pytest.mark.x64_only
def test_one_neuron_ends_at_the_minimizer(neurons):
    starts, ends, crossed = neurons
    np.testing.assert_array_equal(crossed, [False] * 5 + [True])
    ours = neuron_ends(starts, crossed)
    assert gap(ours, ends) < 2e-11
    balanced = neuron_ends(starts, crossed, share_of_delta=0.0)
    assert_fails(lambda: np.testing.assert_allclose(balanced[0], ends[0], rtol=1e-2))
    np.testing.assert_allclose(jax.jit(jax.vmap(delta_of))(starts), DELTAS, atol=1e-14)


def delta_of(start):
    return SingleNeuronPotential.from_weights(*start).delta


@pytest.mark.x64_only
def test_the_sign_flips_where_beta_passes_through_zero(neurons):
    starts, ends, crossed = neurons
    unflipped = neuron_ends(starts, jnp.zeros_like(crossed))
    np.testing.assert_allclose(unflipped[:5], ends[:5], rtol=4e-11)
    assert gap(unflipped[5], ends[5]) > 0.1


def printed_minimum(beta_0, delta, twice):
    """Equation (5) minimized by scipy over the null space, with 4 eta_a eta_w = twice^2 (as printed: twice = 2)."""
    x = GAMMA * X
    least = np.linalg.pinv(x) @ Y
    null = scipy.linalg.null_space(x)
    kappa = lambda r: np.sqrt(delta**2 + twice**2 * r**2)
    r0 = np.linalg.norm(beta_0)

    def objective(z):
        beta = least + null @ z
        k = kappa(np.linalg.norm(beta))
        linear = np.sqrt(kappa(r0) - delta) * beta_0 @ beta / r0
        return (k - 2 * delta) * np.sqrt(k + delta) * 2 / (3 * twice) - linear

    return least + null @ scipy.optimize.minimize(objective, np.zeros(2), options={"gtol": 1e-12}).x


@pytest.mark.x64_only
def test_equation_5_needs_the_rates(neurons):
    starts, ends, _ = neurons
    eta_w, eta_a = RATES * MULTIPLIERS**2
    for lane in range(3):
        beta_0, delta = np.asarray(STARTS[lane]), float(DELTAS[lane])
        with_rates = printed_minimum(beta_0, delta, 2 * np.sqrt(eta_a * eta_w))
        assert gap(with_rates, ends[lane]) < 3e-7
        if delta:
            assert gap(printed_minimum(beta_0, delta, 2.0), ends[lane]) > 5e-4


def flow_by_hand(a, w, eta_a, eta_w, x, y, t_end):
    """(a, w) at t_end by scipy, for the loss |x beta - y|^2/2."""

    def velocity(_, state):
        slope = x.T @ (x @ (state[0] * state[1:]) - y)
        return np.concatenate([[-eta_a * slope @ state[1:]], -eta_w * state[0] * slope])

    end = scipy.integrate.solve_ivp(
        velocity, (0, t_end), np.concatenate([[a], w]), method="DOP853", rtol=1e-12, atol=1e-14
    ).y[:, -1]
    return end[0], end[1:]


@pytest.mark.x64_only
def test_the_gradient_of_the_potential_stays_in_the_row_space():
    w, interpolants = START / 2, Interpolants(X, Y)
    potential = SingleNeuronPotential.from_weights(0.9, w, 0.5, 1.8)
    for t in (0.3, 2.0):
        a_t, w_t = flow_by_hand(0.9, w, 0.5, 1.8, X, Y, t)
        moved = potential.mirror_map(jnp.asarray(a_t * w_t))
        assert float(jnp.max(jnp.abs(moved))) > 0.05
        assert float(jnp.max(jnp.abs(interpolants.across(moved)))) < 1e-11


# --- one neuron, one data point ---


def appendix_a4(x, y, b0, delta):
    """Kunin et al., A.4, d = 2, rates 1, in plain NumPy."""
    ols = x * y / (x @ x)
    n = np.array([-x[1], x[0]]) / np.linalg.norm(x)
    k = np.sqrt(np.sqrt(b0 @ b0 + delta**2 / 4) - delta / 2) * (b0 @ n) / np.linalg.norm(b0)
    K = (k**2 + delta) / 2
    return ols + k * np.sqrt(K + np.sqrt(K**2 + ols @ ols)) * n


POINT, TARGET = np.array([0.5, 1.0]), 1.1
B0 = 0.5 * (0.6 * np.array([1.0, -0.5]) + 0.4 * np.array([0.5, 1.0]))  # of their figure 3


def test_one_data_point_equals_appendix_a4():
    for delta in (-4.0, -1.0, 0.0, 1.0, 4.0):
        ours = single_neuron_limit(POINT, TARGET, B0, delta)
        np.testing.assert_allclose(ours, appendix_a4(POINT, TARGET, B0, delta), rtol=eps(10))
        other = appendix_a4(POINT, TARGET, B0, -delta if delta else 1.0)  # downstream for upstream
        assert_fails(lambda o=ours, other=other: np.testing.assert_allclose(o, other, rtol=1e-2))


def test_infinite_delta():
    ols = POINT * TARGET / (POINT @ POINT)
    lazy = B0 - POINT * (POINT @ B0 - TARGET) / (POINT @ POINT)
    for b0, rich in ((B0, B0 * (ols @ ols) / (B0 @ ols)), (-B0, B0 * (ols @ ols) / (B0 @ ols))):
        np.testing.assert_allclose(single_neuron_limit(POINT, TARGET, b0, -jnp.inf), rich, rtol=eps(10))
    np.testing.assert_allclose(single_neuron_limit(POINT, TARGET, B0, jnp.inf), lazy, rtol=eps(10))
    for delta, limit in ((1e12, jnp.inf), (-1e12, -jnp.inf)):
        near = single_neuron_limit(POINT, TARGET, B0, delta, 2.0, 0.3)
        np.testing.assert_allclose(near, single_neuron_limit(POINT, TARGET, B0, limit), rtol=eps(10))


@pytest.mark.x64_only
def test_one_data_point_from_every_side():
    # Starts all round, so that some beta pass through zero; delta of each sign; three inputs; unequal rates.
    rng = np.random.default_rng(3)
    x, y, eta_a, eta_w = np.array([[0.8, -0.5, 1.1]]), np.array([-1.3]), 0.6, 1.7
    deltas, starts = np.repeat([-3.0, -0.6, 0.0, 1.5], 6), rng.normal(size=(24, 3))
    limit = jax.jit(jax.vmap(lambda delta, start: single_neuron_limit(x[0], y[0], start, delta, eta_a, eta_w)))
    limits, crossed = limit(deltas, starts), 0
    for delta, start, ours in zip(deltas, starts, limits, strict=True):
        a = np.sqrt((np.sqrt(delta**2 + 4 * eta_a * eta_w * start @ start) + delta) / (2 * eta_w))
        a_end, w_end = flow_by_hand(a, start / a, eta_a, eta_w, x, y, 300.0)
        np.testing.assert_allclose(ours, a_end * w_end, rtol=1e-11, atol=1e-12)
        crossed += a_end < 0
    assert 2 <= crossed <= 8


def test_a_target_of_zero():
    # The loss is (a w.x)^2: either w.x or a decays to zero.
    x, b0 = np.array([1.0, 0.0]), np.array([0.3, 0.4])
    np.testing.assert_allclose(single_neuron_limit(x, 0.0, b0, -5.0), 0.0, atol=eps(5))
    end = single_neuron_limit(x, 0.0, b0, 5.0)
    # w_2 is conserved, and a^2 = delta + w_2^2 at the end.
    a2 = (np.sqrt(25 + 4 * 0.25) + 5) / 2
    w2 = 0.4 / np.sqrt(a2)
    np.testing.assert_allclose(end, [0.0, np.sqrt(5 + w2**2) * w2], rtol=eps(10), atol=eps(5))


# --- deep linear networks ---


BALANCED = js.nets.LambdaBalanced()


def deep(depth):
    m = jnp.array([1.3, 0.7, 1.1, 0.9])[: depth + 1]
    scaling = js.nets.Scaling(m, jnp.full(depth + 1, 0.7), jnp.array([0.6, 1.9, 1.2, 0.8])[: depth + 1], 1.2)
    return js.nets.DeepLinear(
        in_size=4, width_size=3, depth=depth, scaling=scaling, init=BALANCED, key=jax.random.key(depth)
    )


def product(net):
    beta = net.weights[0].T * net.scaling.multiplier[0]
    for layer, w in enumerate(net.weights[1:], start=1):
        beta = beta @ w.T * net.scaling.multiplier[layer]
    return beta[:, 0]


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_balanced_deep_networks_end_at_the_minimizer(depth):
    @eqx.filter_jit
    def run():
        net = deep(depth)
        end, reached = trained(net, X, Y)
        ends = [implicit_bias(DeepPotential(product(net), order), 1.2 * X, Y) for order in (depth, depth + 1)]
        return ends, product(end), reached

    (ours, deeper), end, reached = run()
    assert bool(reached)
    assert gap(ours, end) < 1e-11
    assert gap(deeper, end) > 1e-3


def test_depth_one_is_the_balanced_neuron():
    for start in (START, 1e-3 * START):
        one = implicit_bias(DeepPotential(start, 1), X, Y)
        np.testing.assert_allclose(
            one, implicit_bias(SingleNeuronPotential(start, 0.0, 0.3, 5.0), X, Y), rtol=eps(10), atol=eps(5)
        )


# --- diagonal networks ---


class Diagonal(eqx.Module):
    u: Array
    v: Array

    def __call__(self, x):
        return jnp.sum((self.u**2 - self.v**2) * x)[None]


@pytest.mark.x64_only
def test_diagonal_networks_end_at_the_minimizer():
    rng = np.random.default_rng(5)
    alpha = jnp.asarray(np.array([[0.03], [0.3], [1.0]]) * np.ones((3, 4)))
    u = jnp.concatenate([alpha, jnp.asarray(rng.uniform(0.2, 1, (2, 4)))])
    v = jnp.concatenate([alpha, jnp.asarray(rng.uniform(-1, -0.2, (2, 4)))])

    def lane(u, v):
        end, reached = trained(Diagonal(u, v), X, Y)
        return end.u**2 - end.v**2, reached

    ours = jax.jit(jax.vmap(lambda u, v: implicit_bias(HyperbolicEntropy.of_diagonal_network(u, v), X, Y)))
    ends, reached = eqx.filter_jit(jax.vmap(lane))(u, v)
    assert bool(jnp.all(reached))
    np.testing.assert_allclose(ours(u, v), ends, rtol=3e-11, atol=5e-12)
    # Without the factor 2 of the width 2 |u v|.
    half = lambda u, v: implicit_bias(HyperbolicEntropy(jnp.abs(u * v), beta_0=u**2 - v**2), X, Y)
    off = jax.jit(jax.vmap(half))(u, v)
    for case in range(5):
        assert_fails(lambda i=case: np.testing.assert_allclose(off[i], ends[i], rtol=1e-3, atol=1e-3))


def sparse_problem():
    """Eight random measurements of two of twenty coordinates, and the point of least l1 norm by linear programming."""
    rng = np.random.default_rng(11)
    x, truth = rng.normal(size=(8, 20)), np.zeros(20)
    truth[[3, 11]] = [1.0, -2.0]
    y = x @ truth
    solution = scipy.optimize.linprog(np.ones(40), A_eq=np.hstack([x, -x]), b_eq=y).x
    return x, y, solution[:20] - solution[20:]


def betas_of_all_widths(x, y, dtype):
    def solve(alpha):
        return implicit_bias(HyperbolicEntropy.of_diagonal_network(alpha, alpha), x.astype(dtype), y.astype(dtype))

    return np.asarray(jax.jit(jax.vmap(solve))(jnp.asarray(10.0 ** np.arange(-12, 7), dtype)))


@pytest.mark.x64_only
def test_from_least_l1_to_least_l2():
    x, y, sparse = sparse_problem()
    betas = betas_of_all_widths(x, y, np.float64)
    assert np.all(np.isfinite(betas))
    np.testing.assert_allclose(betas @ x.T, np.broadcast_to(y, (19, 8)), rtol=eps(50), atol=eps(50))
    assert gap(betas[0], sparse) < 2e-13
    assert gap(betas[-1], np.linalg.pinv(x) @ y) < eps(30)
    norms = np.sum(np.abs(betas), axis=1), np.sum(betas**2, axis=1)
    assert np.all(np.diff(norms[0]) > -eps(100))
    assert np.all(np.diff(norms[1]) < eps(100))
    assert gap(betas_of_all_widths(x, y, np.float32), betas) < 2e-5  # measured: 5e-6


# --- singular values ---


class Sensing(eqx.Module):
    """<x, W^T A> for a measurement matrix x."""

    W: Array
    A: Array

    def __call__(self, x):
        return jnp.sum(x * (self.W.T @ self.A))[None]


@pytest.mark.slow
@pytest.mark.x64_only
def test_singular_values_end_at_the_minimizer():
    # With diagonal measurements and start everything stays diagonal: the entries of W^T A are signed singular values.
    delta, lam = -0.7, np.array([0.2, -0.1, 0.4, 0.3])
    a = np.sqrt((np.sqrt(delta**2 + 4 * lam**2) + delta) / 2)
    net = Sensing(jnp.diag(jnp.asarray(lam / a)), jnp.diag(jnp.asarray(a)))
    end, reached = eqx.filter_jit(trained)(net, np.stack([np.diag(row) for row in X]), Y)
    assert bool(reached)
    ours = implicit_bias(HyperbolicEntropy.of_singular_values(delta, beta_0=lam), X, Y)
    assert gap(ours, jnp.diag(end.W.T @ end.A)) < 2e-11
    off = implicit_bias(HyperbolicEntropy.of_singular_values(2 * delta, beta_0=lam), X, Y)  # width |delta|, not half
    assert_fails(lambda: np.testing.assert_allclose(off, jnp.diag(end.W.T @ end.A), rtol=1e-3))


# --- properties ---

POTENTIALS = {
    "upstream": lambda b0, s: SingleNeuronPotential(b0, s, 0.5, 3.0),
    "downstream": lambda b0, s: SingleNeuronPotential(b0, -s, 0.5, 3.0),
    "turned over": lambda b0, s: SingleNeuronPotential(b0, -s, crossed=True),
    "two hidden layers": lambda b0, s: DeepPotential(s * b0, 2),
    "many hidden layers": lambda b0, s: DeepPotential(s * b0, 20),
    "diagonal": lambda b0, s: HyperbolicEntropy(s),
    "diagonal from a start": lambda b0, s: HyperbolicEntropy(s, beta_0=b0),
}


def stationarity(make):
    """By how much a minimizer misses its constraints and the stationarity of the potential, relative."""

    @jax.jit
    @jax.vmap
    def miss(x, y, start, size):
        potential = make(start, size)
        beta = implicit_bias(potential, x, y)
        interpolants = Interpolants(x, y)
        slope = potential.mirror_map(beta)
        reach = jnp.max(jnp.abs(slope)) + jnp.max(jnp.abs(potential.mirror_map(0 * beta)))
        constraint = jnp.max(jnp.abs(x @ beta - y)) / (jnp.max(jnp.abs(x)) * jnp.max(jnp.abs(beta)))
        return constraint, jnp.max(jnp.abs(interpolants.across(slope))) / reach, beta

    return miss


QUICK = ("downstream", "two hidden layers", "diagonal from a start")
MOSTLY_SLOW = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in POTENTIALS]


@pytest.mark.slow
@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_minimizers_are_stationary_over_many_decades(name):
    rng = np.random.default_rng(1)
    count = 40
    x, y, start = rng.normal(size=(count, 3, 7)), rng.normal(size=(count, 3)), rng.normal(size=(count, 7))
    size = 10.0 ** rng.uniform(-6, 6, count)
    constraint, slope, beta = stationarity(POTENTIALS[name])(*(jnp.asarray(v) for v in (x, y, start, size)))
    assert np.all(np.isfinite(beta))
    assert float(jnp.max(constraint)) < eps(20)  # measured: 3
    assert float(jnp.max(slope)) < eps(20)  # measured: 2


NEURON_END = jax.jit(lambda x, y, b0, d: implicit_bias(SingleNeuronPotential(b0, d, 0.5, 2.0), x, y))
ENTROPY_END = jax.jit(lambda x, y, b0, w: implicit_bias(HyperbolicEntropy(w, beta_0=b0), x, y))
numbers = st.floats(-3, 3)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), numbers, st.floats(-4, 4).map(lambda e: 10.0**e))
def test_units_do_not_matter(seed, delta, scale):
    rng = np.random.default_rng(seed)
    x, y, b0 = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, 7), 3, 7))
    tolerance = {"rtol": eps(50), "atol": eps(50) * scale}
    once = NEURON_END(x, y, b0, jnp.asarray(delta))
    np.testing.assert_allclose(
        NEURON_END(x, scale * y, scale * b0, jnp.asarray(scale * delta)), scale * once, **tolerance
    )
    width = jnp.asarray(10.0**delta)
    once = ENTROPY_END(x, y, b0, width)
    np.testing.assert_allclose(ENTROPY_END(x, scale * y, scale * b0, scale * width), scale * once, **tolerance)
    mixed = jnp.asarray(rng.normal(size=(3, 3))) + 4 * jnp.eye(3)  # other equations for the same set
    np.testing.assert_allclose(ENTROPY_END(mixed @ x, mixed @ y, b0, width), once, rtol=eps(100), atol=eps(100))


def test_dependent_and_redundant_samples():
    x, y = np.concatenate([X, X[:1], X.sum(axis=0)[None]]), np.concatenate([Y, Y[:1], [Y.sum()]])
    for name in QUICK:
        potential = POTENTIALS[name](START, 0.5)
        np.testing.assert_allclose(
            implicit_bias(potential, x, y), implicit_bias(potential, X, Y), rtol=eps(30), atol=eps(30)
        )


# --- transformations ---


@pytest.mark.slow
@pytest.mark.x64_only
def test_gradients_agree_with_finite_differences():
    rng = np.random.default_rng(2)
    names = ["turned over", "two hidden layers", "diagonal from a start"]
    makes = [POTENTIALS[name] for name in names] + [lambda b0, s: SingleNeuronPotential(b0, s - 0.8)]  # at delta = 0
    point = tuple(jnp.asarray(v) for v in (X, Y, START, 0.8))
    # Along one argument at a time, in a random direction.
    direction = [rng.normal(size=np.shape(v)) for v in point]
    tangents = tuple(jnp.asarray(np.stack([d * (i == j) for i in range(4)])) for j, d in enumerate(direction))
    ends = lambda x, y, b0, s: jnp.stack([implicit_bias(make(b0, s), x, y) for make in makes])
    along = lambda tangent: jax.jvp(ends, point, tangent)[1]
    exact = jax.jit(jax.vmap(along))(tangents)

    h = 1e-4
    shifted = lambda tangent, t: ends(*(v + t * d for v, d in zip(point, tangent, strict=True)))
    values = jax.jit(jax.vmap(jax.vmap(shifted, (None, 0)), (0, None)))(tangents, h * jnp.array([-2.0, -1.0, 1.0, 2.0]))
    numeric = (8 * (values[:, 2] - values[:, 1]) - (values[:, 3] - values[:, 0])) / (12 * h)
    np.testing.assert_allclose(exact, numeric, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.x64_only
def test_gradients_with_repeated_samples_are_finite():
    repeated = jnp.asarray(np.concatenate([X, X[:1]])), jnp.asarray(np.concatenate([Y, Y[:1]]))
    single = jnp.asarray(X), jnp.asarray(Y)
    slope = jax.jit(
        jax.jacrev(lambda alpha, x, y: implicit_bias(HyperbolicEntropy.of_diagonal_network(alpha, alpha), x, y))
    )
    for alpha in (0.3, 1e-9):
        np.testing.assert_allclose(slope(alpha, *repeated), slope(alpha, *single), rtol=2e-12, atol=1e-13)


@pytest.mark.x64_only
@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_float32_keeps_its_digits(name):
    make = POTENTIALS[name]
    single = lambda v: jnp.asarray(v, jnp.float32)
    rough = implicit_bias(make(single(START), single(0.01)), single(X), single(Y))
    assert rough.dtype == jnp.float32
    fine = implicit_bias(make(START, 0.01), X, Y)
    assert gap(rough.astype(float), fine) < 5e-6  # measured: 1.3e-6


# --- what is refused ---


def test_unsolvable_data_are_refused():
    potential = SingleNeuronPotential(START, 1.0)
    with pytest.raises(ValueError, match="X beta = y has no solution"):
        implicit_bias(potential, np.concatenate([X, X[:1]]), np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="no solution"):
        implicit_bias(HyperbolicEntropy(1.0), np.zeros((1, 4)), np.ones(1))
    with pytest.raises(ValueError, match="x holds 1 value"):
        implicit_bias(potential, np.where(X == X[0, 0], np.nan, X), Y)
    with pytest.raises(ValueError, match="y holds 2 value"):
        implicit_bias(potential, X, np.full(2, np.inf))
    with pytest.raises(ValueError, match="4 inputs, but the potential is for a beta of shape .3,"):
        implicit_bias(SingleNeuronPotential(START[:3], 1.0), X, Y)
    with pytest.raises(ValueError, match="beta of shape .3,"):
        implicit_bias(HyperbolicEntropy(np.ones(3)), X, Y)
    with pytest.raises(ValueError, match="x must not be zero"):
        single_neuron_limit(np.zeros(2), 1.0, B0, 1.0)


def test_shapes_are_refused(as_users):
    potential = SingleNeuronPotential(START, 1.0)
    with pytest.raises(ValueError, match=r"x must have shape \(n, d\)"):
        implicit_bias(potential, X[0], Y)
    with pytest.raises(ValueError, match=r"y shape \(n,\)"):
        implicit_bias(potential, X, Y[:1])
    with pytest.raises(TypeError, match="potential must be one of those"):
        implicit_bias(None, X, Y)  # pyright: ignore[reportArgumentType]


def test_a_failed_search_is_reported():
    with pytest.raises(RuntimeError, match="no minimizer found for DeepPotential"):
        implicit_bias(eqx.tree_at(lambda p: p.beta_0, DeepPotential(START, 2), jnp.full(4, jnp.nan)), X, Y)
