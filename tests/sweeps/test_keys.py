"""Every lane of a stochastic dynamics draws numbers of its own, which depend on nothing but its place in the grid."""

import functools
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from jaxsolve import Descent, FrozenKernel, Problem, solve, StochasticFlow, sweep
from jaxsolve.observe import outputs
from tests import cases
from tests.sweeps.inside import (
    _execute,
    groups,
    INDEX,
    Lockstep,
    Looped,
    read_axes,
    run_group,
    trace_group,
)


QUIET = functools.partial(sweep, progress=False)
KEY = jr.key(3)
TS = [0.0, 0.5, 1.0]
# Two static combinations: the second begins at lane 4. Nothing depends on the repeat.
AXES = {"kind": ["slow", "fast"], "repeat": range(4)}
DRAWS = Descent(optax.sgd(0.1), batch_size=1, key=KEY)


def _line(kind: str, repeat: Any):
    """Five samples that do not commute: each order of them ends elsewhere."""
    del repeat
    x = (2.0 if kind == "fast" else 1.0) * jnp.cos(jnp.arange(10.0) ** 2).reshape(5, 2)
    return Problem(cases.Linear(jnp.ones((1, 2))), x, jnp.sin(x[:, :1]))


def _with_key(dynamics: Any, key: Any) -> Any:
    if isinstance(dynamics, FrozenKernel):
        return FrozenKernel(flow=_with_key(dynamics.flow, key))
    if isinstance(dynamics, StochasticFlow):
        return StochasticFlow(dynamics.temperature, key=key)
    return Descent(optax.sgd(dynamics.rate), batch_size=1, key=key)


@pytest.mark.parametrize(
    "dynamics",
    [DRAWS, StochasticFlow(0.05, key=KEY), FrozenKernel(flow=DRAWS)],
    ids=["descent", "stochastic flow", "frozen kernel"],
)
def test_a_lane_is_the_solve_whose_key_is_folded_with_its_index(dynamics):
    data = QUIET(_line, AXES, dynamics, TS, observe=outputs())["outputs"].values
    assert len({lane.tobytes() for lane in data.reshape(8, -1)}) == 8
    for kind, repeat in ((0, 2), (1, 3)):
        lane = np.ravel_multi_index((kind, repeat), (2, 4))
        same, other = (
            solve(_line(("slow", "fast")[kind], 0), _with_key(dynamics, jr.fold_in(KEY, i)), TS, observe=outputs())
            for i in (lane, lane + 1)
        )
        close = lambda run, row=data[kind, repeat]: np.testing.assert_allclose(row, run["outputs"], rtol=cases.eps(1e3))
        close(same)
        cases.assert_fails(lambda close=close, other=other: close(other))


def test_lanes_of_the_full_batch_are_equal():
    data = QUIET(_line, AXES, Descent(optax.sgd(0.1)), TS, observe=outputs())["outputs"].values
    for row in data[:, 1:].swapaxes(0, 1):
        assert row.tobytes() == data[:, 0].tobytes()


def _rows(program: Any, order: Any) -> dict[int, bytes]:
    """The bits of lanes that run in this order, by index."""
    done = list(run_group(program.of(np.asarray(order))))
    return {
        int(lane): np.asarray(row).tobytes()
        for item in done
        for lane, row in zip(item.lanes, item.rows["outputs"], strict=True)
    }


@pytest.mark.parametrize("kind", [Looped, Lockstep], ids=["looped", "stepped"])
def test_draws_do_not_depend_on_order_neighbors_and_interruptions(kind, monkeypatch):
    monkeypatch.setattr(_execute, "_kind", lambda *args: kind)
    _, group = groups(read_axes({"kind": ["slow", "fast"], "repeat": range(7)}))
    program = trace_group(_line, group, DRAWS, (outputs(),), jnp.array(TS), 3)
    program.runner.compile()
    whole = _rows(program, range(7))
    assert set(whole) == set(range(7, 14))
    assert len(set(whole.values())) == 7
    assert _rows(program, [6, 2, 0, 5, 1, 4, 3]) == whole
    parts = _rows(program, [4, 1, 6]) | _rows(program, [5]) | _rows(program, [3, 0, 2])
    assert parts == whole


def test_draws_do_not_depend_on_batches_and_resumption(tmp_path):
    run = lambda **options: QUIET(_line, AXES, DRAWS, TS, observe=outputs(), **options)["outputs"].values
    whole = run()
    np.testing.assert_allclose(run(batch_size=3), whole, rtol=cases.eps(1e3))

    class Stop(Exception):
        pass

    def stopping(kind: str, repeat: Any):
        if kind == "fast" and not go_on:
            raise Stop
        return _line(kind, repeat)

    go_on: list[bool] = []
    resumed = lambda: QUIET(stopping, AXES, DRAWS, TS, observe=outputs(), store=tmp_path / "run.zarr")
    with pytest.raises(Stop):
        resumed()
    go_on.append(True)
    assert resumed()["outputs"].values.tobytes() == whole.tobytes()


def test_programs_without_a_key_know_no_index():
    group, _ = groups(read_axes(AXES))
    trace = lambda dynamics: trace_group(_line, group, dynamics, (outputs(),), jnp.array(TS), None)
    assert INDEX in trace(DRAWS).runner.builder.cell
    assert list(trace(Descent(optax.sgd(0.1))).runner.builder.cell) == ["repeat"]
    assert list(trace(cases.ModesDecay()).runner.builder.cell) == ["repeat"]


@pytest.mark.usefixtures("as_users")
def test_keys_are_typed():
    """Others would not be known for keys."""
    with pytest.raises(
        TypeError, match=r"key must be a JAX random key such as jax\.random\.key\(0\), or None, got an array of shap"
    ):
        Descent(optax.sgd(0.1), batch_size=1, key=jr.PRNGKey(0))
