import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxsolve import losses, nets, observe, Problem, result_names, RESULTS, solve, StochasticFlow, until
from tests import cases
from tests.inside import batch_weights, result_code


WEIGHTS = observe.parameters()
RATES, START = (1.0, 3.0), (2.0, -1.0)


# Batches


@functools.cache
def _drawn(noise, draws=20_000, samples=6):
    draw = jax.jit(jax.vmap(lambda key, noise: batch_weights(key, samples, noise), in_axes=(0, None)))
    return np.asarray(draw(jr.split(jr.key(0), draws), jnp.asarray(noise, jnp.result_type(float))))


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_a_batch_of_whole_samples_weighs_them_alike(size):
    """At the T/dt of (17) for b samples these, and only these, count n/b."""
    noise = (6 - size) / (5 * size)
    rows = np.sort(_drawn(noise), axis=1)
    whole = np.sum(rows > 0, axis=1) == size
    assert np.mean(~whole) < 1e-3  # rounding of T/dt
    expected = np.array([0.0] * (6 - size) + [6 / size] * size)
    np.testing.assert_allclose(rows[whole], np.broadcast_to(expected, (sum(whole), 6)), rtol=0, atol=cases.eps(100))
    if 1 < size < 6:  # the twins: drawn with replacement, or with n in the place of n - 1, other sizes are needed
        for off in (1 / size, (6 - size) / (6 * size)):
            assert np.mean(np.sum(_drawn(off) > 0, axis=1) != size) > 4e-3


@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0, 50.0])
def test_the_noise_of_batches(noise):
    """The average of any numbers has `noise` times their variance, whether T/dt asks for whole samples or not."""
    numbers = np.array([1.0, -2.0, 0.5, 3.0, 0.2, -1.0])
    averages = _drawn(noise) @ numbers / 6
    spread = noise * np.var(numbers)
    assert abs(np.mean(averages) - np.mean(numbers)) < 4 * np.sqrt(spread / len(averages))
    fourth = np.mean((averages - np.mean(averages)) ** 4)
    bound = 4 * np.sqrt((fourth - spread**2) / len(averages))  # four standard deviations of a measured variance
    assert abs(np.var(averages) - spread) < bound < 0.2 * spread


# Without noise it is descent


def _by_numpy(problem, hand, times, eta, upper=1e-2, lower=1e-4):
    """Euler's method with steps by the rule (18), and the straight lines between them."""
    theta, t, path = hand.start, 0.0, [(0.0, hand.start)]
    fall = upper / 2 * np.mean(np.sum(np.abs(hand.outputs(theta) - np.asarray(problem.y)), axis=1))
    dt = fall / np.sum(eta * hand.loss_and_gradient(theta)[1] ** 2)
    while t < times[-1]:
        step = min(dt, times[-1] - t)
        new = theta - step * eta * hand.loss_and_gradient(theta)[1]
        change = np.max(np.abs(hand.outputs(new) - hand.outputs(theta)))
        if change > upper:
            dt = step * np.clip(upper / 2 / change, 0.1, 0.5)
            continue
        dt = 1.1 * dt if change < lower and step == dt else dt
        theta, t = new, t + step
        path.append((t, theta))
    known, rows = np.array([t for t, _ in path]), np.array([theta for _, theta in path])
    return np.stack([np.interp(times, known, column) for column in rows.T], axis=1), len(path) - 1


@pytest.mark.x64_only
def test_without_noise_it_is_the_loop_written_in_numpy():
    """For a network in which every hyperparameter differs, until its steps grow."""
    problem = cases.problem(cases.mlp(jr.key(3), depth=1), jr.key(4), centered=True)
    ts = np.array([0.0, 0.1, 0.7, 3.0, 6.0])
    run = solve(problem, StochasticFlow(0.0, key=jr.key(0), change=(1e-3, 1e-2)), ts, observe=WEIGHTS)
    hand = cases.by_hand(problem, "tanh")
    expected, steps = _by_numpy(problem, hand, ts, hand.eta, lower=1e-3)
    np.testing.assert_allclose(run["parameters"], expected, rtol=0, atol=4e-15)
    assert run.stats.steps == steps
    off, _ = _by_numpy(problem, hand, ts, np.ones_like(hand.eta), lower=1e-3)  # the rates left out
    assert np.abs(run["parameters"] - off).max() > 1e-4


def test_without_noise_it_tends_to_gradient_flow_with_the_bound():
    ts, errors = np.array([0.0, 0.1, 0.5, 1.2, 3.0]), []
    exact = np.array(START) * np.exp(-ts[:, None] * np.array(RATES))
    for upper in (4e-2, 1e-2):
        flow = StochasticFlow(0.0, key=jr.key(0), change=(1e-2 * upper, upper))
        run = solve(cases.modes(START, RATES), flow, ts, observe=WEIGHTS)["parameters"]
        errors.append(np.abs(run - exact).max())
        assert errors[-1] < 0.1 * upper
    assert 3.8 < errors[0] / errors[1] < 4.2


def test_many_times_within_a_step():
    """The first step is cut now and then; all lie on the line that it follows."""
    ts = np.linspace(0, 1e-3, 50)
    run = solve(cases.modes(START, RATES), StochasticFlow(0.0, key=jr.key(0)), ts, observe=WEIGHTS)
    line = np.array(START) * (1 - ts[:, None] * np.array(RATES))
    np.testing.assert_allclose(run["parameters"], line, rtol=0, atol=1e-5)
    assert run.stats.steps < 10
    assert run.t_end == run.ts[-1]


# With noise


def _noisy(n=8):
    """f = w, and targets of mean 0 and variance 1: the loss of a sample has the gradient w - y."""
    y = jr.normal(jr.key(5), (n, 1))
    y = (y - jnp.mean(y)) / jnp.std(y)
    return Problem(cases.Linear(jnp.ones((1, 1))), jnp.ones((n, 1)), y)


def _lane(temperature, key, ts=(0.0, 1.0, 2.0)):
    return solve(_noisy(), StochasticFlow(temperature, key=key), jnp.asarray(ts), observe=WEIGHTS)


TEMPERATURES, LANES = (4e-3, 1.6e-2), 300


@pytest.fixture(scope="module")
def lanes():
    temperatures = jnp.repeat(jnp.array(TEMPERATURES), LANES)
    return jax.jit(jax.vmap(_lane))(temperatures, jr.split(jr.key(1), temperatures.size))


def test_the_noise_is_that_of_the_fokker_planck_equation(lanes):
    """(16) is an Ornstein-Uhlenbeck process: mean exp(-t), variance T/2 (1 - exp(-2 t))."""
    ts, measured = np.array([1.0, 2.0]), np.asarray(lanes["parameters"][:, 1:, 0]).reshape(2, LANES, 2)
    for temperature, rows in zip(TEMPERATURES, measured, strict=True):
        variance = temperature / 2 * (1 - np.exp(-2 * ts))
        np.testing.assert_array_less(np.abs(rows.mean(axis=0) - np.exp(-ts)), 4 * np.sqrt(variance / LANES))
        ratio = rows.var(axis=0) / variance
        bound = 4 * np.sqrt(2 / LANES)  # four standard deviations: 33 %
        np.testing.assert_array_less(np.abs(ratio - 1), bound)
    ratio = measured[1].var(axis=0) / measured[0].var(axis=0)
    np.testing.assert_array_less(np.abs(np.log(ratio / 4)), 4 * np.sqrt(4 / LANES))


@pytest.mark.slow
@pytest.mark.parametrize(("change", "rate"), [((1e-3, 1e-1), 1.0), ((1e-2, 2e-2), 0.91)])
def test_bounds_close_to_each_other_repeat_many_steps_which_slows_the_mean(change, rate):
    def lane(key):
        return solve(_noisy(), StochasticFlow(0.016, key=key, change=change), 1.0, observe=WEIGHTS)["parameters"][0]

    found = -np.log(np.mean(jax.jit(jax.vmap(lane))(jr.split(jr.key(0), 2000))))
    assert abs(found - rate) < 0.02  # measured: 1.010 and 0.913, each with a standard error of 0.005


def test_lanes_are_those_run_alone(lanes):
    for lane in (0, LANES):
        alone = _lane(TEMPERATURES[lane // LANES], jr.split(jr.key(1), 2 * LANES)[lane])
        np.testing.assert_allclose(alone["parameters"], lanes["parameters"][lane], rtol=0, atol=cases.eps(100))
        assert alone.stats.steps == lanes.stats.steps[lane]
        assert alone.stats.gradient_evaluations == alone.stats.steps + alone.stats.rejected + 2


def test_the_key_decides():
    one, same, other = (_lane(4e-3, jr.key(i)) for i in (1, 1, 2))
    np.testing.assert_array_equal(one["parameters"], same["parameters"])
    assert np.abs(one["parameters"] - other["parameters"])[1:].min() > 1e-4


def test_bad_temperatures_end_their_lane_only():
    values = jnp.array([4e-3, -1.0, jnp.nan, jnp.inf, 0.0])
    run = jax.jit(jax.vmap(_lane))(values, jr.split(jr.key(1), 5))
    names = list(result_names(result_code(run.result)))
    assert names == ["successful", "invalid", "invalid", "invalid", "successful"]
    np.testing.assert_array_equal(run.stats.steps[1:4], 0)
    assert np.all(np.isfinite(run["parameters"][jnp.array([0, 4])]))


# The march


@functools.cache
def _march(temperature=5e-3):
    """The parts of a march on a hinge problem, whose gradient jumps: some steps are repeated."""
    x, y = jr.normal(jr.key(6), (8, 3)), jnp.sign(jr.normal(jr.key(7), (8, 1)))
    net = cases.Linear(jnp.array([[0.5, -1.0, 0.3]]))
    problem = Problem(net, x, y, loss=losses.Hinge())
    condition = until.loss_fraction(0.85)
    flow = StochasticFlow(temperature, key=jr.key(8), change=(3e-3, 1e-2), until=condition, max_steps=3000)
    init = jax.jit(lambda: flow.init(problem, jnp.array([0.0, 0.05, 0.2, 0.6, jnp.inf])))
    advance = jax.jit(lambda state, n: flow.advance(problem, state, n))
    return problem, flow, init(), advance


def _run(state, advance, group, store=False) -> Any:
    while not state.done:
        if store:
            leaves, structure = jax.tree.flatten(state)
            state = jax.tree.unflatten(structure, [jnp.asarray(np.asarray(leaf).copy()) for leaf in leaves])
        state = advance(state, jnp.asarray(group))
    return state


def test_groups_of_steps_and_storage():
    _, _, start, advance = _march()
    reference = _run(start, advance, 1000)
    assert reference.steps > 20
    for group, store in ((1, False), (7, True)):
        for a, b in zip(jax.tree.leaves(_run(start, advance, group, store)), jax.tree.leaves(reference), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_steps_keep_the_bounds_and_end_at_the_condition():
    problem, flow, state, advance = _march()
    states = [state]
    while not states[-1].done:
        states.append(advance(states[-1], jnp.asarray(1)))
    taken = [(a, b) for a, b in zip(states, states[1:], strict=False) if b.steps > a.steps]
    changes = np.array([float(np.abs(b.outputs - a.outputs).max()) for a, b in taken])
    assert 5e-3 < changes.max() <= 1e-2
    assert states[-1].rejected > 0
    last, end = states[-2], flow.finish(problem, states[-1])
    threshold = 0.85 * problem.objective(problem.params)
    assert problem.objective(last.params) > threshold >= problem.objective(end.params)
    assert end.result == RESULTS.event
    assert end.t_end == states[-1].t > 0.2
    np.testing.assert_array_equal(end.saved.w[-1], end.params.w)
    np.testing.assert_array_equal(end.saved.w[0], problem.params.w)


def test_until_without_noise_is_that_of_gradient_flow():
    """L = w^2 exp(-2 t)/2: half of it at log(2)/2, to the accuracy of the steps."""
    flow = StochasticFlow(0.0, key=jr.key(0), until=until.loss_fraction(0.5))
    run = solve(cases.modes([2.0], [1.0]), flow, [0.0, 0.1, 1.0, jnp.inf])
    assert run.result == RESULTS.event
    np.testing.assert_allclose(run.t_end, np.log(2) / 2, rtol=1e-2)
    np.testing.assert_allclose(run["loss"], [2.0, 2 * np.exp(-0.2), 1.0, 1.0], rtol=1e-2)
    np.testing.assert_array_equal(run["loss"][2:], run.final.loss)
    short = solve(cases.modes([2.0], [1.0]), flow, [0.0, 0.1, 0.2, 0.3])
    assert short.result == RESULTS.max_time
    assert short.t_end == short.ts[-1]


def test_what_cannot_go_on():
    flow = StochasticFlow(1e-3, key=jr.key(0), max_steps=5)
    assert solve(_noisy(), flow, [0.0, 1.0], throw=False).result == RESULTS.max_steps
    huge = float(jnp.finfo(jnp.result_type(float)).max) ** 0.6
    assert solve(cases.modes([huge], [1.0]), flow, [0.0, 1.0], throw=False).result == RESULTS.diverged
    at_rest = solve(cases.modes([0.0], [1.0]), flow, [0.0, 1.0])
    np.testing.assert_array_equal(at_rest["loss"], 0)
    with pytest.raises(ValueError, match="ts ends in inf, which StochasticFlow reaches only with a condition"):
        solve(_noisy(), flow, [0.0, jnp.inf])


# What is refused


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"temperature": -1e-3}, ValueError, "temperature must be one finite number >= 0, got -0.001"),
        ({"temperature": float("nan")}, ValueError, "temperature must be one finite number >= 0"),
        ({"temperature": [1.0, 2.0]}, ValueError, "temperature must be one finite number >= 0"),
        ({"tau": 0.0}, ValueError, "tau must be one finite number > 0, got 0.0; without momentum, leave it out"),
        ({"key": 0}, TypeError, r"key must be a JAX random key such as jax\.random\.key\(0\), got int 0"),
        ({"key": jr.split(jr.key(0), 3)}, ValueError, r"key must be one key, got a batch of shape \(3,\)"),
        ({"change": (1e-2, 1e-4)}, ValueError, "change must be two bounds, 0 <= lower < upper"),
        ({"change": (0.0, float("inf"))}, ValueError, "change must be two bounds"),
        ({"change": (1e-2,)}, ValueError, "change must be two bounds"),
        ({"until": 1e-3}, TypeError, r"until must be a condition such as until\.loss_below\(1e-5\)"),
        ({"max_steps": 0}, ValueError, "max_steps must be an integer >= 1, got 0"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        StochasticFlow(**({"temperature": 1e-3, "key": jr.key(0)} | arguments))


# With momentum


def _damped(w0, rate, tau, ts):
    """tau w'' + w' + rate w = 0 from rest."""
    root = np.sqrt(complex(1 - 4 * rate * tau))
    fast, slow = (-1 - root) / (2 * tau), (-1 + root) / (2 * tau)
    return np.real(w0 * (slow * np.exp(fast * ts) - fast * np.exp(slow * ts)) / (slow - fast))


def test_without_noise_momentum_swings_as_the_damped_oscillator():
    ts, tau, errors = np.array([0.0, 0.5, 2.0, 5.0]), 1.5, []
    exact = np.stack([_damped(w0, rate, tau, ts) for w0, rate in zip(START, RATES, strict=True)], axis=1)
    for upper in (4e-2, 1e-2):
        flow = StochasticFlow(0.0, key=jr.key(0), tau=tau, change=(1e-2 * upper, upper))
        assert flow.name == "StochasticFlow(tau)"
        errors.append(np.abs(solve(cases.modes(START, RATES), flow, ts, observe=WEIGHTS)["parameters"] - exact).max())
        assert errors[-1] < upper
    assert errors[1] < 0.5 * errors[0]
    without = np.array(START) * np.exp(-ts[:, None] * np.array(RATES))
    assert np.abs(exact - without).max() > 100 * errors[1]


def test_a_short_relaxation_is_none():
    run = lambda tau: solve(_noisy(), StochasticFlow(4e-3, key=jr.key(1), tau=tau), [0.0, 0.5, 1.0], observe=WEIGHTS)[
        "parameters"
    ]
    without, short, longer = run(None), run(1e-9), run(0.3)
    np.testing.assert_allclose(short, without, rtol=0, atol=1e-12)
    assert np.abs(longer - without).max() > 0.1


@pytest.mark.slow
def test_the_noise_with_momentum_is_that_of_the_langevin_equations():
    """In equilibrium the variance of w is T/2 whatever tau, and that of its velocity T/(2 tau)."""
    temperature, step, taus = 1e-2, 0.02, np.array([0.3, 1.2])

    def lane(tau, key):
        flow = StochasticFlow(temperature, key=key, tau=tau)
        return solve(_noisy(), flow, jnp.array([0.0, 12.0, 12.0 + step]), observe=WEIGHTS)["parameters"][1:, 0]

    keys = jr.split(jr.key(2), 2 * LANES)
    found = np.asarray(jax.jit(jax.vmap(lane))(jnp.repeat(jnp.asarray(taus), LANES), keys)).reshape(2, LANES, 2)
    weights, velocities = found[..., 0].var(axis=1), (np.diff(found)[..., 0] / step).var(axis=1)
    bound = 4 * np.sqrt(2 / LANES)  # four standard deviations: 33 %
    np.testing.assert_array_less(np.abs(weights / (temperature / 2) - 1), bound)
    check = lambda expected: np.testing.assert_array_less(np.abs(velocities / expected - 1), bound + 0.05)
    check(temperature / (2 * taus))
    cases.assert_fails(lambda: check(temperature / 2))  # tau left out
    cases.assert_fails(lambda: check(temperature * taus / 2))  # the noise of the velocity without its 1/tau


@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_more_equal_times_than_a_step_saves(temperature):
    net = nets.MLP(
        in_size=3, out_size=1, width_size=8, depth=1, activation="tanh", scaling=nets.Scaling.ntk(), key=jr.key(1)
    )
    problem = Problem(net, jr.normal(jr.key(0), (5, 3)), jnp.ones((5, 1)))
    run = lambda count: solve(problem, StochasticFlow(temperature, key=jr.key(2)), [0.1] * count + [0.2])
    few, many = run(1), run(20)
    np.testing.assert_array_equal(many["loss"][:20], many["loss"][0])
    assert np.isfinite(many["loss"][-1])
    if temperature == 0:  # else steps of no length draw batches, too
        np.testing.assert_allclose(many["loss"][0], few["loss"][0], rtol=cases.eps(100))
