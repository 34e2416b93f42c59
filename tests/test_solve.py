import functools

import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import (
    Descent,
    GradientFlow,
    nets,
    NotApplicable,
    observe,
    Problem,
    Quantity,
    result_names,
    RESULTS,
    solve,
    SolveError,
    until,
)
from tests import cases
from tests.inside import result_code


def _label(dynamics):
    return dynamics.name


def _assert_same_bits(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@functools.cache
def _modes():
    return cases.modes([2.0, -1.0], [1.0, 3.0])


# Times

WANTED = (
    observe.loss(),
    observe.outputs(),
    observe.Observable("time", lambda view: view.t, Quantity.OUTPUTS),
)


@pytest.mark.parametrize("dynamics", [GradientFlow(), Descent(optax.sgd(0.125)), cases.ModesDecay()], ids=_label)
def test_times_keep_their_shape(dynamics):
    ts = [0.0, 0.5, 1.25]
    many = solve(_modes(), dynamics, ts, observe=WANTED)
    np.testing.assert_array_equal(many.ts, ts)
    np.testing.assert_array_equal(many["time"], ts)  # observables see the time
    assert many["loss"].shape == (3,)
    assert many["outputs"].shape == (3, 2, 1)
    assert many.t_end == 1.25
    assert many.result == RESULTS.successful
    exact = [0.5 * (4 * np.exp(-2 * t) + 3 * np.exp(-6 * t)) for t in ts]
    np.testing.assert_allclose(many["loss"], exact, rtol=0.3 if isinstance(dynamics, Descent) else 1e-4)
    one = solve(_modes(), dynamics, 1.25, observe=WANTED)
    assert one.ts.shape == one["loss"].shape == ()
    assert one["outputs"].shape == (2, 1)
    np.testing.assert_allclose(one["loss"], many["loss"][-1], rtol=1e-4)
    start = solve(_modes(), dynamics, 0, observe=WANTED)
    np.testing.assert_allclose(start["loss"], 3.5, rtol=cases.eps(10))
    assert start.t_end == 0
    assert start.stats.steps == 0
    assert start.result == RESULTS.successful


def test_closed_forms_reach_infinity():
    trajectory = solve(_modes(), cases.ModesDecay(), [0.0, jnp.inf, jnp.inf])
    np.testing.assert_allclose(trajectory["loss"], [3.5, 0.0, 0.0], rtol=cases.eps(10))
    assert trajectory.t_end == jnp.inf


def test_marches_reach_infinity_with_a_condition():
    trajectory = solve(_modes(), GradientFlow(until=until.loss_below(0.1)), [0.0, jnp.inf, jnp.inf])
    assert trajectory.result == RESULTS.event
    np.testing.assert_allclose(trajectory["loss"][1:], 0.1, rtol=cases.eps(1e3))
    np.testing.assert_array_equal(trajectory.ts, [0.0, jnp.inf, jnp.inf])
    assert 0 < trajectory.t_end < 2


def test_observing_nothing_gives_the_end():
    trajectory = solve(_modes(), Descent(optax.sgd(0.125)), [1.25], observe=[])
    assert trajectory.observed == {}
    np.testing.assert_allclose(trajectory.final.params.w, [[2 * 0.875**10, -(0.625**10)]], rtol=cases.eps(50))


# Bad input


@pytest.mark.parametrize(
    ("ts", "error", "message"),
    [
        ([0.0, 2.0, 1.0], ValueError, r"ts must be sorted, but ts\[1\] = 2\.0 > ts\[2\] = 1\.0"),
        ([-1.0, 1.0], ValueError, r"ts must be >= 0 and not NaN, got a smallest value of -1\.0"),
        ([0.0, float("nan")], ValueError, "ts must be >= 0 and not NaN"),
        ([], ValueError, r"ts must be one time or a non-empty 1-D sequence, got shape \(0,\)"),
        ([[0.0, 1.0]], ValueError, r"non-empty 1-D sequence, got shape \(1, 2\)"),
        ([0.0, jnp.inf], ValueError, r"ts ends in inf.*GradientFlow\(Tsit5\).*until=until\.loss_below"),
        (None, TypeError, "ts must be a number or a sorted sequence of numbers, got NoneType None"),
        ("soon", TypeError, "ts must be a number or a sorted sequence of numbers, got str 'soon'"),
        ([0.0, [1.0, 2.0]], TypeError, "ts must be a number or a sorted sequence of numbers, got list"),
        ([1j], TypeError, "ts must be a number or a sorted sequence of numbers"),
        ([True, False], TypeError, "ts must be a number or a sorted sequence of numbers"),
    ],
)
def test_bad_times(ts, error, message):
    with pytest.raises(error, match=message):
        solve(_modes(), GradientFlow(), ts)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"problem": "parity"}, TypeError, r"problem must be a jaxsolve\.Problem, got str 'parity'"),
        ({"dynamics": GradientFlow}, TypeError, r"dynamics must be such as GradientFlow\(\), got"),
        ({"dynamics": "sgd"}, TypeError, "dynamics must be such as"),
        ({"observe": "loss"}, TypeError, r"observe must be observables such as \[observe\.loss\(\)\], got str 'loss'"),
        ({"observe": [observe.loss]}, TypeError, "observe must be observables"),
        ({"observe": None}, TypeError, "observe must be observables"),
        (
            {"observe": [observe.loss(), observe.outputs(), observe.loss()]},
            ValueError,
            r"a name of its own; \['loss'\] appear more than once",
        ),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        solve(**({"problem": _modes(), "dynamics": GradientFlow(), "ts": 1.0} | arguments))


@pytest.mark.parametrize(("wanted", "needs"), [(observe.kernel(), "kernel"), (observe.weight_norms(), "parameters")])
def test_what_the_dynamics_cannot_show(wanted, needs):
    with pytest.raises(ValueError, match=rf"needs {needs}, but ModesDecay provides only \['outputs'\]; GradientFlow"):
        solve(_modes(), cases.ModesDecay(), 1.0, observe=[observe.loss(), wanted])


def test_a_view_says_what_it_does_not_know():
    view = cases.ModesDecay().at(_modes(), jnp.zeros(()))
    np.testing.assert_allclose(view.loss, 3.5, rtol=cases.eps(10))
    for read, wanted in (("net", "the network"), ("test_outputs", "test outputs"), ("kernel", "the kernel")):
        with pytest.raises(ValueError, match=f"does not move parameters, so it cannot show {wanted}"):
            getattr(view, read)


def test_no_test_set():
    with pytest.raises(ValueError, match="has no test set; give Problem"):
        solve(_modes(), Descent(optax.sgd(0.1)), 1.0, observe=observe.test_loss())


def test_closed_forms_say_what_they_do_not_solve():
    neuron = Problem(
        nets.SingleNeuron(in_size=1, scaling=nets.Scaling.ntk(), key=jr.key(0)), jnp.ones((1, 1)), jnp.ones((1, 1))
    )
    with pytest.raises(NotApplicable, match="ModesDecay does not solve this problem: it needs modes: another network"):
        solve(neuron, cases.ModesDecay(), 1.0, throw=False)
    fast = cases.modes([1.0], [150.0])
    with pytest.raises(NotApplicable, match=r"it needs rates up to 100 \(violation 50, tolerance 0"):
        solve(fast, cases.ModesDecay(), 1.0)
    assert solve(fast, cases.ModesDecay(), 1.0, throw=False).result == RESULTS.not_applicable
    run = jax.vmap(lambda rate: solve(cases.modes([1.0], rate[None]), cases.ModesDecay(), 1.0).result)
    names = result_names(result_code(run(jnp.array([1.0, 150.0, jnp.nan]))))
    assert list(names) == ["successful", "not_applicable", "invalid"]


# Failure


def test_failure_raises_with_advice_or_returns():
    problem, dynamics = _modes(), GradientFlow(diffrax.Tsit5(), max_steps=3)
    with pytest.raises(SolveError) as raised:
        solve(problem, dynamics, [0.0, 100.0])
    message = str(raised.value)
    for part in (
        "GradientFlow(Tsit5) ended at t = ",
        "after 3 steps: max_steps",
        "Raise `max_steps`",
        "`throw=False` returns the trajectory up to there",
    ):
        assert part in message
    trajectory = solve(problem, dynamics, [0.0, 100.0], throw=False)
    assert trajectory.result == RESULTS.max_steps
    assert trajectory.stats.steps + trajectory.stats.rejected == 3
    assert 0 < trajectory.t_end < 100
    np.testing.assert_array_equal(np.isnan(trajectory["loss"]), [False, True])
    assert np.all(np.isfinite(trajectory.final.params.w))


def test_inside_a_trace_nothing_raises():
    run = jax.jit(
        lambda w: solve(cases.modes(w[None], [1.0]), GradientFlow(diffrax.Tsit5(), max_steps=3), [0.0, 100.0])
    )
    assert run(jnp.array(1.0)).result == RESULTS.max_steps


@pytest.mark.parametrize("condition", [None, until.loss_below(1e-3)])
def test_max_time_and_event_are_no_failures(condition):
    trajectory = solve(_modes(), Descent(optax.sgd(0.125), until=condition), [0.0, 0.5])
    assert trajectory.result == (RESULTS.successful if condition is None else RESULTS.max_time)


# Progress


@pytest.mark.parametrize(
    "dynamics", [GradientFlow(), Descent(optax.adam(0.01), batch_size=1, key=jr.key(0))], ids=_label
)
def test_progress_shows_and_changes_no_bit(dynamics, capsys):
    ts = np.linspace(0, 3, 7)
    silent = solve(_modes(), dynamics, ts)
    assert capsys.readouterr().err == ""
    visible = solve(_modes(), dynamics, ts, progress=True)
    shown = capsys.readouterr()
    assert "7/7" in shown.err
    assert dynamics.name in shown.err
    assert shown.out == ""
    _assert_same_bits(visible, silent)


def test_progress_inside_a_trace_shows_nothing(capsys):
    run = lambda w: solve(cases.modes(w[None], [1.0]), Descent(optax.sgd(0.125)), [0.5, 1.0], progress=True)["loss"]
    np.testing.assert_allclose(jax.jit(run)(jnp.array(1.0)), 0.5 * 0.875 ** np.array([8.0, 16.0]), rtol=cases.eps(50))
    constant = jax.jit(lambda: run(jnp.array(1.0)))()
    np.testing.assert_array_equal(constant, jax.vmap(run)(jnp.ones(2))[0])
    assert capsys.readouterr().err == ""


# Transformations


def _read(v):
    """What is seen of a tanh network at (sigma, gamma), up to where it has lost enough."""
    net = cases.mlp(jr.key(2), depth=1, sigma=v[0] * jnp.array([0.9, 0.7]), gamma=v[1])
    x, y = (
        jnp.array([[1.0, 0.5, -0.3], [0.2, -1.0, 0.8], [-0.6, 0.4, 1.5]]),
        jnp.array([[1.0, -0.5], [0.3, 0.8], [-1.2, 0.1]]),
    )
    problem = Problem(net, x, y, centered=True)
    flow = GradientFlow(rtol=1e-9, atol=1e-11, until=until.loss_fraction(0.4))
    trajectory = solve(problem, flow, [0.0, 0.2, 0.5, 9.0], observe=[observe.loss(), observe.layer_alignment()])
    return {**trajectory.observed, "t_end": trajectory.t_end, "norm": jnp.sum(trajectory.final.params.weights[0] ** 2)}


@pytest.mark.x64_only
def test_forward_derivatives_are_those_of_finite_differences():
    v, step = jnp.array([1.1, 0.8]), 1e-4
    both = jax.jit(jax.jacfwd(lambda v: (_read(v),) * 2, has_aux=True))
    jacobian, value = both(v)
    assert 0.5 < value["t_end"] < 9.0  # the last time holds the event's state
    right, left = ([both(v + sign * step * e)[1] for e in np.eye(2)] for sign in (1, -1))
    for name, derivative in jacobian.items():
        difference = np.stack([(r[name] - l[name]) / (2 * step) for r, l in zip(right, left, strict=True)], axis=-1)
        np.testing.assert_allclose(derivative, difference, rtol=0, atol=2e-7 * max(1, np.abs(difference).max()))
        mistaken = derivative[..., ::-1]  # sigma for gamma
        assert np.abs(mistaken - difference).max() > 1e-3 * np.abs(difference).max()
    assert np.abs(jacobian["t_end"]).min() > 0.1


calls = []


def _counted(f, y):
    calls.append(1)
    return jnp.sum((f - y) ** 2) / 2


@pytest.mark.parametrize("kind", [GradientFlow, Descent])
def test_numbers_and_keys_do_not_recompile(kind):
    def run(seed, sigma, eta, gamma, rate, threshold, ts):
        rule = nets.Scaling.ntk(gamma, sigma=sigma, eta=eta)
        net = nets.MLP(in_size=3, out_size=1, width_size=4, depth=1, activation="tanh", scaling=rule, key=jr.key(seed))
        data = cases.inputs(jr.key(seed)), cases.inputs(jr.key(seed), 4, 1)
        condition = until.loss_below(threshold)
        if kind is Descent:
            dynamics = Descent(optax.adam(jnp.asarray(rate, float)), batch_size=2, key=jr.key(seed), until=condition)
        else:
            dynamics = GradientFlow(until=condition)
        return solve(Problem(net, *data, loss=_counted), dynamics, ts)["loss"][0]

    calls.clear()
    first = run(0, 1.0, 1.0, 1.0, 0.1, 1e-3, [0.1, 0.2])
    assert calls
    calls.clear()
    others = [
        run(1, 1.0, 1.0, 1.0, 0.1, 1e-3, [0.1, 0.2]),
        run(0, 0.5, 1.0, 1.0, 0.1, 1e-3, [0.1, 0.2]),
        run(0, 1.0, jnp.array(2.0), 1.0, 0.1, 1e-3, [0.1, 0.2]),
        run(0, 1.0, 1.0, -2, 0.1, 1e-3, [0.1, 0.2]),
        run(0, 1.0, 1.0, 1.0, 0.05 + 0.0 * jnp.ones(()), 1e-3, [0.1, 0.2]),
        run(0, 1.0, 1.0, 1.0, 0.1, 10.0, [0.1, 0.2]),
        run(0, 1.0, 1.0, 1.0, 0.1, 1e-3, np.array([0, 7])),
    ]
    assert not calls
    assert len({float(value) for value in [first, *others]}) == 8 - (2 if kind is GradientFlow else 1)


def test_a_closed_form_is_differentiable_and_batches():
    run = lambda rate: solve(cases.modes([2.0], rate[None]), cases.ModesDecay(), jnp.array([0.0, 1.0]))["loss"]
    np.testing.assert_allclose(
        jax.jit(jax.vmap(run))(jnp.array([1.0, 3.0])),
        [[2 * r * np.exp(-2 * r * t) for t in (0, 1)] for r in (1, 3)],
        rtol=cases.eps(50),
    )
    gradient = jax.grad(lambda rate: run(rate)[1])(jnp.array(3.0))
    np.testing.assert_allclose(gradient, (2 - 12) * np.exp(-6), rtol=cases.eps(100))
