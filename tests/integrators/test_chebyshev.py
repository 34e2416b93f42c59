import functools
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import mpmath
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from jaxsolve import GradientFlow, observe, RESULTS, solve
from jaxsolve.integrators import RungeKuttaChebyshev
from tests import cases
from tests.inside import chebyshev as _chebyshev


def _step(field, y0, h, *, steps: int = 1, solver: Any = RungeKuttaChebyshev()) -> tuple[Any, list[Any]]:
    """Steps of size h from t = 0: what the last one returns, and the states after all of them."""
    terms, no_jump = diffrax.ODETerm(field), jnp.array(False)

    def run(y, h):
        outs, states, t = [], [solver.init(terms, jnp.zeros_like(h), h, y, None)], jnp.zeros_like(h)
        for _ in range(steps):
            outs.append(solver.step(terms, t, t + h, y, None, states[-1], no_jump))
            y, t, states = outs[-1][0], t + h, [*states, outs[-1][3]]
        return outs[-1], states[1:]

    return jax.jit(run)(y0, h)


def _solve(field, y0, end, *, dt0=None, solver=RungeKuttaChebyshev(), **options) -> tuple[Any, Any]:
    """Its end, and all that diffrax says of it."""
    saveat = diffrax.SaveAt(t1=True, solver_state=True)
    solution = diffrax.diffeqsolve(diffrax.ODETerm(field), solver, 0.0, end, dt0, y0, saveat=saveat, **options)
    assert solution.ys is not None
    return solution.ys[0], solution


def _adaptive(rtol, **options):
    return {"stepsize_controller": diffrax.PIDController(rtol=rtol, atol=rtol), **options}


# --- the polynomials


def _exact_chebyshev(m, j, s, damping=2 / 13):
    """By hyperbolic functions, in 40 digits."""
    with mpmath.workdps(40):
        theta = mpmath.acosh(1 + mpmath.mpf(damping) / s**2)
        cosh, sinh = mpmath.cosh(j * theta), mpmath.sinh(j * theta)
        first = j * sinh / mpmath.sinh(theta)
        return (cosh, first, (j**2 * cosh - mpmath.coth(theta) * j * sinh) / mpmath.sinh(theta) ** 2)[m]


@pytest.mark.parametrize("m", [0, 1, 2])
def test_chebyshev_polynomials_are_correct_to_rounding(m):
    pairs = np.array([(j, s) for s in (2, 3, 7, 50, 250, 1000) for j in (1, 2, s // 2 + 1, s - 1, s) if j > m - 1])
    found = jax.jit(jax.vmap(functools.partial(_chebyshev, m)))(*jnp.asarray(pairs.T, float))

    def check(damping):
        exact = np.array([float(_exact_chebyshev(m, int(j), int(s), damping)) for j, s in pairs])
        np.testing.assert_allclose(found, exact, rtol=cases.eps(10))  # measured: 1.2

    check(2 / 13)
    cases.assert_fails(lambda: check(1e-12))  # without damping, up to what 40 digits can tell from 0


def test_so_many_stages_are_stable():
    """The interval ends where w_0 + w_1 z = -1."""
    s = jnp.arange(2.0, 1000.0)
    slope = jax.vmap(lambda s: _chebyshev(1, s, s) / _chebyshev(2, s, s))(s)
    ends = (2 + 2 / 13 / s**2) / slope
    assert np.all(ends > (s**2 - 1) / 1.54)
    assert np.all(ends < 1.02 * (s**2 - 1) / 1.54)  # and few are wasted


STIFFNESS = jnp.array([1.0, 30.0, 2e3, 3e4])


@functools.cache
def _decays():
    """One step of size 1 for y_k' = -r_k y_k at 41 rates up to each stiffness."""

    def step(stiffness):
        rates = stiffness * jnp.linspace(0, 1, 41)
        out, states = _step(lambda t, y, args: -rates * y, jnp.ones(41), jnp.ones(()), steps=2)
        return rates, out[0], states

    return jax.jit(jax.vmap(step))(STIFFNESS.astype(float))


def _stability(z, s, damping=2 / 13):
    value, first, second = (_exact_chebyshev(m, s, s, damping) for m in range(3))
    with mpmath.workdps(40):
        w0, w1 = 1 + mpmath.mpf(damping) / s**2, first / second
        return float(1 + second / first**2 * (mpmath.chebyt(s, w0 + w1 * mpmath.mpf(z)) - value))


def _stages(states):
    return np.asarray(states[1].evaluations - states[0].evaluations)  # the second step estimates nothing


def test_a_step_is_its_stability_polynomial():
    rates, twice, states = _decays()
    stages = _stages(states)
    assert stages.tolist() == (1 + np.sqrt(1 + 1.54 * 1.2 * np.asarray(states[0].radius))).astype(int).tolist()
    assert stages[0] == 2
    assert stages[-1] > 200

    def check(damping):
        expected = [
            [_stability(-float(r), int(s), damping) ** 2 for r in row] for row, s in zip(rates, stages, strict=True)
        ]
        np.testing.assert_allclose(twice, expected, rtol=0, atol=5e-13 if cases.X64 else 5e-5)  # measured: 6e-14, 5e-6

    check(2 / 13)
    assert np.all(np.abs(twice) <= 1)
    cases.assert_fails(lambda: check(1e-12))  # without damping


def test_stages_grow_like_the_root_of_the_stiffness():
    stages = _stages(_decays()[2])[1:]
    assert 0.45 < np.polyfit(np.log(STIFFNESS[1:]), np.log(stages), 1)[0] < 0.55


# --- order


RATES = jnp.geomspace(1, 1e4, 9)


def _forced(t, y, args):
    """Linear, stiff and driven; it starts on its slow solution."""
    return -RATES.astype(y.dtype) * y + jnp.cos(t)


def _exact_forced(t):
    rates = np.asarray(RATES)
    return (rates * np.cos(t) + np.sin(t)) / (1 + rates**2)


KAPS = 1e4


def _kaps(t, y, args):
    """Kaps' problem: nonlinear, stiff in one direction, solved by (e^-2t, e^-t)."""
    return jnp.stack([-(KAPS + 2) * y[0] + KAPS * y[1] ** 2, y[0] - y[1] - y[1] ** 2])


def _exact_kaps(t):
    return np.exp([-2 * t, -t])


@functools.cache
def _convergence(field, exact, counts=(8, 16, 32, 64)):
    start = jnp.asarray(exact(0.0), float)
    return [_solve(field, start, 1.0, dt0=jnp.asarray(1 / n, float))[0] for n in counts]


@pytest.mark.x64_only
@pytest.mark.parametrize(("field", "exact"), [(_forced, _exact_forced), (_kaps, _exact_kaps)])
def test_order_2(field, exact):
    def check(missing):
        counts = np.array([8, 16, 32, 64])
        ends = [exact(1 - missing / n) for n in counts]
        errors = [np.max(np.abs(y - end)) for y, end in zip(_convergence(field, exact), ends, strict=True)]
        slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
        assert 1.9 < slope < 2.1, slope

    check(0)
    cases.assert_fails(lambda: check(1))  # the last step is left out


@functools.cache
def _single_steps():
    """One step of Kaps' problem at each size: what diffrax is given."""

    def step(h):
        (_, error, dense, _, _), _ = _step(_kaps, jnp.ones(2), h)
        return error, dense

    sizes = 0.2 * 0.5 ** np.arange(4.0)
    return sizes, jax.jit(jax.vmap(step))(jnp.asarray(sizes))


@pytest.mark.x64_only
@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
def test_between_steps_it_is_as_accurate_as_at_their_ends(part):
    """Of third order in one step."""
    sizes, (_, dense) = _single_steps()
    exact = np.array([_exact_kaps(part * h) for h in sizes])
    interpolate = lambda h, parts: RungeKuttaChebyshev.interpolation_cls(t0=0.0, t1=h, **parts).evaluate(part * h)

    def check(scale):
        parts = dense | {"k1": scale * dense["k1"]}
        errors = np.max(np.abs(jax.vmap(interpolate)(jnp.asarray(sizes), parts) - exact), axis=1)
        slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
        assert 2.6 < slope < 3.2, slope

    check(1.0)
    cases.assert_fails(lambda: check(0.0))  # the slope at the end of the step is left out


@pytest.mark.x64_only
def test_the_error_estimate_is_of_third_order_and_no_less_than_the_error():
    sizes, (estimate, dense) = _single_steps()
    exact = np.array([_exact_kaps(h) for h in sizes])
    estimates, errors = (np.max(np.abs(a), axis=1) for a in (estimate, dense["y1"] - exact))
    assert 2.6 < np.polyfit(np.log(sizes), np.log(estimates), 1)[0] < 3.2
    assert np.all(estimates > errors)
    solver = RungeKuttaChebyshev()
    assert (solver.order(None), solver.error_order(None)) == (2, 3)


@pytest.mark.x64_only
def test_steps_follow_the_tolerance():
    """Their number grows like rtol^(-1/3), and the error falls like rtol^(2/3)."""
    rtols, start = (1e-6, 1e-8), jnp.asarray(_exact_forced(0.0))
    ends, solutions = zip(*[_solve(_forced, start, 1.0, **_adaptive(jnp.asarray(rtol))) for rtol in rtols], strict=True)
    power = lambda values: np.polyfit(np.log(rtols), np.log(values), 1)[0]
    assert -0.36 < power([solution.stats["num_steps"] for solution in solutions]) < -0.28
    assert 0.6 < power([np.max(np.abs(y - _exact_forced(1.0))) for y in ends]) < 0.75


# --- stability and the spectral radius


def test_it_is_stable_where_other_methods_blow_up():
    rates = jnp.asarray([1e4, 3e3, 1.0], float)
    field = lambda t, y, args: -rates * y
    ours = _step(field, jnp.ones(3), jnp.ones(()))[0][0]
    theirs = _step(field, jnp.ones(3), jnp.ones(()), solver=diffrax.Tsit5())[0][0]
    assert np.abs(ours).max() < 1
    assert np.abs(theirs).max() > 1e10


def _radius(field, y0, h=1.0):
    return float(_step(field, y0, jnp.asarray(h, float))[1][0].radius)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_radius_of_a_diagonal_matrix(start):
    """Also where the field has nothing of the stiffest direction, as at balanced labels."""
    rates = jnp.asarray([700.0, 300.0, 100.0, 10.0, 1.0, 0.0], float)
    y0 = jnp.ones(6).at[0].set(start)
    radius = _radius(lambda t, y, args: -rates * y, y0)
    np.testing.assert_allclose(radius, 700, rtol=5e-3)  # measured: 8e-4


def test_radius_of_a_transformed_field():
    """The gradient of a loss of a pytree, through vmap and jit."""
    x = jr.normal(jr.key(0), (30, 4))

    def loss(w):
        outputs = jax.vmap(lambda row: jnp.tanh(row @ w["in"]) @ w["out"])(x)
        return jnp.sum((outputs - 1) ** 2)

    gradient = jax.jit(jax.grad(loss))
    y0 = {"in": jr.normal(jr.key(1), (4, 3)), "out": jnp.ones(3)}
    flat, unravel = ravel_pytree(y0)
    hessian = jax.jacfwd(lambda v: ravel_pytree(gradient(unravel(v)))[0])(flat)
    radius = _radius(lambda t, y, args: jax.tree.map(jnp.negative, gradient(y)), y0, 1e-2)
    exact = np.abs(np.linalg.eigvalsh(hessian)).max()
    assert 0.95 * exact < radius <= exact * (1 + cases.eps(100))  # a safety factor of 1.2 covers that


def test_a_flat_field_has_no_radius():
    out, (state,) = _step(lambda t, y, args: jnp.full_like(y, 2.0), jnp.zeros(3), jnp.ones(()))
    assert state.radius == 0
    np.testing.assert_allclose(out[0], 2.0, rtol=cases.eps(4))


def test_a_step_of_no_length_forgets_nothing():
    terms, solver, h = diffrax.ODETerm(lambda t, y, args: -300.0 * y), RungeKuttaChebyshev(), jnp.asarray(0.1)
    step = jax.jit(lambda t0, t1, y, state: solver.step(terms, t0, t1, y, None, state, jnp.array(False)))
    start = jnp.ones(2), solver.init(terms, 0 * h, h, jnp.ones(2), None)
    y, *_, before, _ = step(0 * h, h, *start)
    assert before.radius > 0
    stayed, *_, after, _ = step(h, h, y, before)
    np.testing.assert_array_equal(stayed, y)
    for kept in ("radius", "age", "size"):
        assert getattr(after, kept) == getattr(before, kept), kept
    known, asked = (step(h, 2 * h, y, state)[3].evaluations - state.evaluations for state in (after, start[1]))
    assert known < asked  # which must find the stiffness


@pytest.mark.x64_only
def test_a_direction_that_becomes_the_stiffest_is_found():
    """The eigenvectors stay as they are, so the old one alone would never lead to the new."""

    def field(t, y, args):
        rates = jnp.stack([jnp.asarray(1e3), 1e5 * t, jnp.asarray(1.0)])
        return -rates * (y - jnp.cos(t)) - jnp.sin(t)

    y, solution = _solve(field, jnp.ones(3), 1.0, **_adaptive(1e-5))
    assert solution.solver_state.radius > 1e5 / 1.2
    assert solution.stats["num_rejected_steps"] < 2 * solution.stats["num_accepted_steps"]
    np.testing.assert_allclose(y, np.cos(1), rtol=1e-4)  # measured: 4e-5


def test_evaluations_are_those_that_happen():
    calls = []

    def field(t, y, args):
        jax.debug.callback(lambda: calls.append(1))
        return -jnp.asarray([300.0, 10.0, 1.0]) * y

    _, (first, second) = _step(field, jnp.ones(3), jnp.asarray(1.0), steps=2)
    jax.effects_barrier()
    stages = int(second.evaluations - first.evaluations)
    products = (int(first.evaluations) - stages) // 2
    assert products >= 2
    assert len(calls) == 2 * stages + products


def test_a_jump_makes_it_look_again():
    field = lambda t, y, args: -jnp.asarray([300.0, 10.0]) * y * args
    terms, solver, h = diffrax.ODETerm(field), RungeKuttaChebyshev(), jnp.asarray(0.1)
    step = jax.jit(lambda y, args, state, made_jump: solver.step(terms, h, 2 * h, y, args, state, made_jump))
    before = step(jnp.ones(2), 1.0, solver.init(terms, h, 2 * h, jnp.ones(2), 1.0), jnp.array(False))[3]
    expected = step(jnp.ones(2), 7.0, solver.init(terms, h, 2 * h, jnp.ones(2), 7.0), jnp.array(False))
    found = step(jnp.ones(2), 7.0, before, jnp.array(True))
    missed = step(jnp.ones(2), 7.0, before, jnp.array(False))
    np.testing.assert_allclose(found[0], expected[0], rtol=cases.eps(10))
    np.testing.assert_allclose(found[2]["k0"], expected[2]["k0"], rtol=cases.eps(4))
    np.testing.assert_allclose(found[3].radius, 2100, rtol=1e-6)
    assert np.abs(missed[0]).max() > 10


# --- too stiff, and bad arguments


def test_a_step_that_needs_too_many_stages_is_made_shorter():
    rates = jnp.asarray([1e4, 1.0], float)
    field, y0, solver = lambda t, y, args: -rates * (y - 1), jnp.array([1.0, 2.0]), RungeKuttaChebyshev(max_stages=10)
    y1, error, _, _, result = _step(field, y0, jnp.ones(()), solver=solver)[0]
    assert np.all(np.isinf(error))
    np.testing.assert_array_equal(y1, y0)
    assert result == diffrax.RESULTS.nonfinite
    y, solution = _solve(field, y0, 1.0, solver=solver, dt0=0.5, **_adaptive(1e-4))
    np.testing.assert_allclose(y, [1, 1 + np.exp(-1)], rtol=2e-6)  # measured: 2e-7
    assert solution.stats["num_rejected_steps"] > 0
    sizes = 1.0 / solution.stats["num_accepted_steps"]
    assert sizes < 99 / 1.54 / 1e4 * 1.2


def test_with_constant_steps_it_fails_aloud():
    field, solver = lambda t, y, args: -1e4 * y, RungeKuttaChebyshev(max_stages=10)
    with pytest.raises(eqx.EquinoxRuntimeError, match="Nonfinite"):
        _solve(field, jnp.ones(1), 1.0, solver=solver, dt0=0.5)


def test_a_field_that_is_not_finite_ends_the_step_at_once():
    (y1, error, *_), (state,) = _step(lambda t, y, args: y * jnp.nan, jnp.ones(2), jnp.ones(()))
    assert np.all(np.isinf(error))
    assert state.evaluations == 2


def test_bad_arguments(as_users):
    with pytest.raises(ValueError, match="max_stages must be >= 2, for a method of order 2, got 1"):
        RungeKuttaChebyshev(max_stages=1)
    with pytest.raises(TypeError, match=r"max_stages must be an integer >= 1, got float 2\.5"):
        RungeKuttaChebyshev(max_stages=2.5)  # pyright: ignore


# --- transforms


@functools.cache
def _driven():
    """An adaptive solve as a function of stiffness: its end and its evaluations."""

    def run(stiffness):
        def field(t, y, args):
            return -stiffness * (y - jnp.stack([jnp.cos(t), jnp.sin(t)])) - 0.1 * y**3

        y, solution = _solve(field, jnp.array([1.0, 0.5]), 1.0, adjoint=diffrax.ForwardMode(), **_adaptive(1e-4))
        return y, solution.solver_state.evaluations

    return run


@pytest.mark.slow
def test_each_lane_is_what_it_is_alone():
    stiffness = jnp.asarray([1.0, 1e2, 1e4], float)
    batch = jax.jit(jax.vmap(_driven()))
    together, counts = batch(stiffness)
    alone = jax.jit(_driven())
    for index, value in enumerate(stiffness):
        # By the same program the other lanes change no bit.
        np.testing.assert_array_equal(together[index], batch(jnp.full(3, value))[0][index])
        y, count = alone(value)
        # One unit of rounding in a stiffness of 1e4 moves the end by up to 4e-9, as steps follow their estimated error;
        # lanes were 1e-9 apart. Below 4e-15, and 4e-6 in float32.
        tolerance = 2e-5 if not cases.X64 else 1e-8 if value == 1e4 else 4e-14
        np.testing.assert_allclose(together[index], y, rtol=0, atol=tolerance)
        np.testing.assert_allclose(counts[index], count, rtol=0.1)  # measured: 0 and 0.03
    assert len(set(counts.tolist())) == 3


@pytest.mark.x64_only
def test_derivative_of_a_step():
    field = lambda t, y, args: -args * y**3 - 500 * (y - 0.3 * jnp.sin(y[::-1]))

    def run(p):
        terms, solver, h = diffrax.ODETerm(field), RungeKuttaChebyshev(), jnp.asarray(0.1)
        y0, total = jnp.array([1.0, 0.3]) * p, 0.0
        state = solver.init(terms, h, h, y0, p)
        for step in range(2):
            y0, error, _, state, _ = solver.step(terms, step * h, step * h + h, y0, p, state, jnp.array(False))
            total = total + jnp.sum(y0 * jnp.array([1.0, 2.0])) + jnp.sum(error)
        return total

    p, eps = 1.3, 1e-5
    run = jax.jit(run)
    value, slope = jax.jvp(run, (p,), (1.0,))
    difference = (run(p + eps) - run(p - eps)) / (2 * eps)
    np.testing.assert_allclose(slope, difference, rtol=2e-10)  # measured: 5e-11, of the difference
    assert abs(slope) > 1e-2 * abs(value)


@pytest.mark.x64_only
def test_derivative_of_a_solve():
    """Against the solution's own: y' = -p (y - cos t) has one of a formula."""

    def run(p):
        options = _adaptive(1e-7, args=p, adjoint=diffrax.ForwardMode())
        return _solve(lambda t, y, args: -args * (y - jnp.cos(t)), jnp.ones(1), 1.0, **options)[0][0]

    def exact(p):
        return (p**2 * jnp.cos(1.0) + p * jnp.sin(1.0) + jnp.exp(-p)) / (1 + p**2)

    found = jax.jit(lambda p: jax.jvp(run, (p,), (1.0,)))(200.0)
    expected = jax.jvp(exact, (200.0,), (1.0,))
    np.testing.assert_allclose(found, expected, rtol=7e-5)  # measured: 7e-6


def test_reverse_mode_is_refused_by_jax():
    run = lambda y: jnp.sum(_step(lambda t, y, args: -y, y, jnp.ones(()))[0][0])
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(run))(jnp.ones(2))


def test_pytrees_and_other_dtypes():
    """A state in parts of several shapes and dtypes moves as the same in one array."""
    rates = jnp.array([[50.0, 3.0], [1.0, 0.2]], jnp.float32)
    flat = _step(lambda t, y, args: -rates.ravel() * y, jnp.ones(4, jnp.float32), jnp.asarray(0.3, jnp.float32))[0]
    field = lambda t, y, args: {"a": -rates[0] * y["a"], "b": (-rates[1] * y["b"][0],)}
    start = {"a": jnp.ones(2, jnp.float32), "b": (jnp.ones(2, jnp.float32),)}
    parts = _step(field, start, jnp.asarray(0.3, jnp.float32))[0]
    for index in (0, 1):
        assert flat[index].dtype == jnp.float32
        np.testing.assert_allclose(ravel_pytree(parts[index])[0], flat[index], rtol=0, atol=1e-6)


# --- as the integrator of a gradient flow


@pytest.fixture(scope="module")
def stiff():
    """A two-layer network on long inputs."""
    problem = cases.problem(cases.mlp(jr.key(3), depth=1), jr.key(4), n=6)
    problem = eqx.tree_at(lambda p: p.x, problem, 20 * problem.x)
    ts = jnp.array([0.0, 0.1, 1.0, 40.0])
    return problem, ts


def test_gradient_flow_agrees_with_scipy(stiff):
    problem, ts = stiff
    flow = GradientFlow(RungeKuttaChebyshev(), rtol=1e-6 if cases.X64 else 1e-4)
    run = solve(problem, flow, ts, observe=observe.outputs())
    assert run.result == RESULTS.successful

    def check(scale, atol):
        by_hand = cases.by_hand(problem, "tanh", eta=problem.net.scaling.eta.at[0].multiply(scale))
        field = lambda t, theta: -by_hand.eta * by_hand.loss_and_gradient(theta)[1]
        with np.errstate(invalid="ignore"):  # SciPy's first step reads memory that it has not written
            path = solve_ivp(field, (0, 40), by_hand.start, "BDF", t_eval=np.asarray(ts), rtol=1e-9, atol=1e-11).y.T
        outputs = np.array([by_hand.outputs(theta) for theta in path])
        np.testing.assert_allclose(run["outputs"], outputs, rtol=0, atol=atol)

    check(1.0, 1e-4 if cases.X64 else 3e-3)  # measured: 2e-5, 9e-4
    cases.assert_fails(lambda: check(0.0, 3e-3))  # the first layer's rate is left out
