"""What identifies a plan: two that compute something else are told apart, and what computes the same stays itself."""

import functools
import importlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxsolve as js
from tests import cases
from tests.sweeps.inside import describe_value, plan_facts, program_text, read_plan


TS = (0.0, 1.0)
RATES = {"rate": [0.5, 1.0]}
STEPS = js.Descent(optax.sgd(0.1))


def _modes(rate):
    return cases.modes(jnp.ones(1), rate[None])


def _facts(problem_fn=_modes, axes: Any = RATES, dynamics: Any = STEPS, observe: Any = None, ts: Any = TS):
    plan = read_plan(problem_fn, axes, dynamics, ts, observe=[js.observe.loss()] if observe is None else observe)
    return json.loads(json.dumps(plan_facts(plan), allow_nan=False))


def _programs(*args, **options):
    return [(each["problem"], each["run"]) for each in _facts(*args, **options)["programs"]]


# What is told apart


class _Held:
    scale = 1.0


OFFSET = 0.0
DATA = np.linspace(0.0, 1.0, 50, dtype=np.float32)


def _made(scale: Any = 1.0, *, wrap: Any = lambda f: f, extra: Any = 0.0):
    """A function of problems that takes a number from a closure, and calls it in a transformation."""
    inner = wrap(lambda rate: scale * rate + extra)
    return lambda rate: _modes(inner(rate))


def _net(activation="tanh", width=3, key=0, sigma=1.0):
    scaling = js.nets.Scaling.ntk(sigma=sigma)
    net = js.nets.MLP(
        in_size=2,
        out_size=1,
        width_size=width,
        depth=1,
        activation=activation,
        scaling=scaling,
        key=jax.random.key(key),
    )
    return lambda rate: js.Problem(net, rate * jnp.eye(2), jnp.ones((2, 1)))


def _scanned(factor):
    """A number that only the body of a loop has, inside of a branch."""
    step = lambda total, _: (jax.lax.cond(total > 0, lambda t: factor * t, lambda t: t, total), None)
    return lambda rate: _modes(jax.lax.scan(step, rate, None, 3)[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_made(1.0), _made(1.5)),
        (_made(0.1), _made(0.1 + 1e-6)),
        (_made(wrap=jax.jit), _made(2.0, wrap=jax.jit)),
        (_made(wrap=jax.grad), _made(2.0, wrap=jax.grad)),
        (_made(wrap=jax.jit), _made(wrap=jax.grad)),
        (_scanned(1.0), _scanned(2.0)),
        (_net("tanh"), _net("relu")),
        (_net(width=3), _net(width=4)),
        (_net(key=0), _net(key=1)),
        (_net(sigma=1.0), _net(sigma=1.5)),
    ],
)
def test_another_problem_is_another_program(one, other):
    assert _programs(one) == _programs(one)
    (before,), (now,) = _programs(one), _programs(other)
    assert before[0] != now[0]
    assert before[1] != now[1]


def test_one_changed_number_of_the_data_is_another_program():
    data = DATA.copy()
    problem = lambda rate: _modes(rate * jnp.sum(jnp.asarray(data)).astype(rate.dtype))
    first = _programs(problem)
    assert _programs(problem) == first
    data[17] = np.nextafter(data[17], np.float32(9))
    assert _programs(problem) != first


def test_what_functions_call_and_read_is_in_the_program(tmp_path, monkeypatch):
    """A module, a class, a global, a file and the environment."""
    (tmp_path / "own_models_of_tests.py").write_text("SCALE = 1.0\ndef make():\n    return SCALE\n")
    monkeypatch.syspath_prepend(tmp_path)
    models: Any = importlib.import_module("own_models_of_tests")
    file = tmp_path / "scale.txt"
    file.write_text("1.0")

    def problem(rate):
        import own_models_of_tests as imported  # pyright: ignore[reportMissingImports]

        return _modes(rate * imported.make() * _Held.scale * float(file.read_text()) + OFFSET)

    found = [_programs(problem)]
    with monkeypatch.context() as patch:
        patch.setattr(models, "SCALE", 2.0)
        found.append(_programs(problem))
    with monkeypatch.context() as patch:
        patch.setattr(_Held, "scale", 3.0)
        found.append(_programs(problem))
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "OFFSET", 0.5)
        found.append(_programs(problem))
    file.write_text("4.0")
    found.append(_programs(problem))
    assert len({str(each) for each in found}) == 5
    file.write_text("1.0")
    assert _programs(problem) == found[0]


def _observed(scale):
    return [js.observe.Observable("loss", lambda view: scale * view.loss, needs=js.observe.loss().needs)]


def _until(level):
    return js.Descent(optax.sgd(0.1), until=js.until.loss_below(level))


def _steps_of(factor):
    return lambda rate: js.Descent(optax.sgd(factor * rate))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"observe": _observed(1.0)}, {"observe": _observed(2.0)}),
        ({"dynamics": js.Descent(optax.sgd(0.1))}, {"dynamics": js.Descent(optax.sgd(0.2))}),
        ({"dynamics": _until(0.1)}, {"dynamics": _until(0.2)}),
        ({"dynamics": js.Descent(optax.adam(0.1, b1=0.9))}, {"dynamics": js.Descent(optax.adam(0.1, b1=0.8))}),
        ({"dynamics": js.GradientFlow()}, {"dynamics": js.GradientFlow(rtol=1e-3)}),
        ({"dynamics": _steps_of(1.0)}, {"dynamics": _steps_of(2.0)}),
    ],
)
def test_another_dynamics_or_observable_is_another_run_of_the_same_problem(one, other):
    (before,), (now,) = _programs(**one), _programs(**other)
    assert _programs(**one) == [before]
    assert before[0] == now[0]
    assert before[1] != now[1]


def test_the_way_back_of_a_users_own_rule_is_in_the_run():
    """Forward they are the same; only a gradient goes the other way."""

    def loss_with(factor):
        @jax.custom_vjp
        def same(x):
            return x

        same.defvjp(lambda x: (x, None), lambda _, g: (factor * g,))

        class Net(cases.Linear):
            def __call__(self, x):
                return same(self.w) @ x

        return lambda rate: js.Problem(Net(jnp.ones((1, 1))), rate * jnp.ones((1, 1)), jnp.zeros((1, 1)))

    (before,), (now,) = _programs(loss_with(1.0)), _programs(loss_with(2.0))
    assert before[0] == now[0]
    assert before[1] != now[1]


# What stays itself


def test_names_and_words_are_no_difference():
    def problem(rate):
        """A docstring."""
        helper = jax.jit(lambda renamed: 2.0 * renamed)  # a comment
        return _modes(helper(rate))

    @jax.jit
    def another_name(x):
        return 2.0 * x

    assert _programs(problem) == _programs(lambda rate: _modes(another_name(rate)))


def test_logs_and_caches_are_no_difference():
    log: list[Any] = []

    def problem(rate):
        log.append(object())
        return _modes(rate)

    first = _facts(problem)
    assert log
    assert _facts(problem) == first


def test_a_program_is_the_same_whatever_jax_has_cached():
    """Parts that JAX keeps it prints once, others as often as they are used."""

    def norm(x):
        return jnp.linalg.norm(jnp.where(x > 0, x, 0.0)) + jnp.linalg.norm(jnp.where(x > 1, x, 0.0))

    first = program_text(jax.make_jaxpr(norm)(jnp.ones(3)))
    jax.clear_caches()
    assert program_text(jax.make_jaxpr(norm)(jnp.ones(3))) == first
    assert "0x" not in first
    twin = lambda x: norm(x) + jnp.linalg.norm(x)
    assert program_text(jax.make_jaxpr(twin)(jnp.ones(3))) != first


def test_numbers_of_axes_and_times_are_inputs_of_the_program():
    """So that those of another machine, which rounds in its own way, are no other program."""
    near = {"rate": np.nextafter(RATES["rate"], 9.0)}
    assert _programs(axes=near, ts=np.nextafter(TS, 9.0)) == _programs()


# Settings


def test_settings_are_written_out():
    flow = describe_value(js.GradientFlow(rtol=1e-5, until=js.until.loss_below(0.125)))
    assert flow["type"] == "GradientFlow"
    assert flow["rtol"] == 1e-5
    assert flow["until"] == {"type": "_LossBelow", "threshold": 0.125}
    values = {"a": (1, 2.5, True, None), "inf": float("inf"), 4: np.float32(0.5), "f": jnp.tanh, "o": object()}
    assert describe_value(values) == {"a": [1, 2.5, True, None], "inf": "inf", "4": 0.5, "f": "tanh", "o": "object"}
    assert describe_value(jnp.array([[1.0, jnp.nan], [2.0, 3.0]])) == [[1.0, "nan"], [2.0, 3.0]]
    assert describe_value(jax.random.key(3))["key"] == [0, 3]
    long = np.zeros(20_000, np.float32)
    assert describe_value(long)["shape"] == [20_000]
    assert describe_value(long) != describe_value(np.ones_like(long))
    assert describe_value(long) == describe_value(jnp.asarray(long))


def test_how_random_numbers_are_drawn_is_of_the_plan(tmp_path):
    run = functools.partial(js.sweep, _modes, RATES, STEPS, TS, store=tmp_path / "run.zarr", progress=False)
    run()
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match=r'prng: "threefry2x32" in the store, "rbg" now'):
        run()
    with (
        jax.threefry_partitionable(False),
        pytest.raises(ValueError, match="threefry_partitionable: true in the store, false now"),
    ):
        run()


def test_integers_are_not_the_floats_that_they_equal(tmp_path):
    """10 ** -1 of integers is none; a store of them is not carried on with floats."""
    problem = lambda power: cases.modes([1.0], 10 ** (1 - power) * jnp.ones(1))
    run = lambda values: js.sweep(problem, {"power": values}, STEPS, TS, store=tmp_path / "run.zarr", progress=False)
    run([1, 2])
    run([1, 2])
    with pytest.raises(ValueError, match="another plan"):
        run([1.0, 2.0])
