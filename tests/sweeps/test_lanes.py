"""Lanes in the three ways in which they run."""

import functools
import logging
import re
import threading
import time
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import xarray as xr
from hypothesis import given, settings, strategies as st

from jaxsolve import (
    Descent,
    GradientFlow,
    nets,
    observe,
    Problem,
    Quantity,
    solve,
    sweep,
    theory,
    until,
    Zip,
)
from tests import cases
from tests.cases import assert_fails
from tests.sweeps.inside import (
    _execute,
    Batch,
    Devices,
    Fused,
    groups,
    LaneQueue,
    Lockstep,
    Looped,
    OutOfMemory,
    read_axes,
    rows_of,
    run_group,
    trace_group,
    TracedGroup,
    WINDOW,
)


QUIET = functools.partial(sweep, progress=False)
# Descent to a loss: the slower a mode decays, the more steps. The negative power is a lane that is invalid at once.
DYNAMICS = Descent(optax.sgd(0.1), until=until.loss_below(1e-3), max_steps=400)
RATES = np.array([0.1, 3.0, 1.0, 0.3, 5.0, 0.5, 2.0, 0.2, 4.0, 0.15, 1.5])
POWERS = np.array([1.0, 4.0, -1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 1.0, 1.0, 4.0])
LANES = len(RATES)
OBSERVED = (observe.loss(), observe.outputs())


def _modes(rate: Any, power: Any = 1.0):
    return cases.modes(jnp.sqrt(jnp.asarray(power)) * jnp.ones(2), jnp.stack([jnp.asarray(rate), jnp.ones(())]))


def _traced(kind: Any, batch_size: int, problem_fn: Any = _modes, dynamics: Any = DYNAMICS, **axes: Any) -> TracedGroup:
    """A group traced for lanes that run in this way, whatever would be chosen."""
    axes = axes or {"rate": RATES, "power": POWERS}
    (group,) = groups(read_axes(Zip(**axes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_execute, "_kind", lambda *args: kind)
        return trace_group(problem_fn, group, dynamics, OBSERVED, jnp.array([0.0, 0.5, jnp.inf]), batch_size)


@functools.cache
def _compiled(kind: Any, batch_size: int) -> TracedGroup:
    program = _traced(kind, batch_size)
    program.runner.compile()
    return program


def _rows(program: TracedGroup, order: Any = None, **options: Any) -> dict[str, np.ndarray]:
    """What comes out of lanes in the order given, by variable, in the order of the group."""
    part = program if order is None else program.of(np.asarray(order))
    done = list(run_group(part, **options))
    lanes = np.concatenate([item.lanes for item in done])
    assert len(np.unique(lanes)) == len(lanes)
    where = np.argsort(lanes)
    rows = jax.tree.map(lambda *parts: np.concatenate(parts)[where], *(item.rows for item in done))
    totals = {"useful": sum(item.useful for item in done), "executed": sum(item.executed for item in done)}
    return rows | {"lanes": lanes[where]} | {name: np.array(value) for name, value in totals.items()}


def _same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name in ("loss", "outputs", "t_end", "result", "steps", "lanes"):
        assert a[name].tobytes() == b[name].tobytes(), name


def _taken(rows: dict[str, np.ndarray], lanes: np.ndarray) -> dict[str, np.ndarray]:
    return {name: value[lanes] if value.ndim else value for name, value in rows.items()}


MARCHES = [Looped, Lockstep]
EACH_MARCH = pytest.mark.parametrize("kind", MARCHES, ids=["looped", "stepped"])


# Lanes are solves


@EACH_MARCH
def test_lanes_are_solves(kind):
    """More lanes than places: some enter when others have left."""
    rows = _rows(_compiled(kind, 3))
    assert rows["result"].tolist() == [7 if power < 0 else 1 for power in POWERS]
    assert len(np.unique(rows["steps"])) > 6
    for lane in (0, 4, 9):
        run = solve(_modes(RATES[lane], POWERS[lane]), DYNAMICS, [0.0, 0.5, jnp.inf])
        assert rows["steps"][lane] == run.stats.steps
        np.testing.assert_allclose(rows["loss"][lane], run["loss"], rtol=cases.eps(1e3))
        np.testing.assert_allclose(rows["t_end"][lane], run.t_end, rtol=cases.eps(10))
    assert_fails(lambda: np.testing.assert_allclose(rows["loss"][3], rows["loss"][4], rtol=1e-2))


def test_steps_are_counted():
    """A loop makes those of the lanes and no other; in lockstep finished lanes wait, but for less than the slowest."""
    looped, stepped = (_rows(_compiled(kind, 3)) for kind in MARCHES)
    steps = int(looped["steps"].sum())  # of descent none is rejected
    assert looped["useful"] == looped["executed"] == stepped["useful"] == steps
    plain = -(-LANES // 3) * 3 * int(looped["steps"].max())  # batches that wait for their slowest lane, at worst
    assert steps < stepped["executed"] < 0.75 * plain
    assert int(stepped["executed"]) % 3 == 0


def test_a_group_that_fits_into_a_batch_enters_it_at_once(monkeypatch):
    """An accelerator waits for each call; where some lanes wait for places, each call lets a part enter and leave."""
    calls, call = [], Lockstep._call
    monkeypatch.setattr(Lockstep, "_call", lambda *args: calls.append(args) or call(*args))
    entering = lambda rows: sum(bool((places < rows).any()) for _, _, places, *_ in calls)
    whole = _rows(_compiled(Lockstep, LANES))
    assert entering(LANES) == 1
    assert whole["executed"] == LANES * whole["steps"].max()
    calls.clear()
    _same(_rows(_compiled(Lockstep, 3)), whole)
    assert entering(3) > 1


# Bits


@EACH_MARCH
@settings(max_examples=12)
@given(order=st.permutations(range(LANES)), cut=st.integers(1, LANES - 1))
def test_bits_do_not_depend_on_order_neighbors_and_interruptions(kind, order, cut):
    """Any lanes in any order, also when the rest runs later in other company."""
    program = _compiled(kind, 3)
    whole = _rows(program)
    _same(_rows(program, order), whole)
    for part in (np.sort(order[:cut]), np.sort(order[cut:])):
        _same(_rows(program, part), _taken(whole, part))
    with pytest.raises(AssertionError, match="loss"):
        _same(_taken(whole, np.array([*range(1, LANES), 0])), whole)


@EACH_MARCH
def test_threads_leave_the_bits_alone(kind, monkeypatch):
    program = _compiled(kind, 3)
    whole = _rows(program)
    monkeypatch.setattr(program.runner, "streams", 3)
    _same(_rows(program), whole)


@pytest.mark.slow
@EACH_MARCH
def test_bits_of_an_adaptive_flow(kind):
    """A network whose lanes take different numbers of steps, some of them rejected."""

    def build(gamma, sigma):
        rule = nets.Scaling.lazy(gamma, sigma=sigma)
        net = nets.MLP(in_size=3, out_size=1, width_size=4, depth=1, activation="tanh", scaling=rule, key=jr.key(0))
        x, y = jnp.linspace(-1, 1, 24).reshape(8, 3), jnp.linspace(1, -1, 8)[:, None] ** 3
        return Problem(net, x, y, centered=True)

    axes = {"gamma": np.geomspace(1e-2, 1e2, 9), "sigma": np.tile([0.5, 1.0, 2.0], 3)}
    flow = GradientFlow(diffrax.Tsit5(), rtol=1e-3, atol=1e-6, until=until.loss_below(1e-3), max_steps=500)
    program = _traced(kind, 4, build, flow, **axes)
    program.runner.compile()
    whole = _rows(program)
    assert len(np.unique(whole["steps"])) > 4
    for order in ([8, 0, 7, 1, 6, 2, 5, 3, 4], [2, 4, 6], [5]):
        _same(_rows(program, order), _taken(whole, np.sort(order)))


def test_threads_follow_the_precision_of_their_caller():
    """Which may be that of a block of code, unlike what the process has."""
    with jax.enable_x64(not cases.X64):
        data = QUIET(_modes, {"rate": RATES}, cases.ModesDecay(), [0.5])
    assert data["loss"].dtype == (np.float32 if cases.X64 else np.float64)
    np.testing.assert_allclose(data["loss"][:, 0], (RATES * np.exp(-RATES) + np.exp(-1.0)) / 2, rtol=1e-6)


# Which way is chosen


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_device_chooses_how_lanes_run(platform):
    where = Devices(jax.local_devices()[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Devices, "on_cpu", platform == "cpu")
        assert _execute._kind(cases.ModesDecay(), where) is Fused
        for dynamics in (DYNAMICS, GradientFlow()):
            assert _execute._kind(dynamics, where) is (Looped if platform == "cpu" else Lockstep)
            assert _execute.default_batch(dynamics, 5000, where) == (64 if platform == "cpu" else 1024)


# Costs


def test_the_dearest_lane_runs_first():
    """Cost is a product of functions of two arguments: after some lanes have been seen the order is right."""
    a, b = (part.ravel() for part in np.meshgrid(np.arange(12), np.arange(10), indexing="ij"))
    cost = 2.0 ** ((a - 3) ** 2 / 10) * 3.0**b
    waiting = LaneQueue({"a": a, "b": b}, 120)
    seen = waiting.take(40)
    assert len(np.unique(a[seen])) == 12  # spread over the grid
    assert len(np.unique(b[seen])) == 10
    waiting.learn(seen, cost[seen])
    rest = waiting.take(200)
    assert sorted([*seen, *rest]) == list(range(120))
    assert np.corrcoef(np.arange(80), np.log(cost[rest]))[0, 1] < -0.9
    unsorted = LaneQueue({"a": a, "b": b}, 120)
    order = unsorted.take(120)[40:]
    assert abs(np.corrcoef(np.arange(80), np.log(cost[order]))[0, 1]) < 0.3


@pytest.mark.parametrize("cells", [{}, {"a": np.arange(WINDOW + 15)}], ids=["alike", "different"])
def test_lanes_wait_in_windows(cells):
    """Lanes that cost the same run in order."""
    waiting = LaneQueue(cells, WINDOW + 15)
    assert len(waiting) == WINDOW + 15
    found = np.concatenate([waiting.take(WINDOW - 1), waiting.take(9)])
    assert len(found) == (WINDOW if cells else WINDOW + 8)  # where all cost the same, a call takes what it wants
    assert sorted(found) == list(range(len(found)))
    assert np.array_equal(found, np.arange(len(found))) == (not cells)
    waiting.learn(np.arange(3), np.array([1, 2, 3]))
    assert len(waiting.take(3)) == 3
    waiting.close()
    assert len(waiting) == 0
    assert len(waiting.take(3)) == 0


def test_threads_share_what_is_waiting():
    waiting, found = LaneQueue({}, 5000), []

    def work():
        while len(taken := waiting.take(3)):
            found.append(taken)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(np.concatenate(found)) == list(range(5000))


def test_lane_efficiency_is_told(caplog):
    with caplog.at_level(logging.INFO, "jaxsolve"):
        QUIET(_modes, {"rate": [1.0, 2.0]}, Descent(optax.sgd(0.1)), [1.0])
    (said,) = [record.getMessage() for record in caplog.records if "efficiency" in record.getMessage()]
    assert said.startswith("{}: 2 lanes in ")
    assert said.endswith("lane efficiency 100 %")


def test_wall_is_shared_by_steps():
    """Of lanes that ran at once only their time together is known."""
    rows = {"steps": np.array([0, 3, 12])}
    np.testing.assert_allclose(rows_of(Batch(np.arange(3), rows, 32.0))["wall"], [2.0, 6.0, 24.0])


# Stopping


def _late(fn, seconds):
    def waiting(*args, **options):
        time.sleep(seconds)
        return fn(*args, **options)

    return waiting


@EACH_MARCH
def test_lanes_that_run_are_finished_and_no_others_begin(kind, monkeypatch):
    """It is looked at while others run, which are slow here."""
    program = _compiled(kind, 3)
    whole, seen = _rows(program), []
    # In lockstep there are two hundred calls, a few steps each.
    monkeypatch.setattr(kind, "_call", _late(kind._call, 0.02 if kind is Lockstep else 0.15))
    done = seen
    for item in run_group(program, lambda: bool(seen)):
        seen.append(item)
    lanes = np.concatenate([item.lanes for item in done])
    assert 0 < len(lanes) < LANES
    rows = {lane: row for item in done for lane, row in zip(item.lanes, item.rows["loss"], strict=True)}
    for lane in lanes:
        assert rows[lane].tobytes() == whole["loss"][lane].tobytes()


def test_an_error_in_a_lane_is_raised(monkeypatch):
    program = _compiled(Looped, 3)
    monkeypatch.setattr(Looped, "_call", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _rows(program)


# Memory


def _starved(most: int, monkeypatch) -> None:
    """Executables that fail like XLA's for batches larger than that. Nothing else is pretended."""
    run = Fused.run

    def limited(self, cells, waiting, hand_over):
        if self._rows > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8000000000 bytes.")
        run(self, cells, waiting, hand_over)

    monkeypatch.setattr(Fused, "run", limited)


def _compiled_closed(batch_size: int) -> TracedGroup:
    program = _traced(Fused, batch_size, dynamics=cases.ModesDecay())
    program.runner.compile()
    return program


def test_batches_are_halved_until_they_fit(caplog, tmp_path, monkeypatch):
    axes = {"rate": RATES}
    run = lambda **options: QUIET(_modes, axes, cases.ModesDecay(), [0.0, 0.5], observe=OBSERVED, **options)
    small = run(batch_size=2)
    _starved(3, monkeypatch)
    with caplog.at_level(logging.WARNING, "jaxsolve"):
        data = run(store=tmp_path / "run.zarr")
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"out of memory with batches of {size} lanes: continuing with {size // 2}" for size in (11, 5)]
    assert data["loss"].values.tobytes() == small["loss"].values.tobytes()
    manifest = (tmp_path / "run.zarr" / "_jaxsolve" / "manifest.json").read_text()
    assert '"used": {\n   "0": 2' in manifest
    assert xr.open_zarr(tmp_path / "run.zarr").attrs["batch_size"] == 2
    _starved(0, monkeypatch)
    program = _compiled_closed(5)
    with pytest.raises(OutOfMemory, match="out of memory with batches of 5 lanes; give a smaller batch_size"):
        list(run_group(program))
    with pytest.raises(OutOfMemory, match="out of memory with batches of 1 lanes; give fewer samples, times or"):
        run(batch_size=1)


def test_other_errors_of_xla_are_raised_as_they_are(monkeypatch):
    def broken(*args):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(Fused, "run", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        QUIET(_modes, {"rate": RATES}, cases.ModesDecay(), [0.5])


def test_a_chosen_batch_takes_no_more_than_half_of_the_free_memory(caplog, monkeypatch):
    run = lambda **options: QUIET(_modes, {"rate": np.linspace(1, 2, 64)}, cases.ModesDecay(), [0.0, 0.5], **options)
    whole = run()
    monkeypatch.setattr(_execute, "free_memory", lambda: 3000)
    with caplog.at_level(logging.INFO, "jaxsolve"):
        data = run()
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("batches of 64 lanes would take ")
    assert re.search(r" kB: \d+ instead$", said[-1])
    np.testing.assert_allclose(data["loss"], whole["loss"], rtol=cases.eps(10))
    caplog.clear()
    run(batch_size=64)  # who gives a size gets it
    assert not caplog.records


@pytest.mark.parametrize("dynamics", [GradientFlow(), Descent(optax.sgd(0.1)), theory.TwoLayerLine()], ids=type)
def test_observables_that_make_no_sense_are_refused_as_by_solve(dynamics):
    def few(problem):
        if len(problem.x) > 1:
            raise ValueError("it is for one sample")

    item = observe.Observable("one", lambda view: view.loss, Quantity.OUTPUTS, require=few)

    def problem(seed, samples):
        net = nets.TwoLayerLinear(in_size=1, width_size=4, scaling=nets.Scaling.ntk(), key=jr.key(seed))
        return Problem(net, jnp.ones((samples, 1)), jnp.ones((samples, 1)))

    run = lambda samples: sweep(
        lambda seed: problem(seed, samples), {"seed": range(2)}, dynamics, [1.0], observe=item, progress=False
    )
    assert np.all(np.isfinite(run(1)["one"]))
    with pytest.raises(ValueError, match="it is for one sample"):
        run(2)
