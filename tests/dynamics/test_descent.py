# long: its loops in NumPy and optax serve many tests; split, they would be compiled twice

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from jax.flatten_util import ravel_pytree

from jaxsolve import (
    Descent,
    GradientFlow,
    nets,
    observe,
    Problem,
    result_names,
    RESULTS,
    solve,
    StochasticFlow,
    theory,
    until,
)
from tests import cases
from tests.inside import result_code


def _weights(problem, dynamics, steps, **options):
    """The parameters after each step, in one vector."""
    ts = float(dynamics.rate) * np.arange(steps + 1)
    return np.asarray(solve(problem, dynamics, ts, observe=observe.parameters(), **options)["parameters"])


# Against loops written out


def _numpy_sgd(problem, rate, steps, momentum=0.0, eta=None):
    hand = cases.by_hand(problem, "tanh", eta=eta)
    theta, velocity, path = hand.start, np.zeros_like(hand.start), [hand.start]
    for _ in range(steps):
        velocity = momentum * velocity + hand.loss_and_gradient(theta)[1]
        theta = theta - rate * hand.eta * velocity
        path.append(theta)
    return np.array(path)


def _optax_loop(problem, optimizer, steps, eta):
    """Plain optax on the eager gradient of the objective, each update multiplied by its eta."""
    params = problem.params
    state, path = optimizer.init(params), [ravel_pytree(params)[0]]
    gradient = jax.jit(jax.grad(problem.objective))
    for _ in range(steps):
        updates, state = optimizer.update(gradient(params), state, params)
        params = optax.apply_updates(params, jax.tree.map(lambda rate, u: rate * u, eta, updates))
        path.append(ravel_pytree(params)[0])
    return np.array(path)


@functools.cache
def _tanh_problem():
    return cases.problem(cases.mlp(jr.key(0)), jr.key(1), centered=True)


STEPS, RATE = 30, 0.1
MOMENTA = [0.0, 0.9]


@functools.cache
def _descended(momentum):
    return _weights(_tanh_problem(), Descent(optax.sgd(RATE * (1 - momentum), momentum=momentum)), STEPS)


@pytest.mark.x64_only
@pytest.mark.parametrize("momentum", MOMENTA)
def test_is_the_loop_written_in_numpy(momentum):
    reference = _numpy_sgd(_tanh_problem(), RATE * (1 - momentum), STEPS, momentum)
    assert np.abs(reference[-1] - reference[0]).max() > 0.1
    np.testing.assert_allclose(_descended(momentum), reference, rtol=0, atol=1e-14)


@pytest.mark.x64_only
@pytest.mark.parametrize("momentum", MOMENTA)
def test_the_loop_would_notice_what_is_left_out(momentum):
    """The momentum (or one too many), the eta of one layer, and the last step."""
    problem, rate = _tanh_problem(), RATE * (1 - momentum)
    without_last = _numpy_sgd(problem, rate, STEPS - 1, momentum)
    for off in (
        _numpy_sgd(problem, rate, STEPS, 0.0 if momentum else 0.5),
        _numpy_sgd(problem, rate, STEPS, momentum, eta=problem.net.scaling.eta.at[1].set(1.0)),
        np.append(without_last, without_last[-1:], axis=0),
    ):
        assert np.abs(_descended(momentum) - off).max() > 1e-5


@pytest.mark.x64_only
def test_adam_is_the_loop_of_optax():
    problem = _tanh_problem()
    path = _weights(problem, Descent(optax.adam(RATE)), STEPS)
    with jax.numpy_dtype_promotion("standard"):
        reference = _optax_loop(problem, optax.adam(RATE), STEPS, problem.eta)
        off = _optax_loop(problem, optax.adam(RATE), STEPS, jax.tree.map(jnp.ones_like, problem.eta))
    np.testing.assert_allclose(path, reference, rtol=0, atol=1e-13)
    assert np.abs(path - off).max() > 1e-3
    # eta multiplies updates, not gradients: Adam's first step is rate * eta * sign, whatever the gradient's size
    sizes = ravel_pytree(jax.tree.map(lambda rate, p: jnp.broadcast_to(rate, p.shape), problem.eta, problem.params))[0]
    np.testing.assert_allclose(np.abs(path[1] - path[0]), RATE * sizes, rtol=1e-4)


def _read_samples(path):
    """Which samples each step has used, when weight k is moved by sample k alone."""
    return [set(np.flatnonzero(moved)) for moved in path[1:] != path[:-1]]


@pytest.mark.parametrize(("samples", "batch"), [(6, 2), (7, 3), (5, 5)])
def test_batches_cover_every_epoch_without_replacement(samples, batch):
    problem = cases.modes(np.ones(samples), np.ones(samples))
    per_epoch, epochs = samples // batch, 4
    path = _weights(problem, Descent(optax.sgd(0.1), batch_size=batch, key=jr.key(5)), per_epoch * epochs)
    used = _read_samples(path)
    assert all(len(chosen) == batch for chosen in used)
    by_epoch = [used[i * per_epoch : (i + 1) * per_epoch] for i in range(epochs)]
    assert all(len(set.union(*chosen)) == per_epoch * batch for chosen in by_epoch)
    assert batch == samples or len({tuple(map(tuple, chosen)) for chosen in by_epoch}) > 1  # reshuffled
    # one sample of a batch of b weighs 1/b, not 1/n: the weight falls by rate * n/b
    moved = path[1][path[1] != path[0]]
    np.testing.assert_allclose(moved, 1 - 0.1 * samples / batch, rtol=cases.eps(10))


def test_batches_depend_on_the_key_alone():
    problem = cases.modes(np.ones(6), np.ones(6))
    runs = [_weights(problem, Descent(optax.sgd(0.1), batch_size=2, key=jr.key(k)), 6) for k in (5, 5, 6)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert _read_samples(runs[0]) != _read_samples(runs[2])


def test_a_batch_of_a_centered_problem_subtracts_its_own_start():
    x, start = jnp.diag(jnp.array([1.0, 2.0, 3.0])), jnp.array([[5.0, -4.0, 3.0]])
    problem = Problem(cases.Linear(start), x, jnp.zeros((3, 1)), centered=True)
    path = _weights(problem, Descent(optax.sgd(0.1), batch_size=1, key=jr.key(0)), 6)
    np.testing.assert_array_equal(path, np.broadcast_to(start, (7, 3)))  # f - f_0 = 0 is the target: nothing moves


def test_batches_do_not_depend_on_how_steps_are_grouped():
    problem = cases.modes(np.ones(6), np.ones(6))
    dynamics = Descent(optax.sgd(0.1), batch_size=2, key=jr.key(5))
    advance = jax.jit(lambda state, n: dynamics.advance(problem, state, n))
    start = dynamics.init(problem, jnp.array([0.2, 0.7, 1.1]))
    whole = advance(start, jnp.asarray(20))
    for group in (1, 3):
        state = start
        while not state.done:
            state = advance(state, jnp.asarray(group))
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(one, other)
    assert whole.steps == 11


class _Normalized(eqx.Module):
    """f(x) = u x with every x_k normalized over the batch."""

    u: jax.Array
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.u = jr.normal(key, (1, 3))
        self.norm = eqx.nn.BatchNorm(3, "batch", channelwise_affine=False, momentum=0.0, mode="batch")

    def __call__(self, x, state):
        z, state = self.norm(x, state)
        return self.u @ z, state


@pytest.mark.x64_only
@pytest.mark.parametrize("centered", [False, True])
def test_a_batch_of_a_network_with_state_has_its_own_statistics(centered, getkey):
    net, state = eqx.nn.make_with_state(_Normalized)(getkey())
    x, y = np.asarray(cases.inputs(getkey(), 4)), np.asarray(jr.normal(getkey(), (4, 1)))
    problem = Problem(net, jnp.asarray(x), jnp.asarray(y), centered=centered, state=state)
    path = _weights(problem, Descent(optax.sgd(0.1), batch_size=2, key=jr.key(5)), 2)
    start = np.asarray(net.u)[0] if centered else np.zeros(3)

    def stepped(u, chosen, rate=0.1):
        z = x[list(chosen)]
        z = (z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5)
        return u - rate * (z @ (u - start) - y[list(chosen), 0]) @ z / 2

    def matches(rate):
        pairs = list(itertools.combinations(range(4), 2))
        near = lambda before, after, pair: np.max(np.abs(stepped(before, pair, rate) - after)) < 1e-14
        return [[p for p in pairs if near(before, after, p)] for before, after in itertools.pairwise(path)]

    (first,), (second,) = matches(0.1)
    assert set(first) | set(second) == {0, 1, 2, 3}
    assert matches(0.2) == [[], []]  # the sum over a batch, not the mean


# The clock


@functools.cache
def _line():
    net = nets.TwoLayerLinear(in_size=2, width_size=3, scaling=cases.scaling(2), key=jr.key(7))
    return Problem(net, jnp.array([[0.6, 0.8], [-0.3, -0.4]]), jnp.array([[1.2], [-0.7]]))


@functools.cache
def _clock_errors(momentum, layers=2):
    """Descent's distance from the flow at falling rates, relative; the flow has the rates of so many layers."""
    eta = jnp.where(jnp.arange(2) < layers, _line().net.scaling.eta, 1.0)
    flow = eqx.tree_at(lambda p: p.net.scaling.eta, _line(), eta)
    rates = 0.02 * 0.25 ** np.arange(4) * (1 - momentum)
    errors = []
    for rate in rates:
        descent = solve(
            _line(), Descent(optax.sgd(rate, momentum=momentum)), [0.8, 1.6, 3.2], observe=observe.outputs()
        )
        exact = solve(flow, theory.TwoLayerLine(), descent.ts, observe=observe.outputs())
        np.testing.assert_allclose(descent.ts, [0.8, 1.6, 3.2], rtol=1e-6)
        errors.append(
            float(jnp.max(jnp.abs(descent["outputs"] - exact["outputs"])) / jnp.max(jnp.abs(exact["outputs"])))
        )
    return rates, errors


@pytest.mark.x64_only
@pytest.mark.parametrize("momentum", cases.slow_after(1, MOMENTA))
def test_distance_from_the_flow_is_in_proportion_to_the_rate(momentum):
    rates, errors = _clock_errors(momentum)
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert 0.95 < slope < 1.05
    assert errors[-1] < 2e-3
    _, off = _clock_errors(momentum, layers=1)  # the rate of a layer left out
    assert np.polyfit(np.log(rates), np.log(off), 1)[0] < 0.7


@given(
    rate=st.floats(1e-4, 10.0),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    ts=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6).map(sorted),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_times_are_those_of_the_nearest_step(rate, momentum, ts):
    dynamics = Descent(optax.sgd(rate, momentum=momentum))
    asked = jnp.asarray(ts, jnp.result_type(float))
    times = np.asarray(dynamics.times(asked), float)
    per_step = rate / (1 - momentum)
    slack = cases.eps(4) * (1 + np.max(asked))
    assert np.all(np.abs(times - np.asarray(asked, float)) <= per_step / 2 + slack)
    assert np.all(np.abs(times / per_step - np.round(times / per_step)) < cases.eps(10) * (1 + times / per_step))
    assert np.all(np.diff(times) >= 0)
    np.testing.assert_array_equal(dynamics.times(jnp.asarray(times, asked.dtype)), times)


def test_times_that_round_to_one_step_share_it():
    problem = cases.modes([1.0], [1.0])
    trajectory = solve(problem, Descent(optax.sgd(0.25)), [0.0, 0.1, 0.2, 0.25, 0.3, 0.49, 0.51, 1.0])
    steps = np.array([0, 0, 1, 1, 1, 2, 2, 4])
    np.testing.assert_array_equal(trajectory.ts, 0.25 * steps)
    np.testing.assert_allclose(trajectory["loss"], 0.5 * 0.75 ** (2.0 * steps), rtol=cases.eps(20))
    assert trajectory.t_end == 1
    assert trajectory.stats.steps == trajectory.stats.gradient_evaluations == 4
    assert trajectory.certificate is None
    assert trajectory.result == RESULTS.successful


def test_the_rate_is_not_compiled_in():
    problem, traces = cases.modes([1.0], [1.0]), []

    @eqx.filter_jit
    def run(dynamics):
        traces.append(1)
        return solve(problem, dynamics, [1.0])["loss"]

    for rate in (0.1, 0.2, 0.5):
        steps = round(1 / rate)
        dynamics = Descent(optax.sgd(jnp.asarray(rate)))
        np.testing.assert_allclose(run(dynamics), 0.5 * (1 - rate) ** (2 * steps), rtol=cases.eps(50))
    assert len(traces) == 1


# How runs end


def test_until_and_times_at_0_and_infinity():
    """Loss 0.5 * 0.75^(2 n) falls below 0.1 at the third step."""
    dynamics = Descent(optax.sgd(0.25), until=until.loss_below(0.1))
    run = lambda ts, w0=1.0: solve(cases.modes([w0], [1.0]), dynamics, ts)
    trajectory = run([0.0, 0.5, 0.8, 0.9, jnp.inf])
    losses = 0.5 * 0.75 ** (2.0 * np.array([0, 2, 3, 3, 3]))
    assert trajectory.result == RESULTS.event
    assert trajectory.t_end == 0.75
    assert trajectory.stats.steps == 3
    np.testing.assert_array_equal(trajectory.ts, [0.0, 0.5, 0.75, 1.0, jnp.inf])
    np.testing.assert_allclose(trajectory["loss"], losses, rtol=cases.eps(20))
    np.testing.assert_allclose(trajectory.final.loss, losses[-1], rtol=cases.eps(20))
    short = run([0.0, 0.1, 0.2, 0.3, 0.4])
    assert short.result == RESULTS.max_time
    assert short.t_end == 0.5
    at_once = run([0.0, 0.5, 0.8, 0.9, jnp.inf], w0=0.1)
    assert at_once.result == RESULTS.event
    assert at_once.t_end == 0
    np.testing.assert_array_equal(at_once["loss"], np.full(5, at_once["loss"][0]))


@pytest.fixture(scope="module")
def lanes():
    """Rates below and above the stability limit 2/r = 2, and starts that are no numbers, in one batch."""

    def run(rate, w0):
        dynamics = Descent(optax.sgd(rate), divergence_factor=float("inf"))
        return solve(cases.modes([w0], [1.0]), dynamics, [0.0, 10.0, 500.0, 5000.0])

    huge = float(jnp.finfo(jnp.result_type(float)).max) ** 0.6
    return jax.jit(jax.vmap(run))(jnp.array([0.5, 5.0, 0.5, 0.5]), jnp.array([1.0, 1.0, jnp.nan, huge]))


def test_divergence_is_a_result(lanes):
    assert list(result_names(result_code(lanes.result))) == ["successful", "diverged", "invalid", "diverged"]
    good, diverging, invalid, overflowing = np.asarray(lanes["loss"])
    np.testing.assert_allclose(good, 0.5 * 0.5 ** (4 * np.array([0.0, 10.0, 500.0, 5000.0])), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(diverging[:2], [0.5, 0.5 * 4.0**4], rtol=1e-5)
    assert np.all(np.isnan(diverging[3:]))
    assert np.all(np.isnan(invalid))
    assert np.all(np.isnan(overflowing[1:]))
    np.testing.assert_array_equal(lanes.stats.steps[2:], 0)
    # |w| = 4^n leaves the dtype, its square before it
    limit = np.log(float(jnp.finfo(jnp.result_type(float)).max)) / np.log(4)
    assert limit / 2 <= int(lanes.stats.steps[1]) <= limit + 2


def _steps_to_diverge(rate, above=1.0, factor=1e9):
    """When 0.5 (1 - rate)^(2k) exceeds `factor` times the scale of the loss, which is `above` times its start."""
    return int(np.ceil(np.log(factor * above) / (2 * np.log(np.abs(1 - rate)))))


def test_divergence_is_found_at_the_step_the_formula_says():
    """1 % below the limit 2 of a quadratic of curvature 1, and 10 % above it."""
    rates = jnp.array([1.98, 2.2])
    run = jax.jit(jax.vmap(lambda rate: solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(rate)), [22.0, 2200.0])))
    below, above = (jax.tree.map(lambda leaf, i=i: leaf[i], run(rates)) for i in (0, 1))
    assert below.result == RESULTS.successful
    np.testing.assert_allclose(below["loss"], 0.5 * 0.98 ** (2.0 * np.array([11, 1111])), rtol=cases.eps(3e3))
    assert above.result == RESULTS.diverged
    steps = _steps_to_diverge(2.2)
    assert steps == 57
    assert above.stats.steps == steps
    np.testing.assert_allclose(above.t_end, 2.2 * steps, rtol=cases.eps(4))
    np.testing.assert_allclose(above.final.loss, 0.5 * 1.2 ** (2.0 * steps), rtol=cases.eps(900))
    np.testing.assert_allclose(above["loss"][0], 0.5 * 1.2**20, rtol=cases.eps(130))
    assert np.isnan(above["loss"][1])
    cases.assert_fails(lambda: np.testing.assert_equal(int(above.stats.steps), _steps_to_diverge(2.2, factor=1e9**2)))


def test_divergence_is_measured_against_the_targets_where_the_start_fits():
    """The start is 1e-3 off the target 1: the loss of f = 0 is 1e6 times its own."""
    problem = Problem(cases.Linear(jnp.array([[1.001]])), jnp.ones((1, 1)), jnp.ones((1, 1)))
    trajectory = solve(problem, Descent(optax.sgd(2.2)), 2200.0, throw=False)
    assert trajectory.result == RESULTS.diverged
    assert trajectory.stats.steps == _steps_to_diverge(2.2, 1e6) == 95


def test_the_last_step_is_judged_too():
    run = lambda last: solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(2.2)), [2.2 * last], throw=False)
    assert run(56).result == RESULTS.successful
    late = run(57)
    assert late.result == RESULTS.diverged
    np.testing.assert_allclose(late["loss"], [0.5 * 1.2**114], rtol=cases.eps(1000))


@pytest.mark.parametrize("within", [lambda run: run, jax.jit], ids=["alone", "in a trace"])
def test_what_no_loss_shows_ends_a_run_at_its_step_too(within):
    """A weight that no output depends on grows tenfold in each step until it overflows."""

    class Net(eqx.Module):
        seen: jax.Array
        unseen: jax.Array

        def __call__(self, x):
            return self.seen * x

    grows = lambda params: eqx.tree_at(lambda p: (p.seen, p.unseen), params, (False, True))
    optimizer = optax.chain(optax.sgd(0.1), optax.add_decayed_weights(9.0, mask=grows))
    problem = Problem(Net(jnp.ones(()), jnp.ones(())), jnp.ones((1, 1)), jnp.zeros((1, 1)))
    run = lambda: solve(problem, Descent(optimizer, rate=0.1), [2.0, 90.0], throw=False)
    trajectory = within(run)()
    # The update, of 9 times the weight, overflows where the weight would, in whatever order they are computed.
    last = int(np.log10(float(jnp.finfo(jnp.result_type(float)).max)))
    assert trajectory.result == RESULTS.diverged
    assert trajectory.stats.steps == last
    np.testing.assert_allclose(trajectory.final.params.unseen, 10.0**last, rtol=cases.eps(last))
    np.testing.assert_allclose(trajectory.final.params.seen, 0.9**last, rtol=cases.eps(last))
    np.testing.assert_allclose(trajectory["loss"], [0.5 * 0.9**40, np.nan], rtol=cases.eps(40))


def test_divergence_in_batches_counts_a_batch_for_its_share():
    """Every epoch multiplies each of four weights by 1 - 0.8 * 4; at the start w^2/2 is a fourth of the loss."""
    problem = cases.modes(np.ones(4), np.ones(4))
    dynamics = Descent(optax.sgd(0.8), batch_size=1, key=jr.key(0))
    trajectory = solve(problem, dynamics, 800.0, throw=False)
    assert trajectory.result == RESULTS.diverged
    assert trajectory.stats.steps == 4 * int(np.ceil(np.log(4e9) / (2 * np.log(2.2)))) == 60
    np.testing.assert_allclose(trajectory.final.loss, 2 * 2.2**30, rtol=cases.eps(40))


def test_optimizers_of_bounded_steps_may_come_back():
    """The first step lifts the loss 1e10 times; the next one of clipped descent undoes that."""
    cut = lambda rate: optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(rate))
    for factory, rate in ((optax.adam, 1e6), (cut, 1e5)):
        trajectory = solve(cases.modes([10.0], [1.0]), Descent(factory(rate)), rate * np.arange(4))
        assert trajectory.result == RESULTS.successful
        assert trajectory["loss"][1] > 5e9 * trajectory["loss"][0]


def test_an_optimizer_per_layer():
    """One bounded layer does not bound the steps of the other: the loss grows as that of SGD alone."""

    class Two(eqx.Module):
        descends: jax.Array
        bounded: jax.Array

        def __call__(self, x):
            return jnp.stack([self.descends * x[0], self.bounded * x[1]])

    label = lambda params: eqx.tree_at(lambda p: (p.descends, p.bounded), params, ("descends", "bounded"))
    both = optax.multi_transform({"descends": optax.sgd(2.2), "bounded": optax.adam(2.2)}, label)
    problem = Problem(Two(jnp.ones(()), jnp.ones(())), jnp.ones((1, 2)), jnp.zeros((1, 2)))
    trajectory = solve(problem, Descent(both, rate=2.2), 2200.0, throw=False)
    assert trajectory.result == RESULTS.diverged
    assert trajectory.stats.steps == _steps_to_diverge(2.2, 2.0)


@pytest.mark.x64_only
def test_a_catapult_is_no_divergence():
    """The two-layer linear model of Lewkowycz et al. (2020) reduces to its output f and its kernel k.

    f <- f (1 - r k + r^2 f^2/h), k <- k + r f^2/h (r k - 4) for target 0, input 1 and width h.
    """
    width, steps = 300, 60
    net = nets.TwoLayerLinear(in_size=1, width_size=width, scaling=nets.Scaling.ntk(), key=jr.key(3))
    problem = Problem(net, jnp.ones((1, 1)), jnp.zeros((1, 1)))
    w, u = (np.asarray(matrix).ravel() for matrix in net.weights)
    first, kernel = w @ u / np.sqrt(width), (w @ w + u @ u) / width
    rate = float(3.9 / kernel)
    trajectory = solve(problem, Descent(optax.sgd(rate)), rate * np.arange(steps + 1))

    def reduced(kernel_moves=True):
        f, k, losses = first, kernel, [first**2 / 2]
        for _ in range(steps):
            f, k = (
                f * (1 - rate * k + rate**2 * f**2 / width),
                (k + kernel_moves * rate * f**2 / width * (rate * k - 4)),
            )
            losses.append(f**2 / 2)
        return np.array(losses)

    close = lambda expected: np.testing.assert_allclose(
        trajectory["loss"], expected, rtol=0, atol=5e-14 * np.max(expected)
    )
    close(reduced())
    with np.errstate(over="ignore", invalid="ignore"):  # without it, there is no way back
        cases.assert_fails(lambda: close(reduced(kernel_moves=False)))
    rise = np.max(trajectory["loss"]) / trajectory["loss"][0]
    assert 100 < rise < 4 * width
    assert trajectory["loss"][-1] < 1e-6 * trajectory["loss"][0]


def test_max_steps():
    trajectory = solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(0.5), max_steps=4), [0.0, 1.0, 9.0], throw=False)
    assert trajectory.result == RESULTS.max_steps
    assert trajectory.stats.steps == 4
    assert trajectory.t_end == 2
    np.testing.assert_array_equal(np.isnan(trajectory["loss"]), [False, False, True])


def test_times_after_the_last_step_stay_what_they_were():
    """An event keeps its values at all later times, also at those that max_steps would not reach."""
    stopping = Descent(optax.sgd(0.5), max_steps=4, until=until.loss_below(0.2))
    ts = [0.0, 1.1, 3.0, 9.0, jnp.inf]
    trajectory = solve(cases.modes([1.0], [1.0]), stopping, ts)
    assert trajectory.result == RESULTS.event
    np.testing.assert_array_equal(trajectory.ts, [0.0, 1.0, *ts[2:]])


@pytest.mark.parametrize("ts", [5.0, jnp.inf])
def test_a_run_ends_with_its_schedule_if_its_condition_is_out_of_reach(ts):
    """Steps of no rate lead nowhere; those after a pause do."""
    going = lambda count: (count < 10) | (count >= 100_000) & (count < 100_020)
    pause = lambda count: jnp.where(going(count), 0.05, 0.0)
    for schedule, last in ((optax.cosine_decay_schedule(0.1, 30), 30), (pause, 100_020)):
        runs = [
            solve(
                cases.modes([1.0], [1.0]),
                Descent(optax.sgd(schedule), rate=schedule, until=condition),
                ts,
                throw=False,
            )
            for condition in (until.loss_below(1e-12), until.loss_below(0.2))
        ]
        assert [run.result for run in runs] == [RESULTS.max_steps, RESULTS.event]
        assert runs[0].stats.steps == last


def test_a_million_rates_add_up_to_their_time_in_float32():
    """Plain sums would be off by 7e-3 of it, and blocks of rates by 1e-5."""
    to_float32 = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    with jax.enable_x64(False):
        problem = to_float32(cases.modes([1e-3], [1.0]))
        schedule = optax.constant_schedule(1e-4)
        descent = Descent(optax.sgd(schedule), rate=schedule)
        run = solve(problem, descent, jnp.asarray([0.0, 100.0], jnp.float32))
    assert run.stats.steps == 1_000_000
    np.testing.assert_allclose([run.ts[1], run.t_end], 100, rtol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda steps: Descent(optax.sgd(0.5), max_steps=steps),
        lambda steps: Descent(optax.sgd(0.5), rate=lambda count: 0.5, max_steps=steps),
        lambda steps: GradientFlow(max_steps=steps),
        lambda steps: StochasticFlow(0.0, key=jr.key(0), max_steps=steps),
    ],
)
def test_more_steps_than_int32_counts(make):
    with jax.enable_x64(False):
        problem = cases.modes([1.0], [1.0])
        for steps in (10**10, 2**31 - 1):
            assert solve(problem, make(steps), [0.0, 1.0]).result == RESULTS.successful


def test_max_steps_reached_with_the_last_time_is_success():
    trajectory = solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(0.5), max_steps=4), [0.0, 1.0, 2.0])
    assert trajectory.result == RESULTS.successful


# Optimizers and scalings


def _mup(adam):
    return cases.problem(
        nets.MLP(in_size=3, out_size=1, width_size=4, depth=1, scaling=nets.Scaling.mup(adam=adam), key=jr.key(0)),
        jr.key(1),
    )


@pytest.mark.parametrize(
    ("factory", "adam"),
    [(optax.sgd, False), (functools.partial(optax.sgd, nesterov=False), False), (optax.adamw, True)],
)
def test_mup_with_its_kind_of_optimizer(factory, adam):
    assert solve(_mup(adam), Descent(factory(0.01), rate=0.01), [0.02]).stats.steps == 2


@pytest.mark.parametrize(
    ("factory", "adam", "advice"),
    [
        (optax.adam, False, r"mup for gradient flow and SGD, but.*like Adam; use nets\.Scaling\.mup\(adam=True\)"),
        (optax.rmsprop, False, "like Adam"),
        (optax.sgd, True, r"mup for Adam, but.*like gradient flow and SGD; use nets\.Scaling\.mup\(adam=False\)"),
    ],
)
def test_mup_with_another_kind_of_optimizer_raises(factory, adam, advice):
    with pytest.raises(ValueError, match=advice):
        solve(_mup(adam), Descent(factory(0.01), rate=0.01), [0.02])
    with pytest.raises(ValueError, match=advice):
        jax.jit(jax.vmap(lambda rate: solve(_mup(adam), Descent(factory(rate), rate=rate), [0.02])["loss"]))(
            jnp.array([0.1, 0.2])
        )


def test_the_kind_of_an_optimizer_does_not_depend_on_the_width():
    """Of a gradient in every parameter of a wide network clipping would see the size, and nothing else."""
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01))
    net = nets.MLP(in_size=3, out_size=1, width_size=256, depth=2, scaling=nets.Scaling.mup(), key=jr.key(0))
    problem = cases.problem(net, jr.key(1))
    assert solve(problem, Descent(clipped, rate=0.01), [0.02]).stats.steps == 2
    with pytest.raises(ValueError, match="like Adam"):
        solve(problem, Descent(optax.rmsprop(0.01), rate=0.01), [0.02])


def _two_rates(factory, labels):
    return optax.multi_transform({"slow": factory(0.01), "fast": factory(0.1)}, labels)


def test_mup_with_labels_that_are_a_tree_of_the_parameters():
    """As with labels for any parameters, and the kind of the optimizer is seen still."""
    problem = _mup(adam=False)
    name = lambda path, _: "fast" if "[1]" in jax.tree_util.keystr(path) else "slow"
    labels = jax.tree_util.tree_map_with_path(name, problem.params)
    of_any = lambda params: jax.tree_util.tree_map_with_path(name, params)
    found, twin = (
        solve(problem, Descent(_two_rates(optax.sgd, one), rate=0.1), [0.0, 0.3], observe=observe.parameters())
        for one in (lambda params: labels, of_any)
    )
    np.testing.assert_array_equal(found["parameters"], twin["parameters"])
    with pytest.raises(ValueError, match="like Adam"):
        solve(problem, Descent(_two_rates(optax.adam, lambda params: labels), rate=0.1), [0.3])


def test_labels_must_be_a_tree_of_the_parameters():
    net = nets.Function(lambda params, x: params["read"] @ jnp.tanh(params["in"] @ x), {
        "in": jnp.ones((4, 2)), "read": jnp.ones((1, 4))
    })  # fmt: skip
    problem, labels = Problem(net, jnp.eye(2), jnp.ones((2, 1))), {"in": "slow", "read": "fast"}
    with pytest.raises(ValueError, match=r"Masks and labels must be functions.*js\.nets\.Function\(f, labels\)"):
        solve(problem, Descent(_two_rates(optax.sgd, labels), rate=0.1), [0.1])
    run = solve(problem, Descent(_two_rates(optax.sgd, lambda _: nets.Function(net.f, labels)), rate=0.1), [0.0, 0.1])
    assert run["loss"][1] < run["loss"][0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optimizer": optax.sgd}, TypeError, r"optimizer must be one of optax.*got the function sgd: call it"),
        ({"optimizer": "sgd"}, TypeError, r"optimizer must be one of optax, such as optax.sgd\(0.1\); got str 'sgd'"),
        ({"optimizer": None}, TypeError, "optimizer must be one of optax.*got NoneType None"),
        ({"rate": 0.0}, ValueError, "rate must be one finite number > 0, got 0.0"),
        ({"rate": -0.1}, ValueError, "rate must be one finite number > 0"),
        ({"rate": float("nan")}, ValueError, "rate must be one finite number > 0"),
        ({"rate": float("inf")}, ValueError, "rate must be one finite number > 0"),
        ({"rate": [0.1, 0.2]}, ValueError, "rate must be one finite number > 0"),
        ({"batch_size": 2}, ValueError, "batch_size and key go together"),
        ({"key": jr.key(0)}, ValueError, "batch_size and key go together"),
        (
            {"batch_size": 1, "key": jr.split(jr.key(0), 3)},
            ValueError,
            r"key must be one key, got a batch of shape \(3,\)",
        ),
        ({"batch_size": 0, "key": jr.key(0)}, ValueError, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": 2.0, "key": jr.key(0)}, TypeError, "batch_size must be an integer"),
        ({"until": 0.1}, TypeError, r"until must be a condition such as until\.loss_below"),
        ({"max_steps": 0}, ValueError, "max_steps must be an integer >= 1"),
        ({"divergence_factor": 1.0}, ValueError, r"divergence_factor must be above 1 \(inf for none\), got 1.0"),
        ({"divergence_factor": float("nan")}, ValueError, "divergence_factor must be above 1"),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Descent(**({"optimizer": optax.sgd(0.1)} | arguments))


@pytest.mark.usefixtures("as_users")
def test_bad_arguments_that_show_when_they_are_used():
    with pytest.raises(ValueError, match=r"\(sgd\), whose steps go up the gradient"):
        solve(cases.modes([1.0], [1.0]), Descent(optax.sgd(-0.1)), [1.0])
    problem = cases.modes([1.0, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="batch_size is 3, but the training set has 2 samples"):
        solve(problem, Descent(optax.sgd(0.1), batch_size=3, key=jr.key(0)), [1.0])
    with pytest.raises(ValueError, match="ts ends in inf"):
        solve(problem, Descent(optax.sgd(0.1)), [1.0, jnp.inf])
