"""Optimisers of optax in `Descent`: their steps against plain loops, and the rates that they show."""

# long: every kind of optimiser that users give, each against its plain loop

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

from jaxsolve import Descent, observe, RESULTS, solve, until
from tests import cases
from tests.inside import Held


COSINE = optax.cosine_decay_schedule(0.1, 20)
STAIRS = optax.piecewise_constant_schedule(0.1, {3: 0.5, 7: 0.1})
WARM = optax.warmup_cosine_decay_schedule(0.0, 0.1, 4, 20)

# An optimiser, the time of step k, and the same optimiser with a part left out.
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
# Behind a clipped gradient Adam shows its eps of 1e-8; and optax divides its counts of steps in float32.
ROUNDING = {"clipped adam": 1e-6, "adam warming up": 2e-7}
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
    dynamics, ts = Descent(optimizer), _times(name)
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
    "sgd": (optax.sgd(0.1), 0.1, None),
    "momentum": (optax.sgd(0.1, momentum=0.9), 0.1, 0.9),
    "nesterov": (optax.sgd(0.1, momentum=0.75, nesterov=True), 0.1, 0.75),
    "moving average": (optax.chain(optax.ema(0.9, debias=False), optax.scale(-0.1)), 0.01, 0.9),
    "large": (optax.sgd(1e6), 1e6, None),
    "small": (optax.adam(1e-7), 1e-7, None),
    "labels of one kind": (optax.multi_transform({"all": optax.sgd(0.3)}, lambda params: "all"), 0.3, None),
    "of an array": (optax.chain(optax.clip(1.0), optax.sgd(jnp.asarray(0.25, jnp.float32))), 0.25, None),
}


@pytest.mark.parametrize("name", SEEN)
def test_rate_and_momentum_are_seen(name):
    optimizer, rate, momentum = SEEN[name]
    dynamics = Descent(optimizer)
    assert dynamics.rate is not None
    np.testing.assert_allclose(dynamics.rate, rate, rtol=cases.eps(40))
    if momentum is None:
        assert dynamics.momentum is None
    else:
        assert dynamics.momentum is not None
        np.testing.assert_allclose(dynamics.momentum, momentum, rtol=cases.eps(40))


UNSEEN = {
    "rms": (lambda rate: optax.rmsprop(rate), "neither in proportion to the gradient nor to the gradient's sign"),
    "rss": (lambda rate: optax.adagrad(rate), "neither in proportion"),
    "by layer": (lambda rate: optax.lamb(rate), "neither in proportion"),
    "clipped early": (lambda rate: optax.chain(optax.clip(1e-4), optax.sgd(rate)), "neither in proportion"),
    "two averages": (
        lambda rate: optax.chain(optax.trace(0.9), optax.trace(0.5), optax.sgd(rate)),
        "does not fall by the same factor each step",
    ),
    "now and then": (
        lambda rate: optax.MultiSteps(optax.sgd(rate), 3).gradient_transformation(),
        "neither in proportion",
    ),
    "never": (lambda rate: optax.sgd(0 * rate), "its first steps are zero"),
    "by names": (
        lambda rate: optax.multi_transform({"a": optax.sgd(rate), "b": optax.sgd(rate)}, {"one": "a", "two": "b"}),
        "does not take two arrays as parameters",
    ),
    "counting": (lambda rate: optax.chain(_counting(), optax.sgd(rate)), "_Count counts something"),
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


@pytest.mark.parametrize("name", UNSEEN)
def test_a_rate_that_cannot_be_seen_is_given(name):
    make, reason = UNSEEN[name]
    with pytest.raises(ValueError, match=rf"cannot be seen from outside: .*{reason}.*give rate= too, a number"):
        Descent(make(0.1))
    np.testing.assert_array_equal(Descent(make(0.1), rate=0.5).times(jnp.asarray([0.0, 0.6, 2.0])), [0.0, 0.5, 2.0])
    scheduled = Descent(make(0.1), rate=lambda step: 0.5 / (step + 1))
    np.testing.assert_allclose(scheduled.times(jnp.asarray([0.0, 0.45, 0.8])), [0.0, 0.5, 0.75], rtol=cases.eps(4))


def test_what_is_given_goes_before_what_is_seen():
    assert Descent(optax.sgd(0.1), rate=0.25).rate == 0.25


# --- schedules


@pytest.mark.parametrize("name", ["cosine", "stairs with momentum", "adam warming up", "injected schedule"])
def test_times_of_a_schedule_are_its_sums(name):
    dynamics = Descent(OPTIMIZERS[name][0])
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
    dynamics = Descent(optax.sgd(schedule))
    steps = np.array([0, 1023, 1024, 1025, 1500, 1501, 2500])
    ts = np.cumsum([0.0, *[float(np.asarray(schedule(k))) for k in range(2500)]])[steps]
    np.testing.assert_array_equal(dynamics.steps(jnp.asarray(ts, jnp.result_type(float))), steps)


def test_a_schedule_that_ends_is_followed_to_its_end_and_not_beyond():
    end = float(_times("cosine", 20)[-1])
    dynamics = Descent(optax.sgd(COSINE), max_steps=40)
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
    dynamics = Descent(optax.sgd(COSINE), until=until.loss_below(1.0001 * losses[-1]))
    trajectory = solve(cases.modes([1.0], [1.0]), dynamics, [jnp.inf])
    assert trajectory.stats.steps == steps
    np.testing.assert_allclose(trajectory.t_end, _times("cosine", steps)[-1], rtol=cases.eps(10))
    np.testing.assert_allclose(trajectory.final.loss, losses[-1], rtol=cases.eps(20))


# --- traced rates


MAKERS = {
    "sgd": lambda rate: optax.sgd(rate),
    "momentum": lambda rate: optax.sgd(rate, momentum=0.5, nesterov=True),
    "traced momentum": lambda rate: optax.sgd(0.1, momentum=5 * rate),
    "adam": lambda rate: optax.adamw(rate),
    "cosine": lambda rate: optax.sgd(optax.cosine_decay_schedule(rate, 20)),
}


@pytest.mark.parametrize("name", cases.slow_after(3, ["traced momentum", "adam", "cosine", "sgd", "momentum"]))
def test_rates_may_be_traced(name):
    make, rates = MAKERS[name], [0.1, 0.05]
    problem, ts = cases.modes([1.0, 2.0], [1.0, 0.5]), [0.0, 0.31, 0.45]

    def run(rate):
        trajectory = solve(problem, Descent(make(rate)), ts)
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
    tangent = eqx.tree_at(lambda d: d.optimizer.arrays[0], zeros, -one)  # optax holds -rate
    np.testing.assert_allclose(jax.jvp(lambda d: loss(d, 0.6), (dynamics,), (tangent,))[1], slope, rtol=1e-12)


# --- as pytrees


def test_the_same_optimiser_made_twice_compiles_once():
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


def test_functions_are_compared_by_what_they_hold():
    def make(factor, scale=2.0, *, shift=0.0):
        return lambda x, more=(scale, {"shift": shift}): factor * x * more[0] + more[1]["shift"]

    template = lambda *args, **options: Held(make(*args, **options)).template
    assert template(1.0) == template(1.0)
    assert hash(template(1.0)) == hash(template(1.0))
    others = (template(2.0), template(1), template(True), template(1.0, 3.0), template(1.0, shift=1.0), template(-0.0))
    for other in others:
        assert template(1.0) != other
    assert template(jnp.ones(2)) == template(jnp.zeros(2)) != template(1.0)
    assert template(np.ones(2)) == template(np.ones(2)) != template(np.zeros(2))
    assert template(object()) != template(object())
    assert template(functools.partial(make, 1.0)) == template(functools.partial(make, 1.0))
    assert template(functools.partial(make, 1.0)) != template(functools.partial(make, 2.0))


def test_functions_are_put_together_again():
    def make(factor: Any, *, complete: bool = False):
        def again(x, count):
            return x if count == 0 else factor * again(x, count - 1)  # it holds itself

        later = lambda x: 2 * x if x else unassigned  # a cell that stays empty
        if complete:
            unassigned = 1.0
        return lambda x, *, shift=factor: again(x, 1) + later(x) + shift + sum(part * x for part in [factor, factor])

    held = Held(make(jnp.asarray(3.0)))
    assert len(held.arrays) == 1
    plain = make(3.0)(2.0)
    assert plain == 25.0
    assert held.value(2.0) == plain
    assert Held(make(3.0)).value(2.0) == plain
    moved = jax.tree.map(lambda leaf: leaf + 1, Held(lambda x, f=jnp.asarray(3.0): f * x))
    assert moved.value(2.0) == 8.0


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
    assert Descent(optimizer).name == f"Descent({name})"


# --- the former way


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_former_way_works_and_names_the_new_one(momentum):
    more = r", momentum=0\.9" if momentum else ""
    with pytest.warns(DeprecationWarning, match=rf"give Descent\(sgd\(rate{more}\)\)"):
        former = Descent(optax.sgd, 0.1, momentum=momentum)
    with pytest.warns(DeprecationWarning, match="Descent"):
        by_name = Descent(factory=optax.sgd, rate=0.1, momentum=momentum)
    now = Descent(optax.sgd(0.1, momentum=momentum or None))
    ts = [0.0, 1.0, 3.0]
    for dynamics in (former, by_name):
        np.testing.assert_allclose(dynamics.times(jnp.asarray(ts)), now.times(jnp.asarray(ts)), rtol=cases.eps(60))
        np.testing.assert_allclose(_weights(dynamics, ts), _weights(now, ts), rtol=0, atol=cases.eps(30))
        assert dynamics.name == now.name


@pytest.mark.usefixtures("as_users")
@pytest.mark.filterwarnings("ignore:Descent:DeprecationWarning")
def test_bad_arguments_of_the_former_way():
    with pytest.raises(TypeError, match="factory must return an optax optimiser, got float"):
        Descent(lambda rate: 1.0, 0.1)  # pyright: ignore[reportArgumentType]
    for rate in (0.0, -0.1, float("nan"), float("inf"), [0.1, 0.2]):
        with pytest.raises(ValueError, match="rate must be one finite number > 0"):
            Descent(optax.sgd, rate)
    for momentum in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
            Descent(optax.sgd, 0.1, momentum=momentum)
