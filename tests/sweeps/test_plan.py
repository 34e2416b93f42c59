"""What is said of a sweep before it runs, and what is refused."""

import functools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import (
    Descent,
    FrozenKernel,
    GradientFlow,
    losses,
    nets,
    NotApplicable,
    observe,
    plan,
    Problem,
    sweep,
    theory,
    Zip,
)
from tests import cases
from tests.sweeps.inside import _plan, cores, Plan, resolve


TS = (0.0, 0.5, 1.0)
DESCENT = Descent(optax.sgd(0.25))


@functools.cache
def _data():
    with jax.ensure_compile_time_eval():  # drawn once, outside of any trace
        return cases.inputs(jr.key(9), 5), cases.inputs(jr.key(8), 5, 1)


def _problem(sigma: Any = 1.0, width: int = 4, depth: int = 1, activation: str = "tanh"):
    scaling = nets.Scaling.ntk(sigma=sigma)
    return Problem(
        nets.MLP(
            in_size=3, out_size=1, width_size=width, depth=depth, activation=activation, scaling=scaling, key=jr.key(0)
        ),
        *_data(),
    )


def _modes(rate: Any = 1.0, count: int = 2, kind: str = "slow"):
    return cases.modes(jnp.ones(count), rate * jnp.ones(count))


# What it says


def test_description():
    axes = {"rate": [0.5, 1.0, 2.0], "kind": ["slow", "fast"]}
    made = plan(_modes, axes, cases.ModesDecay(), TS, observe=[observe.loss(), observe.outputs()], batch_size=2)
    assert repr(made) == "Plan(6 lanes, 2 compilations: rate 3 x kind 2)"
    lines = made.describe().splitlines()
    assert lines[:4] == [
        "6 lanes: rate 3 x kind 2",
        "traced: rate; static: kind",
        "ModesDecay at 3 times from 0 to 1, observing loss, outputs",
        "2 compilations",
    ]
    for line, kind in zip(lines[4:6], ("slow", "fast"), strict=True):
        assert re.fullmatch(rf"  kind = {kind}: 3 lanes in batches of 2, [\d.]+ bytes, \d\.\de\+\d\d flop", line)
    # loss and two outputs, at three times, in six lanes
    size = 6 * 3 * 3 * jnp.zeros(()).dtype.itemsize
    assert lines[7] == f"results: {size} bytes"
    assert made.lanes == 6


def test_nothing_static_is_one_compilation():
    made = plan(_modes, [Zip(rate=[1.0, 2.0])], cases.ModesDecay(), 1.0)
    assert repr(made) == "Plan(2 lanes, 1 compilation: rate 2)"
    assert "traced: rate; static: none\n" in made.describe()
    assert "  all: 2 lanes in batches of 2, " in made.describe()
    assert "at 1 time from 1 to 1" in made.describe()


def test_many_compilations_are_not_all_listed(monkeypatch):
    monkeypatch.setattr(_plan, "SHOWN", 2)
    text = plan(_modes, {"count": [1, 2, 3]}, cases.ModesDecay(), TS).describe()
    assert sum(line.startswith("  count = ") for line in text.splitlines()) == 2
    assert "\n  and 1 more\n" in text


@pytest.mark.parametrize("dynamics", [DESCENT, GradientFlow()], ids=["descent", "flow"])
def test_memory_is_that_of_real_arrays(dynamics):
    """Against a lane that is made, of another seed."""
    made = plan(_problem, {"sigma": [1.0, 2.0]}, dynamics, TS, observe=observe.weight_norms())
    outline = _plan.LaneOutline(made, made.groups[0])
    problem = _problem()
    chosen = dynamics.choose(problem) if isinstance(dynamics, GradientFlow) else dynamics
    state = eqx.filter_jit(chosen.init)(problem, jnp.asarray(TS))  # pyright: ignore[reportAttributeAccessIssue]
    leaves = [leaf for leaf in jax.tree.leaves((problem.params, state)) if isinstance(leaf, jax.Array)]
    assert outline.state_bytes() == sum(leaf.nbytes for leaf in leaves)
    assert {name: seen.shape for name, seen in outline.observed.items()} == {"weight_norms": (3, 2)}
    observed = 2 * len(TS) * problem.x.dtype.itemsize
    # On a processor one lane marches on each core, however large the batch; of all of them the results are held.
    for size in (1, 50):
        marching = min(size, cores())
        assert outline.memory(size) == marching * outline.state_bytes() + size * observed


def test_cost_is_that_of_the_matrix_products():
    """A gradient takes 2 n P operations forward, and for each product one or two of the same size backward."""
    for width in (64, 128):
        made = plan(_problem, {"width": [width]}, GradientFlow(), TS)
        parameters = 3 * width + width
        outline = _plan.LaneOutline(made, made.groups[0])
        assert 4 * 5 * parameters < outline.flop() < 9 * 5 * parameters
        assert outline.times() is None
    assert "flop for one gradient of every lane (only a run shows how many), GradientFlow(Tsit5)" in made.describe()
    fixed = plan(_problem, {"width": [128]}, DESCENT, TS)
    assert _plan.LaneOutline(fixed, fixed.groups[0]).times() == 4  # steps of 0.25 to t = 1
    assert f"{4 * outline.flop():.1e} flop" in fixed.describe()


@pytest.mark.parametrize(("width", "name"), [(4, "ParameterSpace"), (64, "FunctionSpace")])
def test_a_flow_is_chosen_by_shapes_alone(width, name):
    """As in a sweep, where nothing else is known; with more outputs than Tsit5 is for."""

    def make():
        net = nets.MLP(
            in_size=3,
            out_size=1,
            width_size=width,
            depth=1,
            activation="tanh",
            scaling=nets.Scaling.ntk(),
            key=jr.key(0),
        )
        return Problem(net, jnp.ones((20, 3)), jnp.ones((20, 1)))

    shapes = eqx.filter_eval_shape(make)
    assert resolve(GradientFlow(), shapes).name == resolve(GradientFlow(), make()).name == f"GradientFlow({name})"


# One compilation for each combination of static arguments


def test_compilations(compilations):
    """As many programs for one combination as for the others, whatever is traced, and none that an earlier sweep of the
    process has compiled; planning compiles none."""

    def count(axes):
        made, before = plan(_modes, axes, cases.ModesDecay(), TS), len(compilations)
        made.describe()
        assert len(compilations) == before
        sweep(_modes, axes, cases.ModesDecay(), TS, progress=False)
        return len(compilations) - before, len(made.groups)

    one, groups = count({"rate": [0.5, 1.0], "count": [6]})
    assert (groups, one > 0) == (1, True)
    assert count({"rate": [0.5, 1.0, 2.0], "count": [8]}) == (one, 1)
    assert count({"count": [7, 9], "rate": [0.5, 1.0], "kind": ["slow"]}) == (2 * one, 2)
    assert count({"count": [7, 9], "rate": [0.6, 1.1], "kind": ["slow"]}) == (0, 2)


# What it refuses


def test_observables_whose_shape_depends_on_an_axis(compilations, tmp_path):
    axes = {"rate": [1.0, 2.0], "count": [2, 3], "kind": ["slow", "fast"]}
    message = (
        r"'outputs' has shapes \[\(3, 2, 1\), \(3, 3, 1\)\] along the axes \['count'\]; observe something whose shape"
    )
    with pytest.raises(ValueError, match=message):
        plan(_modes, axes, cases.ModesDecay(), TS, observe=observe.outputs())
    with pytest.raises(ValueError, match=message):
        sweep(
            _modes, axes, cases.ModesDecay(), TS, observe=observe.outputs(), store=tmp_path / "run.zarr", progress=False
        )
    assert not compilations
    assert not list(tmp_path.iterdir())
    assert plan(_modes, axes, cases.ModesDecay(), TS).lanes == 8  # the loss is one number in all


def test_shapes_that_depend_on_axes_only_together():
    build = lambda first, second: _modes(count=2 + (first == second))
    with pytest.raises(ValueError, match=r"along the axes \['first', 'second'\]"):
        plan(build, [Zip(first=[1, 2], second=[1, 3])], cases.ModesDecay(), TS, observe=observe.outputs())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"problem_fn": 3}, TypeError, "problem_fn must return the problem of a cell, got int 3"),
        (
            {"axes": {"rat": [1.0]}},
            TypeError,
            r"the axes \['rat'\], but takes .*unexpected keyword argument 'rat'",
        ),
        ({"problem_fn": lambda rate, speed: rate}, TypeError, "missing a required argument: 'speed'; name the axes"),
        ({"problem_fn": lambda rate: rate}, TypeError, r"must return a jaxsolve\.Problem, got an array of shape \(\)"),
        (
            {"dynamics": "sgd"},
            TypeError,
            r"dynamics must be such as GradientFlow\(\), or a function of axes .*, got str 'sgd'",
        ),
        ({"ts": [1.0, 0.5]}, ValueError, "ts must be sorted"),
        ({"axes": {"t": [1.0]}, "problem_fn": lambda t: t}, ValueError, r"axes may not be called \['t'\]"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer >= 1, got 0"),
        ({"observe": [observe.loss(), observe.loss()]}, ValueError, r"\['loss'\] appear more than once"),
        (
            {"dynamics": theory.TwoLayerLine()},
            NotApplicable,
            "TwoLayerLine does not solve this problem: it needs a dense network: it has Linear; ",
        ),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_arguments(changes, error, message):
    arguments = {"problem_fn": _modes, "axes": {"rate": [1.0]}, "dynamics": cases.ModesDecay(), "ts": TS} | changes
    with pytest.raises(error, match=message):
        plan(**arguments)


@pytest.mark.parametrize(
    ("loss", "size"), [(losses.MSE(), 80), pytest.param(losses.Logistic(), 64, marks=pytest.mark.slow)]
)
def test_the_default_batch_is_that_of_the_dynamics_that_runs(loss, size):
    """A frozen kernel is a closed form under MSE, and marches under any other loss."""
    build = lambda rate: cases.modes(rate * jnp.ones(2), jnp.ones(2), loss=loss)
    made = plan(build, {"rate": np.linspace(0.5, 1.0, 80)}, FrozenKernel(), TS)
    assert f"80 lanes in batches of {size}, " in made.describe()
    assert made.trace(made.groups[0]).size == size  # what `sweep` takes


def test_a_plan_is_only_read():
    made = plan(_modes, {"rate": [1.0]}, cases.ModesDecay(), TS)
    assert isinstance(made, Plan)
    np.testing.assert_array_equal(made.ts, TS)
    with pytest.raises(AttributeError, match="cannot assign"):
        made.problem_fn = _problem  # pyright: ignore[reportAttributeAccessIssue]
