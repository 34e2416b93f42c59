import functools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import mpmath
import numpy as np
import optax
import pytest
import scipy.special
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq

from jaxsolve import Descent, GradientFlow, MomentumFlow, nets, observe, Problem, result_names, RESULTS, solve, until
from jaxsolve.integrators import FunctionSpace, HOCHBRUCK_OSTERMANN_3, KROGSTAD, ParameterSpace
from tests import cases
from tests.inside import result_code


def _certificate(trajectory):
    assert trajectory.certificate is not None
    return trajectory.certificate


def _flow(kind: str, value: Any, **options: Any) -> MomentumFlow:
    return MomentumFlow(tau=value, **options) if kind == "tau" else MomentumFlow(mu=value, **options)


WEIGHTS = observe.parameters()
TIGHT = {"rtol": 1e-9, "atol": 1e-12} if cases.X64 else {"rtol": 1e-5, "atol": 1e-8}
RATES, START = (1.0, 3.0), (2.0, -1.0)
TS = (0.0, 0.01, 0.3, 1.0, 2.7, 6.0)


# One weight: L = r w^2/2


def _oscillator(rate, tau, t):
    """tau w'' + w' + r w = 0 from w = 1 at rest: exp(s t) with the roots of tau s^2 + s + r = 0."""
    root = np.sqrt(complex(1 - 4 * tau * rate))
    if abs(root) < 1e-12:
        return np.exp(-t / (2 * tau)) * (1 + t / (2 * tau))
    a, b = (-1 + root) / (2 * tau), (-1 - root) / (2 * tau)
    return ((b * np.exp(a * t) - a * np.exp(b * t)) / (b - a)).real


def _bessel(rate, mu, t):
    """(t/mu) w'' + w' + r w = 0 from w = 1: Gamma(mu) z^(1-mu) J_{mu-1}(2 z), z^2 = mu r t, whose series is 0F1."""
    return np.vectorize(lambda t: float(mpmath.hyp0f1(mu, -mu * rate * t)))(t)


SOLUTIONS = {"tau": _oscillator, "mu": _bessel}


def _decay(kind, start, rates, value):
    flow = _flow(kind, value, **TIGHT, land_on_ts=True)
    return solve(cases.modes(start, rates), flow, jnp.asarray(TS), observe=WEIGHTS)


@functools.cache
def _compiled(kind):
    return jax.jit(functools.partial(_decay, kind))


def _followed(kind, value, rates=RATES, start=START):
    return _compiled(kind)(*(jnp.asarray(a, jnp.result_type(float)) for a in (start, rates, value)))


def _solution(kind, value, rates=RATES, start=START):
    return np.stack([w * SOLUTIONS[kind](r, value, np.asarray(TS)) for w, r in zip(start, rates, strict=True)], axis=1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param("tau", 1 / 4, id="critical and underdamped"),
        pytest.param("tau", 1 / 12, id="overdamped and critical"),
        ("tau", 5.0),
        ("mu", 1.0),
        ("mu", 3.0),
        ("mu", 30.0),
        ("mu", 300.0),
    ],
)
def test_one_weight_is_a_damped_oscillator(kind, value):
    bound = 3e-9 if cases.X64 else 4e-6
    run = _followed(kind, value)
    np.testing.assert_allclose(run["parameters"], _solution(kind, value), rtol=0, atol=bound)
    without_inertia = np.stack([w * np.exp(-r * np.asarray(TS)) for w, r in zip(START, RATES, strict=True)], axis=1)
    for off in (without_inertia, _solution(kind, value, rates=RATES[::-1])):
        assert np.abs(run["parameters"] - off).max() > 3 * bound
    assert _certificate(run).energy_balance < (2e-9 if cases.X64 else 1e-5)


@pytest.mark.x64_only
@pytest.mark.parametrize("mu", [0.4, 2.0, 10.0])
def test_the_start_of_varying_tau_is_that_of_its_power_series(mu):
    """w = 1 - r t + mu/(1 + mu) (r t)^2/2 - ...; another velocity at the start would show in the first terms."""
    rt = np.array(RATES) * TS[1]
    rest = -(mu**2) / ((mu + 1) * (mu + 2)) * rt**3 / 6
    measured = _followed("mu", mu)["parameters"][1] / np.array(START)
    close = lambda second: np.testing.assert_allclose(measured - (1 - rt + second * rt**2 / 2), rest, rtol=0.02)
    close(mu / (1 + mu))  # measured: 6e-3
    cases.assert_fails(lambda: close(1.0))  # as without inertia


@pytest.mark.x64_only
@given(
    kind=st.sampled_from(["tau", "mu"]), value=st.floats(0.5, 20.0), rate=st.floats(0.1, 10.0), start=st.floats(0.1, 10)
)
@settings(max_examples=40)
def test_any_oscillator(kind, value, rate, start):
    rates, starts = (rate, 0.5 * rate), (start, -start)
    run = _followed(kind, value, rates, starts)
    assert run.result == RESULTS.successful
    np.testing.assert_allclose(run["parameters"], _solution(kind, value, rates, starts), rtol=0, atol=1e-7 * start)
    assert _certificate(run).energy_balance < 1e-8


@pytest.mark.x64_only
@pytest.mark.parametrize(("kind", "sign"), [("tau", 1), ("mu", -1)])
def test_gradient_flow_is_the_limit(kind, sign):
    """In proportion to tau (after a time of its size), and to 1/mu."""
    limit = np.array(START) * np.exp(-np.asarray(TS)[:, None] * np.array(RATES))
    values = np.array([0.002, 0.004, 0.008]) ** sign
    errors = [np.abs(_followed(kind, value)["parameters"] - limit)[2:].max() for value in values]
    assert 0.97 < sign * np.polyfit(np.log(values), np.log(errors), 1)[0] < 1.03


@pytest.mark.x64_only
def test_descent_with_momentum_follows_it():
    """The heavy ball at rate r = tau (1 - beta)^2, whose steps are r/(1 - beta) long: first order in the step."""
    errors, steps = [], (0.02, 0.005)
    for step in steps:
        beta = 1 - step / 0.4
        descent = Descent(optax.sgd(0.4 * (1 - beta) ** 2, momentum=beta))
        ts = (0.0, 0.1, 0.3, 1.0, 2.0, 6.0)
        run = solve(cases.modes(START, RATES), descent, ts, observe=WEIGHTS)["parameters"]
        exact = [w * _oscillator(r, 0.4, np.asarray(ts)) for w, r in zip(START, RATES, strict=True)]
        errors.append(np.abs(run - np.stack(exact, axis=1)).max())
    assert 0.9 < np.polyfit(np.log(steps), np.log(errors), 1)[0] < 1.1


@pytest.mark.x64_only
def test_order():
    """Steps of one size, which land on every time because the tolerance does not bind."""
    errors, counts = [], (20, 40, 80)
    for count in counts:
        ts = jnp.concatenate([jnp.zeros(80 - count), jnp.linspace(0, 4, count + 1)])
        flow = MomentumFlow(tau=0.5, rtol=1.0, atol=1.0, land_on_ts=True)
        run = solve(cases.modes(START, RATES), flow, ts, observe=WEIGHTS)
        exact = [w * _oscillator(r, 0.5, np.asarray(ts)) for w, r in zip(START, RATES, strict=True)]
        assert run.stats.steps == count
        errors.append(np.abs(run["parameters"] - np.stack(exact, axis=1)).max())
    assert 4.8 < -np.polyfit(np.log(counts), np.log(errors), 1)[0] < 5.8


@pytest.mark.x64_only
@pytest.mark.parametrize(("kind", "value"), [("tau", 0.7), ("mu", 2.0)])
def test_derivatives(kind, value):
    """Forward mode goes through the march."""
    of = lambda v: _followed(kind, v)["parameters"][-1]
    _, slope = jax.jvp(of, (jnp.asarray(value),), (jnp.asarray(1.0),))
    difference = (_solution(kind, value + 1e-6) - _solution(kind, value - 1e-6))[-1] / 2e-6
    np.testing.assert_allclose(slope, difference, rtol=1e-6)


VALUES = (0.1, 0.0, 1.0, -1.0, jnp.nan, jnp.inf, 7.0)


@pytest.fixture(scope="module")
def lanes():
    """Good and bad values of tau in one batch."""
    run = functools.partial(_decay, "tau", jnp.asarray(START), jnp.asarray(RATES))
    return jax.jit(jax.vmap(run))(jnp.array(VALUES))


def test_lanes_are_those_run_alone(lanes):
    for lane in (0, 2, 6):
        alone = _followed("tau", VALUES[lane])
        np.testing.assert_allclose(
            lanes["parameters"][lane], alone["parameters"], rtol=0, atol=1e-12 if cases.X64 else 1e-6
        )
        assert lanes.t_end[lane] == alone.t_end


def test_bad_values_end_their_lane_only(lanes):
    names = list(result_names(result_code(lanes.result)))
    assert names == ["successful", "invalid", "successful", "invalid", "invalid", "invalid", "successful"]
    np.testing.assert_array_equal(lanes.stats.steps[np.array([1, 3, 4, 5])], 0)
    for mu in (0.0, jnp.nan):
        assert _followed("mu", mu).result == RESULTS.invalid


# Networks


def _network(**changes):
    """A tanh network with biases in which every hyperparameter differs, centered."""
    return cases.problem(cases.mlp(jr.key(3), depth=1, **changes), jr.key(4), centered=True)


@functools.cache
def _trained(kind, value, frozen=False):
    problem = _network(eta=np.array([0.0, 0.4]), bias_eta=0.0) if frozen else _network()
    options = {"rtol": 1e-11, "atol": 1e-13} if cases.X64 else TIGHT
    flow = _flow(kind, value, integrator=diffrax.Dopri8(), **options, land_on_ts=True)
    return problem, solve(problem, flow, (0.0, 0.1, 0.7, 3.0), observe=WEIGHTS)


def _by_scipy(kind, value, eta=None):
    """The flow with back-propagation by hand; with tau = t/mu it starts at t = 1e-4 with three terms of the series."""
    hand = cases.by_hand(_network(), "tanh", eta=eta)
    force = lambda w: -hand.eta * hand.loss_and_gradient(w)[1]
    count = hand.start.size

    def field(t, y):
        tau = value if kind == "tau" else t / value
        return np.concatenate([y[count:], (force(y[:count]) - y[count:]) / tau])

    first, w, v = 0.0, hand.start, np.zeros(count)
    if kind == "mu":
        first, v = 1e-4, force(w)
        acceleration = value / (1 + value) * (force(w + 1e-5 * v) - force(w - 1e-5 * v)) / 2e-5
        w, v = w + first * v + first**2 / 2 * acceleration, v + first * acceleration
    ts = np.array([0.1, 0.7, 3.0])
    run = solve_ivp(field, (first, 3.0), np.concatenate([w, v]), "DOP853", t_eval=ts, rtol=1e-11, atol=1e-13)
    return run.y.T[:, :count]


NETWORKS = pytest.mark.parametrize(("kind", "value"), [("tau", 0.4), ("mu", 4.0)])


@pytest.mark.x64_only
@NETWORKS
def test_networks_agree_with_scipy(kind, value):
    problem, trajectory = _trained(kind, value)
    run = trajectory["parameters"]
    np.testing.assert_allclose(run[1:], _by_scipy(kind, value), rtol=0, atol=5e-12)
    assert np.abs(run[-1] - run[0]).max() > 0.1
    for layer in range(2):
        eta = problem.net.scaling.eta.at[layer].set(1.0)  # its rate left out
        assert np.abs(run[1:] - _by_scipy(kind, value, eta)).max() > 1e-4


@NETWORKS
def test_frozen_layers(kind, value):
    """eta = 0: no division by it, no motion, no energy."""
    problem, run = _trained(kind, value, frozen=True)
    net = run.final.net
    np.testing.assert_array_equal(net.weights[0], problem.net.weights[0])
    np.testing.assert_array_equal(net.biases[1], problem.net.biases[1])
    assert np.abs(net.weights[1] - problem.net.weights[1]).max() > 0.01
    assert _certificate(run).energy_balance < (6e-14 if cases.X64 else 4e-6)


# The certificate


@NETWORKS
def test_certificate(kind, value):
    certificate = _certificate(_trained(kind, value)[1])
    assert 0 < certificate.energy_balance < (6e-14 if cases.X64 else 2e-6)
    assert np.isnan(certificate.conserved_drift)
    assert 0 < certificate.step_error <= 1


@pytest.mark.x64_only
@pytest.mark.parametrize(("kind", "value"), [("tau", 0.4), ("mu", 4.0), ("mu", 0.3)])
def test_energy_balance_of_closed_forms(kind, value):
    """L falls by tau v^2/2 and by the integral of (1 - tau'/2) v^2."""
    problem, rate, t = cases.modes([1.0], [3.0]), 3.0, 0.7
    if kind == "tau":
        roots = [(-1 + sign * np.sqrt(complex(1 - 4 * value * rate))) / (2 * value) for sign in (1, -1)]
        velocity = lambda s: (np.prod(roots) * np.subtract(*np.exp(np.array(roots) * s)) / (roots[1] - roots[0])).real
    else:
        velocity = lambda s: -rate * scipy.special.hyp0f1(value + 1, -value * rate * s)
    tau, slope = (value, 0.0) if kind == "tau" else (t / value, 1 / value)
    heat = (1 - slope / 2) * quad(lambda s: velocity(s) ** 2, 0, t, epsabs=1e-13)[0]
    y = jnp.array([SOLUTIONS[kind](rate, value, t), tau * velocity(t), heat])

    def balance(y):
        system = _flow(kind, value).system(problem)
        return float(system.certificate(jnp.asarray(t), y, jnp.zeros(())).energy_balance)

    assert balance(y) < 1e-12
    for term in range(3):  # the weight, its velocity, the heat
        assert balance(y.at[term].set(0)) > 1e-3


# until, and other integrators


@pytest.mark.parametrize(("kind", "value"), [("tau", 2.0), ("mu", 2.0)])
def test_until_is_located_where_it_is_first_met(kind, value):
    """The loss swings, and crosses the threshold more than once."""
    loss = lambda t: 1.5 * SOLUTIONS[kind](3.0, value, t) ** 2
    grid = np.linspace(0, 3, 301)
    below = np.array([loss(t) for t in grid]) < 0.02
    first = int(np.argmax(below))
    assert not np.all(below[first:])
    event = brentq(lambda t: loss(t) - 0.02, grid[first - 1], grid[first], full_output=False)
    assert isinstance(event, float)
    flow = _flow(kind, value, **TIGHT, until=until.loss_below(0.02))
    run = solve(cases.modes([1.0], [3.0]), flow, [0.0, event / 2, 2.0, jnp.inf])
    assert run.result == RESULTS.event
    accuracy = 1e-8 if cases.X64 else 1e-5
    np.testing.assert_allclose(run.t_end, event, rtol=accuracy)
    np.testing.assert_allclose(run["loss"], [1.5, loss(event / 2), 0.02, 0.02], rtol=10 * accuracy)
    without = np.log(1.5 / 0.02) / 6  # the time of gradient flow, without momentum
    cases.assert_fails(lambda: np.testing.assert_allclose(run.t_end, without, rtol=accuracy))


@pytest.mark.x64_only
def test_an_implicit_integrator_passes_over_a_fast_relaxation():
    """An explicit one would need t/(3 tau) steps, 2e7."""
    flow = MomentumFlow(tau=1e-7, integrator=diffrax.Kvaerno5())
    run = solve(cases.modes(START, RATES), flow, TS, observe=WEIGHTS)
    exact = np.array(START) * np.exp(-np.asarray(TS)[:, None] * np.array(RATES))
    np.testing.assert_allclose(run["parameters"], exact, rtol=0, atol=5e-6)
    assert run.stats.steps < 100
    assert run.stats.gradient_evaluations == -1


# What is refused


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, r"exactly one of tau \(a constant.*\) and mu \(tau = t/mu\), got tau=None, mu=None"),
        ({"tau": 1.0, "mu": 2.0}, ValueError, "exactly one of tau.*got tau=1.0, mu=2.0"),
        ({"tau": 0.0}, ValueError, "tau must be one finite number > 0, got 0.0; without momentum, use GradientFlow"),
        ({"tau": -1.0}, ValueError, "tau must be one finite number > 0"),
        ({"tau": float("inf")}, ValueError, "tau must be one finite number > 0"),
        ({"tau": [1.0, 2.0]}, ValueError, "tau must be one finite number > 0"),
        ({"mu": 0.0}, ValueError, "mu must be one finite number > 0"),
        ({"mu": float("nan")}, ValueError, "mu must be one finite number > 0"),
        ({"tau": 1.0, "integrator": "Tsit5"}, TypeError, r"diffrax solver such as diffrax\.Tsit5\(\), got str 'Tsit5'"),
        ({"tau": 1.0, "integrator": diffrax.Euler()}, ValueError, "Euler gives no error estimate"),
        (
            {"tau": 1.0, "integrator": ParameterSpace()},
            ValueError,
            "takes .*FunctionSpace.* or None .*; got ParameterSpace",
        ),
        ({"mu": 1.0, "integrator": FunctionSpace()}, ValueError, "FunctionSpace needs a constant relaxation time"),
        ({"tau": 1.0, "rtol": 0.0}, ValueError, "rtol must be > 0 or None, got 0.0"),
        ({"tau": 1.0, "atol": -1.0}, ValueError, "atol must be > 0 or None"),
        ({"tau": 1.0, "until": 1e-3}, TypeError, r"until must be a condition such as until\.loss_below\(1e-5\)"),
        ({"tau": 1.0, "max_steps": 0}, ValueError, "max_steps must be an integer >= 1, got 0"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        MomentumFlow(**arguments)


def test_no_end_without_a_condition():
    with pytest.raises(ValueError, match=r"ts ends in inf, which MomentumFlow\(tau\) reaches only with a condition"):
        solve(cases.modes(START, RATES), MomentumFlow(tau=0.1), [0.0, jnp.inf])


# In function space


LONG = (0.0, 0.1, 0.7, 3.0)


def _stiff(**changes):
    """More outputs than an explicit method is chosen for, and rates that differ between layers."""
    problem = cases.problem(cases.mlp(jr.key(3), depth=1, **changes), jr.key(4), n=9, centered=True)
    assert problem.y.size > 16
    return problem


def _gone(problem, tau, ts, **options):
    """Displacements at times, and the run."""
    run = solve(problem, MomentumFlow(tau=tau, **options), ts, observe=WEIGHTS)
    return run["parameters"] - run["parameters"][:1], run


@functools.cache
def _explicit(tau, *ts):
    return _gone(_stiff(), tau, (0.0, *ts), integrator=diffrax.Dopri8(), rtol=1e-11, atol=1e-13, land_on_ts=True)[0]


@pytest.mark.x64_only
@pytest.mark.parametrize("tau", [0.02, 0.4, 20.0])
def test_function_space_agrees_with_explicit_methods(tau):
    """At the ends of steps and between them."""
    found, run = _gone(_stiff(), tau, LONG, integrator=FunctionSpace(), rtol=1e-5)
    expected = _explicit(tau, *LONG[1:])
    errors = lambda found: np.linalg.norm(found - expected, axis=1)[1:] / np.linalg.norm(expected, axis=1)[1:]
    assert run.stats.integrator == "InertialFunctionSpace"
    assert run.stats.kernel_evaluations == run.stats.steps + run.stats.rejected
    assert errors(found).max() < 3e-5
    assert errors(_explicit(20.0 if tau < 1 else 0.4, *LONG[1:])).max() > 3e-3  # another tau
    assert _certificate(run).energy_balance < 1e-5
    assert np.isnan(_certificate(run).conserved_drift)


@pytest.mark.slow
@pytest.mark.x64_only
@pytest.mark.parametrize(("tableau", "order"), [(HOCHBRUCK_OSTERMANN_3, 3), (KROGSTAD, 4)])
def test_order_in_function_space(tableau, order):
    errors, counts, T = [], (8, 16, 32), 2.0
    for count in counts:
        ts = jnp.concatenate([jnp.zeros(32 - count), jnp.linspace(0, T, count + 1)])
        options = {"integrator": FunctionSpace(tableau=tableau), "rtol": 1e3, "land_on_ts": True}
        found, run = _gone(_stiff(), 0.4, ts, **options)
        assert run.stats.steps == count
        errors.append(np.linalg.norm(found[-1] - _explicit(0.4, T)[-1]))
    assert order - 0.1 < -np.polyfit(np.log(counts), np.log(errors), 1)[0] < order + 0.2


@pytest.mark.slow
@pytest.mark.x64_only
def test_derivative_in_tau_in_function_space():
    """The linear part is frozen, but the steps' derivatives are the flow's."""
    of = lambda tau: _gone(_stiff(), tau, (0.0, 2.0), integrator=FunctionSpace(), rtol=1e-6)[0][-1]
    _, slope = jax.jit(lambda tau: jax.jvp(of, (tau,), (jnp.ones(()),)))(jnp.asarray(0.4))
    difference = (_explicit(0.4 + 1e-4, 2.0) - _explicit(0.4 - 1e-4, 2.0))[-1] / 2e-4
    error = lambda slope: np.linalg.norm(slope - difference) / np.linalg.norm(difference)
    assert error(slope) < 1e-4
    assert error(slope.at[:3].set(0)) > 1e-3  # as if the first weights did not depend on it


@pytest.mark.slow
@pytest.mark.x64_only
def test_frozen_layers_in_function_space():
    problem = _stiff(eta=np.array([0.0, 0.4]), bias_eta=0.0)
    found, run = _gone(problem, 0.4, (0.0, 2.0), integrator=FunctionSpace(), rtol=1e-5)
    expected, _ = _gone(problem, 0.4, (0.0, 2.0), integrator=diffrax.Dopri8(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[-1], expected[-1], rtol=0, atol=1e-5 * float(np.linalg.norm(expected[-1])))
    assert np.sum(found[-1] == 0) > 3
    assert _certificate(run).energy_balance < 1e-5


def test_the_problem_chooses():
    chosen = lambda problem, **value: type(MomentumFlow(**value).choose(problem).integrator).__name__  # pyright: ignore[reportAttributeAccessIssue]
    assert chosen(_stiff(), tau=1.0) == "FunctionSpace"
    assert chosen(_stiff(), mu=1.0) == "Tsit5"
    assert chosen(_stiff(activation="relu"), tau=1.0) == "Tsit5"  # kinks
    assert chosen(_network(), tau=1.0) == "Tsit5"  # few outputs


@pytest.mark.x64_only
@pytest.mark.parametrize(
    "flow",
    [
        MomentumFlow(mu=2.0, integrator=diffrax.Tsit5(), rtol=1e-2, until=until.loss_below(0.1)),
        GradientFlow(diffrax.Tsit5(), rtol=1e-2, until=until.loss_below(0.1)),
    ],
    ids=lambda flow: flow.name,
)
def test_a_flow_at_rest_comes_to_the_end_of_time(flow):
    """Where nothing moves steps grow tenfold, until time itself would overflow."""
    net = nets.TwoLayerLinear(in_size=2, width_size=3, scaling=nets.Scaling.ntk(), key=jr.key(0))
    problem = Problem(net, jnp.zeros((2, 2)), jnp.ones((2, 1)))
    run = solve(problem, flow, [0.0, 1.0, jnp.inf], throw=False)
    assert run.result == RESULTS.max_time
    assert 1e150 < run.t_end < jnp.inf
    np.testing.assert_array_equal(run["loss"], 0.5)


def test_a_condition_is_met_where_a_swing_first_meets_it():
    """Where `FunctionSpace` would pass several swings in a step, the choice is another."""
    net = nets.MLP(
        in_size=5, out_size=1, width_size=64, depth=1, activation="tanh", scaling=nets.Scaling.lazy(10.0), key=jr.key(1)
    )
    x = jr.normal(jr.key(0), (30, 5))
    problem = Problem(net, x, jnp.sign(x[:, :1]), centered=True)
    run = solve(problem, MomentumFlow(tau=30.0, until=until.loss_below(0.1)), jnp.inf)
    close = MomentumFlow(tau=30.0, integrator=diffrax.Tsit5(), rtol=1e-5, until=until.loss_below(0.1))
    np.testing.assert_allclose(run.t_end, solve(problem, close, jnp.inf).t_end, rtol=1e-3)
