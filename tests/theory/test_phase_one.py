"""The first phase on inputs that are not whitened: against integration of the weights, and the printed matrix."""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxsolve as js
from jaxsolve.theory import early_overlaps, PhaseOne
from tests.cases import assert_fails, eps


PHASE = PhaseOne()
REFERENCE = js.GradientFlow(diffrax.Dopri8(), rtol=1e-10, atol=1e-14, land_on_ts=True)
SIZE, WIDTH, SAMPLES, S = 5, 4, 12, 0.8


@eqx.filter_jit
def setting(sigma, seed):
    """Inputs of unequal variances, targets s beta . x, unit rates and multipliers."""
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (SAMPLES, SIZE)) * jnp.linspace(0.4, 1.6, SIZE)[None, :]
    beta = jax.random.normal(keys[1], (SIZE,))
    beta = beta / jnp.linalg.norm(beta)
    scaling = js.nets.Scaling(np.ones(2), sigma * np.array([SIZE**-0.5, WIDTH**-0.5]), np.ones(2))
    net = js.nets.TwoLayerLinear(in_size=SIZE, width_size=WIDTH, scaling=scaling, key=keys[2])
    return js.Problem(net, x, S * (x @ beta)), beta


def moments(problem, beta):
    second = problem.x.T @ problem.x / SAMPLES
    return second, beta @ second @ beta, beta @ second @ second @ beta


def measured(weights, second, beta):
    """The overlaps of eq. 22."""
    first, a = weights[0], weights[1][0]
    one, two = first @ beta, first @ second @ beta
    return jnp.stack([one @ a, a @ a, one @ two, two @ a, two @ two])


LAYERS = [
    js.observe.Observable("first", lambda view: view.params.weights[0], dims=("hidden", "in")),
    js.observe.Observable("last", lambda view: view.params.weights[1], dims=("out", "hidden")),
    js.observe.kernel(),
]
ANGLES = jnp.array([0.0, 0.5, 1.0, 2.0, 3.0])


@eqx.filter_jit
def both(sigmas):
    """Per sigma and time: errors of the weights, overlaps by integration and in closed form."""

    def lane(sigma):
        problem, beta = setting(sigma, 0)
        second, a, b = moments(problem, beta)
        ts = ANGLES / PHASE.growth(problem).rate
        flow = js.solve(problem, REFERENCE, ts, observe=LAYERS)
        closed = js.solve(problem, PHASE, ts, observe=LAYERS, throw=False)
        gaps = [jnp.max(jnp.abs(flow[k] - closed[k])) / jnp.max(jnp.abs(flow[k])) for k in ("first", "last", "kernel")]
        true = jax.vmap(lambda *w: measured(w, second, beta))(flow["first"], flow["last"])
        found = jax.vmap(lambda t: early_overlaps(true[0], t, s=S, a=a, b=b))(ts)
        # The twin: without the term of a, which whitened inputs do not have.
        wrong = jax.vmap(lambda t: early_overlaps(true[0], t, s=S, a=0 * a, b=b))(ts)
        return jnp.stack(gaps), true, found, wrong

    return jax.vmap(lane)(sigmas)


@pytest.mark.slow
@pytest.mark.x64_only
def test_weights_and_overlaps_follow_the_integration():
    gaps, true, found, wrong = both(jnp.array([1e-3, 1e-4]))
    assert float(jnp.max(gaps[1])) < 1e-4  # measured 1.2e-5
    np.testing.assert_allclose(jnp.log10(gaps[0] / gaps[1]), 2, atol=0.02)
    share = lambda r: jnp.max(jnp.abs(r - true), axis=1) / jnp.max(jnp.abs(true), axis=1)
    assert float(jnp.max(share(found)[1])) < 1e-4  # measured 1.2e-5
    np.testing.assert_allclose(jnp.log10(share(found)[0] / share(found)[1]), 2, atol=0.02)
    assert_fails(lambda: np.testing.assert_array_less(share(wrong)[1], 1e-4))


@given(st.lists(st.floats(-2, 2), min_size=5, max_size=5), st.floats(0.1, 2), st.floats(0, 3))
@settings(max_examples=15, deadline=None)
def test_overlaps_solve_the_printed_system(start, a, angle):
    """Equation 23 by a matrix exponential in 80-bit arithmetic; also from starts that no weights have."""
    b = 1.1 * a**2 + 0.3
    expected = by_exponential(printed_system(a, b), start, angle)
    found = jitted(jnp.asarray(start), jnp.asarray(angle), jnp.asarray(a), jnp.asarray(b))
    # Measured: 17 units of rounding (scipy.linalg.expm: 1800).
    np.testing.assert_allclose(found, expected, rtol=0, atol=eps(170) * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("entry", [(0, 1), (0, 2), (1, 3), (2, 0), (2, 3), (3, 1), (3, 4), (4, 3)])
def test_systems_without_an_entry_fail(entry):
    start, a, b, t = [0.3, 1.0, 0.2, -0.4, 0.9], 0.8, 1.5, 1.2
    found = jitted(jnp.asarray(start), jnp.asarray(t), jnp.asarray(a), jnp.asarray(b))
    matrix = printed_system(a, b)
    np.testing.assert_allclose(found, by_exponential(matrix, start, t), rtol=eps(200))
    matrix[entry] = 0
    assert_fails(lambda: np.testing.assert_allclose(found, by_exponential(matrix, start, t), rtol=1e-3))


def printed_system(a, b):
    """s M of equation 23, at s = 0.7."""
    rows = [[0, a, 1, 0, 0], [0, 0, 0, 2, 0], [b, 0, 0, a, 0], [0, b, 0, 0, 1], [0, 0, 0, 2 * b, 0]]
    return 0.7 * np.array(rows)


def by_exponential(matrix, start, t):
    return (exponential(matrix * t) @ np.array(start, np.longdouble)).astype(float)


def exponential(matrix):
    """exp(M) by its series at M/1024, squared ten times."""
    small = matrix.astype(np.longdouble) / 1024
    total, term = np.eye(5, dtype=np.longdouble), np.eye(5, dtype=np.longdouble)
    for k in range(1, 25):
        term = term @ small / k
        total = total + term
    for _ in range(10):
        total = total @ total
    return total


@jax.jit
def jitted(start, t, a, b):
    return early_overlaps(start, t, s=0.7, a=a, b=b)


def test_early_time_and_slope():
    start = jnp.array([0.3, 1.0, 0.2, -0.4, 0.9])
    np.testing.assert_allclose(jitted(start, 0.0, 0.8, 1.5), start, rtol=eps(10))
    slope = jax.jacfwd(jitted, argnums=1)(start, 0.0, 0.8, 1.5)
    a, b, s = 0.8, 1.5, 0.7
    r1, r2, r3, r4, r5 = start
    expected = s * jnp.stack([a * r2 + r3, 2 * r4, b * r1 + a * r4, b * r2 + r5, 2 * b * r4])
    np.testing.assert_allclose(slope, expected, rtol=eps(50))


@functools.cache
def silent():
    """A start so small that the kernel has turned long before the output moves: then, and when all is learnt."""

    @eqx.filter_jit
    def run():
        problem, beta = setting(1e-9, 1)
        growth = PHASE.growth(problem)
        ts = jnp.array([0.0, 14.0, 300.0]) / growth.rate
        flow = js.solve(problem, REFERENCE, ts, observe=[*LAYERS, js.observe.loss(), js.observe.layer_cosine()])
        second, _, b = moments(problem, beta)
        return growth.direction, flow.observed, second @ beta, b, beta

    return run()


@pytest.mark.x64_only
def test_the_kernel_turns_to_the_corrected_equation_25():
    direction, flow, pull, b, _ = silent()
    first, last = flow["first"][1], flow["last"][1, 0]
    np.testing.assert_allclose(direction, pull / jnp.sqrt(b), rtol=1e-12)
    spike = first.T @ first / (last @ last)
    check = lambda coefficient: np.testing.assert_allclose(spike, coefficient * np.outer(pull, pull), atol=8e-6)
    check(1 / b)  # measured 1e-6
    assert_fails(lambda: check(1 / jnp.sqrt(b)))  # as printed


@pytest.mark.x64_only
def test_the_first_layer_turns_again_to_beta_while_the_loss_falls():
    """Section 3.2: W^T W is along Sigma beta before the loss has fallen, and along beta after."""
    _, flow, pull, _, beta = silent()
    squared = (pull @ beta) ** 2 / (pull @ pull) / (beta @ beta)
    first = flow["first"][1:]
    grams = jnp.einsum("thi,thj->tij", first, first)
    cosines = lambda v: (grams @ v) @ v / jnp.linalg.norm(grams, axis=(1, 2)) / (v @ v)
    start, early, late = (float(loss) for loss in flow["loss"])
    assert late < 1e-12 < 0.999 * start < early
    check = lambda v, early, late: np.testing.assert_allclose(cosines(v), [early, late], atol=1e-5)
    check(pull, 1, squared)
    check(beta, squared, 1)
    np.testing.assert_allclose(flow["layer_cosine_0"][1:], cosines(beta), rtol=1e-10)  # beta is what is least
    assert_fails(lambda: check(pull, 1, 1))  # no second turn
    assert squared < 0.9


@pytest.mark.slow
def test_validity():
    problem, _ = setting(1e-2, 0)
    validity = PHASE.check(problem)
    assert bool(validity.applies)
    assert not bool(validity.exact)
    with pytest.raises(js.NotApplicable, match="the start is small"):
        js.solve(setting(1.0, 0)[0], PHASE, 1.0)
    relu = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=3,
        depth=1,
        activation="relu",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    with pytest.raises(js.NotApplicable, match="linear activation: it has relu"):
        PHASE.growth(js.Problem(relu, jnp.ones((4, 2)), jnp.ones((4, 1))))


@pytest.mark.x64_only
def test_float32_keeps_its_digits():
    problem, _ = setting(1e-2, 0)
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem)

    @eqx.filter_jit
    def kernels(problem, ts):
        return jax.vmap(lambda t: PHASE.at(problem, t).kernel)(ts)

    ts = jnp.array([0.0, 0.3, 2.0])
    rough, fine = kernels(single, ts.astype(jnp.float32)), kernels(problem, ts)
    assert rough.dtype == jnp.float32
    assert float(jnp.max(jnp.abs(rough.astype(float) - fine)) / jnp.max(fine)) < 1e-6  # measured 1.1e-7


@pytest.mark.x64_only
def test_gradient_in_time_is_the_flow():
    """d/dt of the weights is -eta dL/dW of the linearized loss: a closed form differentiates through jit and grad."""
    problem, _ = setting(1e-3, 2)
    first, last = problem.params.weights
    pull = problem.x.T @ problem.y[:, 0] / SAMPLES
    slope = jax.jit(jax.jacfwd(lambda t: PHASE.at(problem, t).params.weights))(0.0)
    np.testing.assert_allclose(slope[0], np.outer(last[0], pull), rtol=1e-12)
    np.testing.assert_allclose(slope[1][0], first @ pull, rtol=1e-12)


def test_small_overlaps_keep_their_digits():
    """A start without read-out: |a|^2 = 1e-20 beside |w|^2 = 1, and 1e-20 + sinh(t)^2 when w grows into it."""
    at = lambda t, **overlaps: early_overlaps(
        jnp.array([overlaps.get(name, 0.0) for name in ("r1", "aa", "r3", "r4", "ww")]), t, s=1.0, a=0.7, b=1.0
    )
    np.testing.assert_allclose(at(0.0, aa=1e-20, ww=1.0)[1], 1e-20, rtol=eps(10))
    np.testing.assert_allclose(at(0.0, r1=1e-20, r4=1.0)[0], 1e-20, rtol=eps(10))
    np.testing.assert_allclose(at(0.0, r3=1e-20, ww=1.0)[2], 1e-20, rtol=eps(10))
    np.testing.assert_allclose(at(0.0, aa=1.0, ww=1e-20)[4], 1e-20, rtol=eps(10))
    for t in (1e-9, 1e-4, 0.3, 0.6, 3.0):
        np.testing.assert_allclose(at(t, aa=1e-20, ww=1.0)[1], 1e-20 + np.sinh(t) ** 2, rtol=eps(100))


def test_a_large_part_where_inputs_vary_little_is_no_small_start():
    """Components of the first layer count by what inputs see of them; by squares of variances they would not."""
    root = 2**0.5
    x, y = root * jnp.diag(jnp.array([1.0, 0.1])), jnp.array([root, 0.0])
    scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 1.0])

    def problem(size):
        init = js.nets.Given([jnp.array([[1e-3, size]]), jnp.array([[1e-3]])])
        return js.Problem(
            js.nets.TwoLayerLinear(in_size=2, width_size=1, scaling=scaling, init=init, key=jax.random.key(0)), x, y
        )

    assert bool(PHASE.check(problem(1e-2)).applies)
    assert not bool(PHASE.check(problem(5.0)).applies)  # 0.01 * 25 beside 1: the read-out grows at .88, not at 1
    found = float(PHASE.check(problem(5.0)).assumptions[-1].violation)
    assert found == pytest.approx(0.25 / 1.25, rel=1e-4)
