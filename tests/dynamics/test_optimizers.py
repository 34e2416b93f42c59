"""Optimizers of optax in `Descent`: their steps against plain loops, and the rates that they show."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxsolve import CentralFlow, Descent, observe, RESULTS, RodFlow, solve, until
from tests import cases
from tests.inside import closed, opened


COSINE = optax.cosine_decay_schedule(0.1, 20)
STAIRS = optax.piecewise_constant_schedule(0.1, {3: 0.5, 7: 0.1})
PEAK = 0.1
WARM = optax.warmup_cosine_decay_schedule(0.0, 0.1, 4, 20)

# An optimizer, the time of step k, and the same optimizer with a part left out.
OPTIMIZERS: dict[str, tuple[optax.GradientTransformation, Any, optax.GradientTransformation]] = {
    "sgd": (optax.sgd(0.1), lambda k: 0.1, optax.sign_sgd(0.1)),
    "momentum": (optax.sgd(0.01, momentum=0.9), lambda k: 0.1, optax.sgd(0.01)),
    "nesterov": (
        optax.sgd(0.01, momentum=0.9, nesterov=True),
        lambda k: 0.1,
        optax.sgd(0.01, momentum=0.9),
    ),
    "adam": (optax.adam(0.1), lambda k: 0.1, optax.adam(0.1, b1=0.0)),
    "adamw": (optax.adamw(0.1, weight_decay=0.1), lambda k: 0.1, optax.adam(0.1)),
    "lion": (optax.lion(0.01), lambda k: 0.01, optax.sign_sgd(0.01)),
    "muon": (optax.contrib.muon(0.01), lambda k: 0.01, optax.adam(0.01)),
    "clipped sgd": (
        optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(0.1, momentum=0.5)),
        lambda k: 0.2,
        optax.sgd(0.1, momentum=0.5),
    ),
    "clipped adam": (optax.chain(optax.clip(0.02), optax.adam(0.1)), lambda k: 0.1, optax.adam(0.1)),
    "weight decay": (
        optax.chain(optax.add_decayed_weights(0.3), optax.sgd(0.1)),
        lambda k: 0.1,
        optax.sgd(0.1),
    ),
    "cosine": (optax.sgd(COSINE), COSINE, optax.sgd(0.1)),
    "stairs with momentum": (
        optax.sgd(STAIRS, momentum=0.5),
        lambda k: 2 * STAIRS(k),
        optax.sgd(STAIRS),
    ),
    "adam warming up": (optax.adam(WARM), WARM, optax.adam(0.1)),
    "injected": (optax.inject_hyperparams(optax.adam)(0.1), lambda k: 0.1, optax.adam(0.05)),
    "injected schedule": (optax.inject_hyperparams(optax.sgd)(COSINE), COSINE, optax.sgd(0.1)),
}
# Those that show no rate: it is given.
GIVEN = "cosine", "stairs with momentum", "adam warming up", "injected", "injected schedule"
# Behind a clipped gradient Adam shows its eps of 1e-8; optax divides its counts of steps in float32; the rate of Muon's
# Adam, which looks ahead, is extrapolated (measured: 6e-14).
ROUNDING = {"clipped adam": 1e-6, "adam warming up": 2e-7, "muon": max(cases.eps(60), 5e-13)}
# One of each kind: constant, with momentum, of single parameters, clipped, with a schedule, from a rate of 0.
FAST = ("sgd", "nesterov", "adam", "clipped sgd", "stairs with momentum", "adam warming up")
STEPS = 12


def _times(name, steps=STEPS):
    time, counts = OPTIMIZERS[name][1], jnp.arange(steps, dtype=jnp.int32)  # as optax counts
    with jax.numpy_dtype_promotion("standard"):
        rates = jax.vmap(lambda k: jnp.asarray(time(k), float))(counts)
    return np.cumsum([0.0, *np.asarray(rates, float)])


@functools.cache
def _problem():
    return cases.problem(cases.mlp(jr.key(0)), jr.key(1), centered=True)


def _descent(name, **options):
    optimizer, time, _ = OPTIMIZERS[name]
    return Descent(optimizer, rate=time if name in GIVEN else None, **options)


def _weights(dynamics, ts):
    return np.asarray(solve(_problem(), dynamics, ts, observe=observe.parameters())["parameters"])


def _loop(optimizer):
    """Plain optax, each update multiplied by its eta."""
    problem = _problem()

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(problem.objective)(params), state, params)
        updates = jax.tree.map(lambda rate, u: rate * u, problem.eta, updates)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"):
        params, state = problem.params, optimizer.init(problem.params)
        path = [ravel_pytree(params)[0]]
        for _ in range(STEPS):
            params, state = step(params, state)
            path.append(ravel_pytree(params)[0])
    return np.array(path)


@pytest.mark.parametrize("name", cases.slow_after(len(FAST), dict.fromkeys((*FAST, *OPTIMIZERS))))
def test_steps_and_times(name):
    """At the end of each step by the clock of the formula, the weights are those of the loop, and nothing else is."""
    optimizer, _, without = OPTIMIZERS[name]
    dynamics, ts = _descent(name), _times(name)
    rounding = ROUNDING.get(name, cases.eps(60))
    np.testing.assert_allclose(dynamics.times(jnp.asarray(ts)), ts, rtol=rounding, atol=cases.eps(10))
    if np.all(np.diff(ts) > 0):
        np.testing.assert_array_equal(dynamics.steps(jnp.asarray(ts)), np.arange(STEPS + 1))
    else:  # a step of rate zero ends where it begins, and is observed there
        ts = np.delete(ts, 0)
    found, reference = _weights(dynamics, ts), _loop(optimizer)[-len(ts) :]
    np.testing.assert_allclose(found, reference, rtol=0, atol=cases.eps(100))
    assert np.abs(found - _loop(without)[-len(ts) :]).max() > 1e-3


SEEN = {
    "sgd": (optax.sgd(0.1), 0.1),
    "momentum": (optax.sgd(0.1, momentum=0.9), 1.0),
    "nesterov": (optax.sgd(0.1, momentum=0.75, nesterov=True), 0.4),
    "large": (optax.sgd(1e6), 1e6),
    "small": (optax.adam(1e-7), 1e-7),
    "adam that looks ahead": (optax.nadam(0.01), 0.01),
    "muon with decay": (optax.contrib.muon(0.02, weight_decay=0.1), 0.02),
    "decayed matrices": (optax.adamw(0.02, mask=lambda params: jax.tree.map(lambda p: p.ndim == 2, params)), 0.02),
    "labels of one kind": (optax.multi_transform({"all": optax.sgd(0.3)}, lambda params: "all"), 0.3),
    "of an array": (optax.chain(optax.clip(1.0), optax.sgd(jnp.asarray(0.25, jnp.float32))), 0.25),
}


@pytest.mark.parametrize("name", SEEN)
def test_rate_is_seen(name):
    optimizer, rate = SEEN[name]
    extrapolated = 5e-13 if "looks ahead" in name or "muon" in name else 0.0
    assert (found := Descent(optimizer).rate) is not None
    np.testing.assert_allclose(found, rate, rtol=max(cases.eps(40), extrapolated))


def test_to_make_a_dynamics_compiles_nothing():
    """The rate is looked for when it is asked for."""
    compiled, listening = [], True

    def listen(event: str, *_: Any, **__: Any) -> None:
        compiled.extend([event] if listening and "backend_compile" in event else [])

    jax.monitoring.register_event_duration_secs_listener(listen)  # the lowest supported JAX cannot take it off again
    for make in (optax.sgd, optax.adam, optax.adamw, optax.lion, optax.contrib.muon):
        Descent(make(0.123))
    Descent(optax.rmsprop(0.123), rate=COSINE)
    CentralFlow(optax.rmsprop(0.123, initial_scale=1.0))
    RodFlow(optax.sgd(0.123))
    found = list(compiled)
    jax.jit(lambda x: x + 0.123)(1.0)
    listening = False
    assert not found
    assert compiled


def _by_shape(matrix, vector):
    kind = lambda params: jax.tree.map(lambda p: "matrix" if p.ndim == 2 else "vector", params)
    return optax.multi_transform({"matrix": matrix, "vector": vector}, kind)


# Those that are refused at once, by what they remember.
REMEMBER = {
    "rms": lambda rate: optax.rmsprop(rate),
    "rss": lambda rate: optax.adagrad(rate),
    "now and then": lambda rate: optax.MultiSteps(optax.sgd(rate), 3).gradient_transformation(),
    "counting": lambda rate: optax.chain(_counting(), optax.sgd(rate)),
    "a schedule": lambda rate: optax.sgd(optax.linear_schedule(rate, 0.9 * rate, 10**6)),
    "a late schedule": lambda rate: optax.adam(optax.piecewise_constant_schedule(rate, {1000: 0.5})),
    "injected": lambda rate: optax.inject_hyperparams(optax.sgd)(rate),
    "conditional": lambda rate: optax.chain(optax.sgd(rate), _conditional(optax.scale(0.1))),
    "an array": lambda rate: optax.chain(optax.sgd(rate), _late(lambda n: n)),
    "a dict": lambda rate: optax.chain(optax.sgd(rate), _late(lambda n: {"n": n})),
}
# And by how they answer.
ANSWER = {
    "by layer": lambda rate: optax.lamb(rate),
    "by layer, linear": lambda rate: optax.lars(rate),
    "clipped early": lambda rate: optax.chain(optax.clip(1e-4), optax.sgd(rate)),
    "two averages": lambda rate: optax.chain(optax.trace(0.9), optax.trace(0.5), optax.sgd(rate)),
    "by shape": lambda rate: _by_shape(optax.sgd(rate), optax.sgd(2 * rate)),
    "two ways": lambda rate: _by_shape(optax.sgd(rate), optax.adam(rate)),
}


class _Count(NamedTuple):
    steps: Any


def _counting():
    """A schedule of the user's: after a thousand steps it halves the rate."""

    def update(updates, state, params=None):
        del params
        factor = jnp.where(state.steps < 1000, 1.0, 0.5)
        return jax.tree.map(lambda u: factor * u, updates), _Count(state.steps + 1)

    return optax.GradientTransformation(lambda params: _Count(jnp.zeros((), int)), update)


def _conditional(optimizer: Any) -> Any:
    conditionally: Any = optax.conditionally_transform
    return conditionally(optimizer, lambda step: step >= 100)


def _late(shown):
    """After a hundred steps a tenth is left; the count is shown in any form."""
    number = lambda state: jax.tree.leaves(state)[0]
    zero = jnp.zeros((), jnp.int32)

    def update(updates, state, params=None):
        del params
        factor = jnp.where(number(state) < 100, 1.0, 0.1)
        return jax.tree.map(lambda u: factor * u, updates), shown(number(state) + 1)

    return optax.GradientTransformation(lambda params: shown(zero), update)


@pytest.mark.parametrize("name", [*REMEMBER, *ANSWER])
def test_a_rate_that_cannot_be_seen_is_given(name):
    make = (REMEMBER | ANSWER)[name]
    reason = "remembers more than" if name in REMEMBER else "neither in proportion to the gradient nor to its sign"
    look = (lambda: Descent(make(0.1))) if name in REMEMBER else (lambda made=Descent(make(0.1)): made.rate)
    with pytest.raises(ValueError, match=rf"not from this optimizer \(.*\), .*{reason}.*: give rate=.* as a number,"):
        look()
    np.testing.assert_array_equal(Descent(make(0.1), rate=0.5).times(jnp.asarray([0.0, 0.6, 2.0])), [0.0, 0.5, 2.0])
    scheduled = Descent(make(0.1), rate=lambda step: 0.5 / (step + 1))
    np.testing.assert_allclose(scheduled.times(jnp.asarray([0.0, 0.45, 0.8])), [0.0, 0.5, 0.75], rtol=cases.eps(4))


def test_what_is_given_goes_before_what_is_seen():
    assert Descent(optax.sgd(0.1), rate=0.25).rate == 0.25


# --- schedules


@pytest.mark.parametrize("name", ["cosine", "stairs with momentum", "adam warming up", "injected schedule"])
def test_times_of_a_schedule_are_its_sums(name):
    dynamics = _descent(name)
    assert dynamics.rate is None
    ts = _times(name, 3000)
    few = np.array([0.0, 0.03, 0.2, 0.55, 0.61])
    index = np.array([int(np.argmin(np.abs(ts - t))) for t in few])
    np.testing.assert_array_equal(dynamics.steps(jnp.asarray(few, jnp.result_type(float))), index)
    np.testing.assert_allclose(
        dynamics.times(jnp.asarray(few, jnp.result_type(float))), ts[index], rtol=ROUNDING.get(name, cases.eps(50))
    )


def test_steps_are_found_beyond_a_block():
    schedule = optax.piecewise_constant_schedule(0.1, {1500: 0.5})
    dynamics = Descent(optax.sgd(schedule), rate=schedule)
    steps = np.array([0, 1023, 1024, 1025, 1500, 1501, 2500])
    ts = np.cumsum([0.0, *[float(np.asarray(schedule(k))) for k in range(2500)]])[steps]
    np.testing.assert_array_equal(dynamics.steps(jnp.asarray(ts, jnp.result_type(float))), steps)


def test_a_schedule_that_ends_is_followed_to_its_end_and_not_beyond():
    end = float(_times("cosine", 20)[-1])
    dynamics = _descent("cosine", max_steps=40)
    run = lambda ts: solve(cases.modes([1.0], [1.0]), dynamics, ts, throw=False)
    assert run([end]).stats.steps == 20
    assert run([end]).result == RESULTS.successful
    beyond = run([0.1, end + 0.1])
    assert beyond.result == RESULTS.max_steps
    np.testing.assert_allclose(beyond.t_end, end, rtol=cases.eps(20))
    np.testing.assert_array_equal(np.isnan(beyond["loss"]), [False, True])
    assert beyond.stats.steps == 20  # and does not go on to max_steps at a rate of zero


def test_a_condition_sees_the_time_of_the_schedule():
    steps = 6
    losses = 0.5 * np.cumprod((1 - np.diff(_times("cosine", steps))) ** 2)
    dynamics = _descent("cosine", until=until.loss_below(1.0001 * losses[-1]))
    trajectory = solve(cases.modes([1.0], [1.0]), dynamics, [jnp.inf])
    assert trajectory.stats.steps == steps
    np.testing.assert_allclose(trajectory.t_end, _times("cosine", steps)[-1], rtol=cases.eps(10))
    np.testing.assert_allclose(trajectory.final.loss, losses[-1], rtol=cases.eps(20))


# --- traced rates


MAKERS = {
    "sgd": lambda rate: Descent(optax.sgd(rate)),
    "momentum": lambda rate: Descent(optax.sgd(rate, momentum=0.5, nesterov=True)),
    "traced momentum": lambda rate: Descent(optax.sgd(0.1, momentum=5 * rate)),
    "adam": lambda rate: Descent(optax.adamw(rate)),
    "muon": lambda rate: Descent(optax.contrib.muon(rate)),
    "cosine": lambda rate: _scheduled(optax.cosine_decay_schedule(rate, 20)),
    "of the user's": lambda rate: _scheduled(lambda step, rate=rate: rate / (1 + step)),
}


def _scheduled(schedule):
    return Descent(optax.sgd(schedule), rate=schedule)


TRACED_FIRST = "traced momentum", "adam", "cosine", "muon"


@pytest.mark.parametrize("name", cases.slow_after(4, dict.fromkeys((*TRACED_FIRST, *MAKERS))))
def test_rates_may_be_traced(name):
    make, rates = MAKERS[name], [0.1, 0.05]
    problem, ts = cases.modes([1.0, 2.0], [1.0, 0.5]), [0.0, 0.31, 0.45]

    def run(rate):
        trajectory = solve(problem, make(rate), ts)
        return trajectory.ts, trajectory["loss"]

    together = jax.jit(jax.vmap(run))(jnp.asarray(rates))
    for lane, rate in enumerate(rates):
        for found, expected in zip(together, run(rate), strict=True):
            np.testing.assert_allclose(found[lane], expected, rtol=cases.eps(60), atol=cases.eps(10))
    assert np.abs(together[1][0] - together[1][1]).max() > 1e-4


@pytest.mark.x64_only
def test_the_derivative_in_the_rate():
    """After three steps the loss is (1 - r)^6/2; as a pytree a Descent is differentiated, too."""
    loss = lambda dynamics, t: solve(cases.modes([1.0], [1.0]), dynamics, t)["loss"]
    rate, one = jnp.asarray(0.2), jnp.ones(())
    value, slope = jax.jvp(lambda rate: loss(Descent(optax.sgd(rate)), 0.6), (rate,), (one,))
    np.testing.assert_allclose([value, slope], [0.8**6 / 2, -3 * 0.8**5], rtol=1e-12)
    dynamics = Descent(optax.sgd(rate))
    zeros = jax.tree.map(jnp.zeros_like, dynamics)
    assert [float(leaf) for leaf in jax.tree.leaves(dynamics)] == [-0.2]  # optax holds -rate
    tangent = jax.tree.map(lambda _: -one, zeros)
    np.testing.assert_allclose(jax.jvp(lambda d: loss(d, 0.6), (dynamics,), (tangent,))[1], slope, rtol=1e-12)


# --- as pytrees


def test_the_same_optimizer_made_twice_compiles_once():
    traces = []

    @eqx.filter_jit
    def run(dynamics):
        traces.append(1)
        return dynamics.times(jnp.asarray([1.0]))

    make = lambda rate, **options: Descent(optax.chain(optax.adamw(rate, **options), optax.scale(0.5)))
    for _ in range(2):
        run(make(0.1))
    assert len(traces) == 1
    for different in (make(0.1, b1=0.8), make(0.2), Descent(optax.adamw(0.1)), make(0.1, eps=1e-9)):
        before = len(traces)
        run(different)
        assert len(traces) == before + 1
    arrays = len(traces)
    for rate in (0.1, 0.2, 0.3):
        np.testing.assert_allclose(run(make(jnp.asarray(rate)))[0] / rate, 0.5 * round(2 / rate), rtol=cases.eps(60))
    assert len(traces) == arrays + 1


def test_optimizers_are_compared_by_what_they_hold():
    same = lambda one, other: jax.tree.structure(opened(one)) == jax.tree.structure(opened(other))
    sgd = optax.sgd
    assert same(sgd(1.0), sgd(1.0))
    assert hash(jax.tree.structure(opened(sgd(1.0)))) == hash(jax.tree.structure(opened(sgd(1.0))))
    for other in (sgd(2.0), sgd(1), sgd(True), sgd(-1.0), sgd(1.0, momentum=0.0), sgd(jnp.asarray(1.0))):
        assert not same(sgd(1.0), other)
    assert same(sgd(0.0), sgd(0.0))
    assert not same(sgd(0.0), sgd(-0.0))
    assert same(sgd(jnp.ones(())), sgd(jnp.zeros(())))
    array: Any = np.ones(2)
    assert not same(sgd(array), sgd(array))  # NumPy's arrays may change


def test_what_a_function_of_the_user_reads_may_change():
    """It equals itself only, so that no program of what it did before runs again."""
    make = lambda: Descent(optax.sgd(0.1), rate=lambda step: PEAK / (1 + step))
    one, two = make(), make()
    assert jax.tree.structure(one) != jax.tree.structure(two)
    assert jax.tree.structure(one) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, one))


def test_functions_are_put_together_again():
    def make(factor: Any, *, complete: bool = False):
        def again(x, count):
            return x if count == 0 else factor * again(x, count - 1)  # it holds itself

        later = lambda x: 2 * x if x else unassigned  # a cell that stays empty
        if complete:
            unassigned = 1.0
        return lambda x, *, shift=factor: again(x, 1) + later(x) + shift + sum(part * x for part in [factor, factor])

    plain = make(3.0)(2.0)
    assert plain == 25.0
    assert closed(opened(make(jnp.asarray(3.0))))(2.0) == plain
    assert closed(opened(make(3.0)))(2.0) == plain
    moved = jax.tree.map(lambda leaf: leaf + 1, opened(lambda x, f=jnp.asarray(3.0), *, g=jnp.asarray(1.0): f * x + g))
    assert closed(moved)(2.0) == 10.0


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (optax.sgd(0.1), "sgd"),
        (optax.sgd(COSINE, momentum=0.9), "sgd"),
        (optax.adam(0.1), "adam"),
        (optax.adamw(0.1), "adam + add_decayed_weights"),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), "clip_by_global_norm + sgd"),
        (optax.inject_hyperparams(optax.adam)(0.1), "adam"),
    ],
)
def test_names(optimizer, name):
    assert Descent(optimizer, rate=0.1).name == f"Descent({name})"
