"""Stores that are filled while a sweep runs, and survive what ends it."""

# long: one store is made once, and then read, resumed and broken in every way

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray

from jaxsolve import Descent, FrozenKernel, GradientFlow, losses, nets, observe, Problem, sweep, until, Zip
from jaxsolve.sweeps import load, read_manifest, save
from tests import cases
from tests.inside import citation
from tests.processes import ROOT
from tests.sweeps import faults
from tests.sweeps.inside import (
    _execute,
    _files,
    _layout,
    Batch,
    Chunks,
    cut,
    HeldStore,
    Lock,
    Plan,
    read_axes,
    read_plan,
    ShrinkingProgram,
    Variable,
)


QUIET = functools.partial(sweep, progress=False)
TS = (0.0, 0.3, 1.0)
AXES = {"rate": [0.5, 1.0, 2.0, 150.0, 3.0], "kind": ["slow", "fast"], "start": [1.0, 2.0, -1.0]}
SMALL = {name: AXES[name] for name in ("rate", "start")}
DYNAMICS = cases.ModesDecay()


def _modes(rate: Any = 1.0, kind: str = "slow", start: Any = 1.0):
    """Of the rate 150 ModesDecay says that it does not apply: a lane that fails."""
    rates = jnp.stack([jnp.asarray(rate), jnp.ones(())])
    return cases.modes(jnp.stack([start * (2.0 if kind == "fast" else 1.0), jnp.ones(())]), rates)


class Count:
    """The modes, counting how often they are built: that is, traced."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rate, kind="slow", start=1.0):
        self.calls += 1
        return _modes(rate, kind, start)


def _run(path, problem_fn=_modes, axes=AXES, dynamics: Any = DYNAMICS, ts: Any = TS, **options):
    options = {"observe": [observe.loss(), observe.outputs()], "batch_size": 4} | options
    return QUIET(problem_fn, axes, dynamics, ts, store=path, **options)


def _same(a, b):
    """Equal to the last bit, but for the wall time and what is said of it."""
    assert set(a.variables) == set(b.variables)
    for name in set(a.variables) - {"wall"}:
        assert a[name].dims == b[name].dims
        assert a[name].dtype == b[name].dtype
        if a[name].dtype.kind == "T":
            assert list(a[name].values) == list(b[name].values)
        else:
            assert a[name].values.tobytes() == b[name].values.tobytes(), name


def _open(path):
    with xarray.open_zarr(path, chunks=None) as data:
        return data.load()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was made without interruption, and its dataset. Not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "run.zarr"
    return path, _run(path)


@pytest.fixture(scope="module")
def small(whole):
    """The dataset of the smaller grid."""
    return whole[1].isel(kind=0, drop=True)


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(whole[0], tmp_path / "run.zarr"))


def _chunk_files(path, name="loss"):
    return sorted(file for file in (path / name / "c").rglob("*") if file.is_file())


def _records(path):
    return _chunk_files(path, "result")


# What is in a store


def test_a_store_holds_what_memory_would(whole):
    path, data = whole
    memory = QUIET(_modes, AXES, DYNAMICS, TS, observe=[observe.loss(), observe.outputs()], batch_size=4)
    _same(data, memory)
    xarray.testing.assert_identical(data, _open(path))
    for name in data.variables:
        assert data[name].attrs == memory[name].attrs
    assert memory.attrs.items() - {("created", memory.attrs["created"])} <= data.attrs.items()


def test_chunks_are_blocks_of_lanes_of_one_static_combination(whole):
    import zarr

    group = zarr.open_group(whole[0], mode="r")
    assert group["loss"].chunks == (1, 1, 3, 3)  # pyright: ignore[reportAttributeAccessIssue]
    assert group["outputs"].chunks == (1, 1, 3, 3, 2, 1)  # pyright: ignore[reportAttributeAccessIssue]
    assert group["result"].chunks == (1, 1, 3)  # pyright: ignore[reportAttributeAccessIssue]
    assert len(_records(whole[0])) == 10


def test_manifest(whole):
    path, data = whole
    manifest = json.loads((path / "_jaxsolve" / "manifest.json").read_text())
    plan = manifest["plan"]
    assert plan["dims"] == ["rate", "kind", "start"]
    assert plan["axes"]["rate"] == {"rate": {"traced": [pytest.approx(x) for x in AXES["rate"]]}}
    assert plan["axes"]["kind"] == {"kind": {"static": ["slow", "fast"]}}
    assert plan["dynamics"]["name"] == "ModesDecay"
    assert plan["ts"] == [pytest.approx(t) for t in TS]
    assert list(plan["observe"]) == ["loss", "outputs"]
    assert plan["observe"]["outputs"]["dims"] == ["sample", "output"]
    assert plan["precision"]["x64"] == cases.X64
    assert plan["problem_fn"] == "_modes"
    assert [item["static"] for item in plan["programs"]] == [{"kind": "slow"}, {"kind": "fast"}]
    assert plan["versions"]["jax"] == jax.__version__
    assert manifest["batch_size"] == {"asked": 4, "used": {"0": 4, "3": 4}}
    assert {item["name"]: item["attrs"]["units"] for item in manifest["variables"] if item["name"] != "result"} == {
        "loss": "loss",
        "outputs": "output",
        "steps": "accepted steps",
        "t_end": "gradient-flow time",
        "wall": "s",
    }
    (run,) = manifest["runs"]
    assert run["pid"] == os.getpid()
    assert run["device"] == jax.devices()[0].device_kind
    assert run["versions"]["jax"] == jax.__version__
    assert len({manifest["id"], run["id"]}) == 2  # random ones
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, cwd=Path.cwd(), capture_output=True, text=True).stdout.strip()
    assert (run["git"] or "") == commit  # None where the tests were unpacked without their history
    assert data.attrs["plan_hash"] == manifest["plan_hash"]
    assert data.attrs["batch_size"] == 4
    assert data.attrs["citation"] == manifest["citation"] == citation()
    cff = (ROOT / "CITATION.cff").read_text()
    for field in ("title", "abstract", "version"):
        (text,) = re.findall(rf'^{field}: "?(.*?)"?$', cff, re.MULTILINE)
        assert text in citation()


def test_a_path_may_be_text(whole, tmp_path):
    assert read_manifest(str(whole[0])) == read_manifest(whole[0])
    save(whole[1], str(tmp_path / "copy.zarr"))
    _same(load(str(tmp_path / "copy.zarr")), whole[1])


def test_times_rounded_to_steps_are_kept(tmp_path):
    data = _run(tmp_path / "run.zarr", axes={"rate": [1.0, 2.0]}, dynamics=Descent(optax.sgd(0.25)))
    np.testing.assert_allclose(data["t_saved"], [[0.0, 0.25, 1.0]] * 2)
    rates, steps = np.array([[1.0, 1.0], [2.0, 1.0]]), np.array([0, 1, 4])[:, None, None]
    loss = 0.5 * np.sum(rates * (1 - 0.25 * rates) ** (2 * steps), axis=-1).T
    np.testing.assert_allclose(data["loss"], loss, rtol=cases.eps(50))


def test_times_that_are_none_but_those_asked_for(whole):
    assert "t_saved" not in whole[1]


def test_times_of_a_dynamics_that_the_problem_chooses(tmp_path):
    """The closed form of a frozen kernel keeps all times, its descent rounds them; which it is, the loss decides."""
    for loss, rounded in ((losses.MSE(), False), (losses.Logistic(), True)):
        build = lambda rate, loss=loss: cases.modes(rate * jnp.ones(2), jnp.ones(2), loss=loss)
        dynamics = FrozenKernel(flow=Descent(optax.sgd(0.25)) if rounded else None)
        options = {"axes": {"rate": [1.0, 2.0]}, "dynamics": dynamics, "observe": observe.loss()}
        data = _run(tmp_path / f"{rounded}.zarr", build, **options)
        assert ("t_saved" in data) == rounded
        if rounded:
            np.testing.assert_allclose(data["t_saved"], [[0.0, 0.25, 1.0]] * 2)


def test_zips_and_coordinates(tmp_path):
    axes = [Zip(kind=["slow", "fast"], rate=[0.5, 2.0]), {"start": [1.0, 2.0, 3.0]}]
    options = {"axes": axes, "observe": observe.loss(), "batch_size": None}
    data = _run(tmp_path / "run.zarr", **options)
    _same(data, QUIET(_modes, axes, DYNAMICS, TS))
    assert data["loss"].dims == ("kind_rate", "start", "t")
    _same(data, _run(tmp_path / "run.zarr", **options))


# Resuming


class Stop(Exception):
    """Ends a sweep after some batches."""


def _stop():
    raise Stop


def _ctrl_c(number=signal.SIGINT):
    signal.raise_signal(number)


@contextlib.contextmanager
def _after(batches, act):
    """Does something whenever lanes of a sweep have run, but for the first times, before they are taken."""
    left = iter(range(batches))
    run_group = _execute.run_group

    def disturbed(*args):
        for done in run_group(*args):
            if next(left, None) is None:
                act()
            yield done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_execute, "run_group", disturbed)
        yield


@contextlib.contextmanager
def _watched():
    """The numbers of the lanes that run, batch by batch."""
    batches = []
    run_group = _execute.run_group

    def watched(program, *args):
        batches.append(program.group.lanes.tolist())
        return run_group(program, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_execute, "run_group", watched)
        yield batches


def test_only_what_is_missing_runs(whole, tmp_path):
    path = tmp_path / "run.zarr"
    with _after(2, _stop), pytest.raises(Stop):
        _run(path)
    partial = _open(path)
    # Eight lanes: two chunks of three, and two lanes of a third, which leaving the sweep has written, too.
    done = partial["result"].transpose("kind", ...).values.ravel() >= 0
    np.testing.assert_array_equal(done, np.arange(30) < 8)
    for name in ("loss", "t_end", "wall"):
        values = partial[name].transpose("kind", ...).values.reshape(30, -1)
        np.testing.assert_array_equal(np.isnan(values).all(axis=1), ~done)
    np.testing.assert_array_equal(partial["steps"].transpose("kind", ...).values.ravel() == -1, ~done)
    with _watched() as batches:
        data = _run(path, batch_size=None)  # that of the store
    lanes = np.arange(30).reshape(5, 2, 3).transpose(1, 0, 2).ravel()
    assert [len(batch) for batch in batches] == [4, 3, 4, 4, 4, 3]
    assert sum(batches, []) == lanes[8:].tolist()
    _same(data, whole[1])
    runs = json.loads((path / "_jaxsolve" / "manifest.json").read_text())["runs"]
    assert len(runs) == 2


def test_a_complete_store_is_returned_at_once(whole):
    """Traced, to see that it is of the same plan, and nothing more."""
    count, before = Count(), {file: file.stat().st_mtime_ns for file in whole[0].rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match="the problem's program differs in group kind = slow"):
        _run(whole[0], lambda rate, kind, start: _modes(2 * rate, kind, start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "trace", None)
        xarray.testing.assert_identical(_run(whole[0], count, resume=True), whole[1])
    assert count.calls == 2  # once for each combination of static values
    after = {file: file.stat().st_mtime_ns for file in whole[0].rglob("*") if file.is_file()}
    touched = {file.name for file in after if after[file] != before[file]}
    assert touched <= {"writer.json", "lock"}  # older releases of filelock open the lock to write


def test_the_metadata_of_the_root_are_written_last(tmp_path, monkeypatch):
    """Whoever finds them finds all the others: a process that waits for the store, or one that carries it on."""
    written, write = [], _layout.write_whole
    monkeypatch.setattr(_layout, "write_whole", lambda path, content: (written.append(path), write(path, content)))
    _run(tmp_path / "run.zarr", axes=SMALL)
    assert written[-1] == tmp_path / "run.zarr" / "zarr.json"
    assert tmp_path / "run.zarr" / "loss" / "zarr.json" in written[:-1]


def test_without_resume_a_store_is_left_alone(whole):
    with pytest.raises(FileExistsError, match=r"run\.zarr holds a sweep already; give resume=True to continue it"):
        _run(whole[0], resume=False)


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


HARMS = (
    ("loss", _flip, r"loss/c/0/0/0/0 cannot be read \(ValueError: Stored and computed checksum do not match"),
    ("loss", lambda file: os.truncate(file, 20), r"loss/c/0/1/0/0 cannot be read \(ValueError: .*checksum"),
    ("steps", lambda file: file.unlink(), r"steps/c/1/0/0 is missing"),
    ("result", _flip, r"result/c/1/1/0 cannot be read"),
    ("result", lambda file: os.truncate(file, 3), r"result/c/2/0/0 cannot be read"),
    ("outputs", lambda file: file.write_bytes(b""), r"outputs/c/2/1/0/0/0/0 cannot be read"),
    ("result", lambda file: file.unlink(), None),
)


def test_damaged_chunks_run_again(whole, copy, caplog):
    """Each of seven in a way of its own."""
    for number, (name, harm, _) in enumerate(HARMS):
        harm(_chunk_files(copy, name)[number])
    with _watched() as batches:
        data = _run(copy)
    assert sorted(sum(batches, [])) == list(range(21))
    _same(data, whole[1])
    messages = [record.getMessage() for record in caplog.records if record.name == "jaxsolve"]
    expected = [said for *_, said in HARMS if said is not None]
    assert len(messages) == len(expected)
    for said, message in zip(expected, messages, strict=True):
        assert re.search(f"{said}.*; its lanes are run again", message)
    for name in ("loss", "outputs", "result", "steps", "t_end"):
        for file in _chunk_files(copy, name):
            assert file.read_bytes() == (whole[0] / file.relative_to(copy)).read_bytes()


def test_readers_are_told_of_damage(copy):
    """Also those who know nothing of the records."""
    _flip(_chunk_files(copy)[2])
    with pytest.raises(ValueError, match="checksum"):
        _open(copy)


@pytest.mark.parametrize("name", ["zarr.json", "loss/zarr.json", "rate/c/0", "_jaxsolve/zarr.json"])
def test_damaged_metadata_are_restored(whole, copy, caplog, name):
    _flip(copy / name)
    xarray.testing.assert_identical(_run(copy), whole[1])
    assert f"{name} was damaged, missing, or rounded elsewhere; it is restored" in caplog.text
    assert (copy / name).read_bytes() == (whole[0] / name).read_bytes()


def test_a_damaged_manifest(copy):
    os.truncate(copy / "_jaxsolve" / "manifest.json", 100)
    with pytest.raises(ValueError, match=r"_jaxsolve/manifest\.json is damaged .*xarray"):
        _run(copy)


def test_coordinates_have_checksums(copy):
    """As all arrays have: a reader is told of a flipped bit."""
    _flip(copy / "rate" / "c" / "0")
    with pytest.raises(ValueError, match="checksum"):
        _open(copy)


def test_a_store_of_a_later_version(copy):
    manifest = copy / "_jaxsolve" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    with pytest.raises(
        ValueError,
        match=r"run.zarr is a store of format 99, but this version .* stores of format \d",
    ):
        _run(copy)


def test_failed_lanes_run_again_if_asked(whole, copy):
    with _watched() as batches:
        _run(copy)
        assert batches == []
        data = _run(copy, retry_failed=True)
    assert batches == [[18, 19, 20], [21, 22, 23]]
    _same(data, whole[1])


def test_of_a_chunk_only_the_failed_lanes_run_again(tmp_path):
    axes = {"rate": [150.0, 1.0, 2.0, 200.0, 3.0]}
    options = {"axes": axes, "batch_size": 3}
    first = _run(tmp_path / "run.zarr", **options)
    with _watched() as batches:
        again = _run(tmp_path / "run.zarr", retry_failed=True, **options)
    assert batches == [[0, 3]]
    _same(again, first)
    assert again["wall"].values[[1, 2, 4]].tobytes() == first["wall"].values[[1, 2, 4]].tobytes()


def test_failed_lanes_stay_where_the_plan_is_another(tmp_path):
    """What would not run again is not forgotten."""
    path, options = tmp_path / "run.zarr", {"axes": {"rate": [150.0, 1.0, 2.0]}, "batch_size": 3}
    size = tmp_path / "size.txt"  # which the function reads
    size.write_text("2.0")
    problem = lambda rate: _modes(rate, start=float(size.read_text()))
    first = _run(path, problem_fn=problem, **options)
    assert int((first["result"] >= 3).sum()) == 1
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    size.write_text("3.0")
    with pytest.raises(ValueError, match=r"the problem's program differs\n"):
        _run(path, problem_fn=problem, retry_failed=True, **options)
    same = lambda file: file.name in ("writer.json", "lock") or file.read_bytes() == files[file]
    assert all(map(same, files))


# Other plans


class LossOf:
    """An observable with a setting."""

    def __new__(cls, scale):
        return observe.Observable("loss", lambda view: scale * view.loss, needs=observe.loss().needs)


def _scaled(scale):
    return lambda rate: _modes(scale * rate)


def _scaled_otherwise(scale):
    return lambda rate: _modes(scale / rate)


PLAN: dict[str, Any] = {
    "problem_fn": _scaled(2.0),
    "axes": {"rate": [0.5, 1.0]},
    "dynamics": Descent(optax.sgd(0.5), until=until.loss_below(1e-3)),
    "ts": [0.0, 0.5, 1.0],
    "observe": LossOf(1.0),
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "run.zarr"
    _run(path, **PLAN)
    return path


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"axes": {"rate": [0.5, 1.5]}}, r"axes\.rate\.rate\.traced\[1\]: 1\.0 in the store, 1\.5 now"),
        ({"axes": {"rate": [0.5]}}, r"axes\.rate\.rate\.traced: \[0\.5, 1\.0\] in the store, \[0\.5\] now"),
        ({"axes": {"rate": [1, 2]}}, r"rate\.traced: \[0\.5, 1\.0\] in the store, absent now\n.*static: absent in the"),
        ({"axes": {"start": [0.5, 1.0]}, "problem_fn": _modes}, r'dims\[0\]: "rate" in the store, "start" now'),
        ({"ts": [0.0, 0.5, 2.0]}, r"ts\[2\]: 1\.0 in the store, 2\.0 now"),
        ({"dynamics": Descent(optax.sgd(0.25))}, r"settings\.rate: 0\.5 in the store, 0\.25 now"),
        ({"dynamics": Descent(optax.sgd(0.5))}, r'settings\.until: {"type": "_LossBelow", .*} in the store, null now'),
        ({"dynamics": Descent(optax.adam(0.5))}, r'name: "Descent\(sgd\)" in the store, "Descent\(adam\)" now'),
        ({"dynamics": DYNAMICS}, r'dynamics\.name: "Descent\(sgd\)" in the store, "ModesDecay" now'),
        ({"observe": LossOf(2.0)}, "the program of dynamics and observables differs$"),
        ({"observe": observe.outputs()}, r"observe\.loss: .* in the store, absent now"),
        ({"problem_fn": _scaled(3.0)}, "the problem's program differs$"),
        ({"problem_fn": _scaled_otherwise(2.0)}, 'differs\n  problem_fn: "_scaled.* in the store, "_scaled_otherwise'),
    ],
)
def test_another_plan_is_refused_with_the_difference_shown(planned, changes, shown):
    with pytest.raises(ValueError, match=f"(?sm)run.zarr holds a sweep of another plan:\n.*{shown}"):
        _run(planned, **(PLAN | changes))


def test_another_precision_is_refused(planned):
    with jax.enable_x64(not cases.X64), pytest.raises(ValueError, match=r"precision\.x64: \w+ in the store, \w+ now"):
        _run(planned, **PLAN)


def test_many_differences_are_counted(tmp_path):
    rates = np.linspace(0.5, 2.0, 20)
    observed = [observe.Observable(f"loss{i}", lambda view: view.loss, observe.loss().needs) for i in range(10)]
    _run(tmp_path / "run.zarr", axes={"rate": rates}, observe=observed)
    rates[[3, 7]] *= 1.5
    with pytest.raises(ValueError, match=r"(?s)traced\[3\]: .*traced\[7\]: .* and 6 more") as error:
        _run(tmp_path / "run.zarr", axes={"rate": rates}, observe=observe.loss(), ts=[1.0])
    assert len(str(error.value)) < 2000


def test_rounding_of_another_machine_is_no_difference(planned):
    rounded = np.array([0.5, 1.0]) * (1 + 2 * cases.eps())
    assert rounded[0] != 0.5 or not cases.X64
    _run(planned, **(PLAN | {"axes": {"rate": rounded}}))


def test_a_person_can_accept_a_difference(planned, tmp_path):
    copy = Path(shutil.copytree(planned, tmp_path / "run.zarr"))
    changed = PLAN | {"problem_fn": _scaled_otherwise(2.0)}
    with pytest.raises(ValueError, match=r'set "programs" to "\*" in the plan in .*manifest\.json'):
        _run(copy, **changed)
    manifest = copy / "_jaxsolve" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["plan"]["programs"] = "*"
    manifest.write_text(json.dumps(facts))
    _run(copy, **changed)


def test_other_conditions_are_warned_of(whole, copy):
    """Where anything is left to run."""
    manifest = copy / "_jaxsolve" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["runs"][-1] |= {"device": "TPU v9", "versions": {"jax": "0.0.1"}, "xla_flags": "--fast"}
    manifest.write_text(json.dumps(facts))
    _run(copy)
    _records(copy)[0].unlink()
    shown = (
        r'device: "TPU v9" before, ".*" now; .*versions\.jax: "0\.0\.1" before, .* now; .*xla_flags: "--fast" before'
    )
    with pytest.warns(UserWarning, match=f"begun under other conditions, so results agree.*{shown}"):
        _same(_run(copy), whole[1])
    _records(copy)[0].unlink()
    with pytest.warns(UserWarning, match=r"begun under other conditions.*: batch size: \[4\] before, 1 now$"):
        data = _run(copy, batch_size=1)
    np.testing.assert_allclose(data["loss"], whole[1]["loss"], rtol=cases.eps(10))


# Faults


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    return faults.launch(tmp_path_factory.mktemp("faults"), 2)


def test_what_was_killed_and_stopped_becomes_what_runs_through(disturbed):
    """SIGINT, SIGTERM, and SIGKILL at random moments: in the end, the files of all chunks but those of `wall`."""
    assert disturbed["difference"] == []
    assert disturbed["parts"] == []
    assert disturbed["said"] == ""
    assert all(0 < chunks < faults.CHUNKS for chunks in disturbed["killed"][:1])


def test_a_store_taken_away_while_it_is_filled(disturbed):
    """It stops the sweep at its next write, and nothing of it gets into another one."""
    found = disturbed["replaced"]
    assert found["code"] == 1
    assert "FileExistsError: the store at" in found["said"]
    assert "was replaced while it was filled, so this sweep has stopped" in found["said"]
    assert found["difference"] == []
    found = disturbed["moved"]
    assert found["code"] == 1
    assert "was moved or removed while it was filled, so this sweep has stopped" in found["said"]
    assert not found["left"]
    assert 0 < found["ran"] < faults.CHUNKS
    assert found["difference"] == []


def test_a_copy_made_while_a_store_is_filled(disturbed):
    found = disturbed["copied"]
    assert 0 < found["lanes"] < faults.LANES
    assert found["hollow"] == 0
    assert found["difference"] == []


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    found = faults.launch(tmp_path, 20)
    assert found["difference"] == []
    assert sum(0 < chunks < faults.CHUNKS for chunks in found["killed"]) >= 10


def test_a_plan_is_the_same_in_every_process(disturbed):
    """Though the order of sets, and all addresses, are others."""
    assert disturbed["facts"] == faults.facts()


def test_a_running_sweep_can_be_read(disturbed):
    """By xarray in a process that does not import jaxsolve, with and without consolidated metadata."""
    assert re.fullmatch(r"seen \d+", disturbed["disturbed"]["seen"])


def test_a_second_writer_is_kept_out_at_once(disturbed):
    found = disturbed["disturbed"]
    holder = (
        rf"run\.zarr is being written by process {found['pid']} on \S+, since \d{{4}}-\d\d-\d\dT[\d:+-]+; wait for it"
    )
    assert re.search(f"BlockingIOError.*{holder}, or choose another store", found["second"])
    # Nothing is traced or compiled before it is refused.
    assert "trace_group" not in found["second"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_finish_the_running_batch(disturbed, name):
    code, said, chunks = disturbed["disturbed"][name]
    assert code == 3
    assert 0 < chunks < faults.CHUNKS
    assert re.search(rf"KeyboardInterrupt: stopped by {name}: \d+ of 72 lanes are in the store; call the sweep", said)


def test_a_second_signal_stops_at_once(disturbed):
    found = disturbed["twice"]
    assert found["alive"]
    assert found["code"] == 3
    assert "SIGTERM: the running batch is finished and written first; again to stop at once" in found["said"]
    assert "KeyboardInterrupt: interrupted twice" in found["said"]
    assert found["seconds"] < 2  # the batch would take hours


def test_signals_keep_every_lane_that_ran(small, tmp_path):
    """Also those of unfinished chunks; and signals are handled as before, afterwards."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    path, said = tmp_path / "run.zarr", r"stopped by SIGTERM: 8 of 15 lanes are in the store; call the sweep again"
    with _after(1, functools.partial(_ctrl_c, signal.SIGTERM)), pytest.raises(KeyboardInterrupt, match=said):
        _run(path, axes=SMALL)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert int((_open(path)["result"] >= 0).sum()) == 8
    _same(_run(path, axes=SMALL), small)


def test_ctrl_c_in_the_last_batch(small, tmp_path):
    with _after(3, _ctrl_c), pytest.raises(KeyboardInterrupt, match="15 of 15 lanes are in the store"):
        _run(tmp_path / "run.zarr", axes=SMALL)
    _same(_open(tmp_path / "run.zarr"), small)


def test_ctrl_c_without_a_store_stops_at_once():
    with _after(1, _ctrl_c), pytest.raises(KeyboardInterrupt) as error:
        QUIET(_modes, SMALL, DYNAMICS, TS, batch_size=4)
    assert "lanes" not in str(error.value)


def test_signals_in_other_threads_are_left_alone(tmp_path):
    thread = threading.Thread(target=_run, args=(tmp_path / "run.zarr",), kwargs={"axes": {"rate": [1.0]}})
    thread.start()
    thread.join()
    assert _open(tmp_path / "run.zarr")["result"].values.tolist() == [0]


# Locks


def test_a_store_is_locked_within_a_process_too(small, tmp_path, monkeypatch):
    path, said = tmp_path / "run.zarr", []
    run_group = _execute.run_group

    def nested(*args):
        monkeypatch.setattr(_execute, "run_group", run_group)
        with pytest.raises(BlockingIOError, match=f"is being written by process {os.getpid()} on ") as error:
            _run(path, axes=SMALL)
        said.append(error)
        return run_group(*args)

    monkeypatch.setattr(_execute, "run_group", nested)
    _same(_run(path, axes=SMALL), small)
    assert said


def test_lock(tmp_path):
    path = tmp_path / "store"
    (path / "_jaxsolve").mkdir(parents=True)
    first, second = Lock(path), Lock(path)
    first.acquire()
    with pytest.raises(BlockingIOError, match="store is being written by process"):
        second.acquire()
    assert first.held
    assert not second.held
    (path / "_jaxsolve" / "writer.json").write_text("")  # the first one has not written its name yet
    with pytest.raises(BlockingIOError, match="store is being written by another process"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    assert second.held
    second.release()


def test_what_is_left_of_nothing_is_removed_before_the_lock_is_given_back(tmp_path, monkeypatch):
    """Another process may take the lock at once: then its file and its name are that one's."""
    path, release = tmp_path / "run.zarr", Lock.release

    def wrong(rate, kind, start):
        raise Stop

    def handed_over(lock):
        release(lock)
        monkeypatch.setattr(Lock, "release", release)
        (path / "_jaxsolve").mkdir(parents=True, exist_ok=True)
        other.acquire()

    (path / "_jaxsolve").mkdir(parents=True)
    other = Lock(path)
    monkeypatch.setattr(Lock, "release", handed_over)
    with pytest.raises(Stop):
        _run(path, wrong)
    with pytest.raises(BlockingIOError, match=f"is being written by process {os.getpid()} on "):
        Lock(path).acquire()
    other.release()


@pytest.mark.parametrize("error", [OSError(errno.EOPNOTSUPP, "Operation not supported"), NotImplementedError("flock")])
def test_file_systems_without_locks_are_warned_of(tmp_path, monkeypatch, error):
    def refuse(*args):
        raise error

    (tmp_path / "_jaxsolve").mkdir()
    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    lock = Lock(tmp_path)
    with pytest.warns(UserWarning, match="the file system of .* has no locks"):
        lock.acquire()
    assert lock.held
    lock.release()
    assert not lock.held


def test_other_errors_of_locks_are_raised(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="Input/output"):
        Lock(tmp_path).acquire()


# Paths that cannot be stores, disks that give up


@pytest.mark.usefixtures("as_users")
def test_the_store_is_a_path():
    with pytest.raises(TypeError, match=r"store must be the path of a folder such as 'run\.zarr', got int 3"):
        _run(3)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with _after(1, lambda: os.chdir("/")):
        _run("run.zarr", axes=SMALL)
    assert _open(tmp_path / "run.zarr")["result"].shape == (5, 3)


def test_a_file_is_left_alone(tmp_path):
    path = tmp_path / "run.zarr"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"run\.zarr is a file; a store is a folder"):
        _run(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "zarr.json", "_jaxsolve/notes.txt"])
def test_a_foreign_folder_is_left_alone(tmp_path, name):
    count, path = Count(), tmp_path / "run.zarr"
    (path / name).parent.mkdir(parents=True)
    (path / name).write_text("mine")
    with pytest.raises(
        FileExistsError, match=rf"holds something else than a sweep's store \({name}, \.\.\.\), which is"
    ):
        _run(path, count)
    assert [file for file in path.rglob("*") if file.is_file()] == [path / name]
    assert count.calls == 0


def test_a_folder_is_not_foreign_when_another_process_has_just_begun(copy, monkeypatch):
    answers = iter([False, True])
    monkeypatch.setattr(_layout, "has_manifest", lambda path: next(answers))
    _layout.require_ours(copy, resume=True)


def test_an_empty_folder_becomes_a_store(small, tmp_path):
    """And one in which a sweep died before it wrote its manifest."""
    (tmp_path / "empty").mkdir()
    _same(_run(tmp_path / "empty", axes=SMALL), small)
    (tmp_path / "half" / "_jaxsolve").mkdir(parents=True)
    for name in ("lock", "writer.json", "manifest.json.0123.partial"):
        (tmp_path / "half" / "_jaxsolve" / name).write_text("")
    _same(_run(tmp_path / "half", axes=SMALL), small)


def test_what_fails_before_it_begins_leaves_nothing(tmp_path):
    def wrong(rate, kind, start):
        raise Stop

    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "run.zarr", tmp_path / "empty"):
        with pytest.raises(Stop):
            _run(path, wrong)
    assert [item.name for item in tmp_path.rglob("*")] == ["empty"]


@contextlib.contextmanager
def _read_only(folder):
    """A folder that this user must not write to, whoever it is: root may write anywhere, so it becomes nobody."""
    modes = {item: item.stat().st_mode for item in (folder, *folder.rglob("*"))}
    for item, mode in modes.items():
        item.chmod(mode & 0o555 | 0o444)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        for item, mode in modes.items():
            item.chmod(mode)


@pytest.fixture
def open_folder():
    """A folder below no other that only root may enter."""
    folder = Path(tempfile.mkdtemp(prefix="jaxsolve-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_read_only_folder(open_folder):
    count = Count()
    with _read_only(open_folder), pytest.raises(PermissionError, match=r"run\.zarr cannot be written to \(Permission"):
        _run(open_folder / "run.zarr", count)
    assert count.calls == 0


def test_a_complete_store_can_be_read_only(whole, open_folder):
    path = Path(shutil.copytree(whole[0], open_folder / "run.zarr"))
    with _read_only(path):
        xarray.testing.assert_identical(_run(path), whole[1])
    (path / "_jaxsolve" / "id").unlink()  # which a process that may write restores
    with _read_only(path):
        xarray.testing.assert_identical(_run(path), whole[1])
    _flip(_chunk_files(path)[0])
    with _read_only(path), pytest.raises(PermissionError, match=r"cannot be written to \(.*what has run is kept"):
        _run(path)
    _same(_run(path), whole[1])


def test_a_disk_that_gives_up(small, tmp_path, monkeypatch):
    """After so many files: of the metadata, of chunks, or the manifest. What was written is kept."""
    path, replace = tmp_path / "run.zarr", os.replace
    for number, after, said in (
        (errno.ENOSPC, 0, "no space left to write to .*; nothing has run"),
        (errno.EDQUOT, 2, r"no space left to write to .*; nothing has run"),
        (errno.EIO, 30, r"writing to .*run\.zarr failed \(Input/output error\); what has run is kept: call the sweep"),
        (errno.ENOSPC, 8, "no space left to write to .* Free some; what has run is kept: call the sweep again"),
    ):
        left = iter(range(after))

        def full(source, target, number=number, left=left):
            if next(left, None) is None:
                raise OSError(number, os.strerror(number))
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)  # the last thing that is done to a file, here and in Zarr
            with pytest.raises(OSError, match=said) as error:
                _run(path, axes=SMALL)
        assert error.value.errno == number
    assert len(_records(path)) >= 1
    assert not list(path.rglob("*.partial"))
    _same(_run(path, axes=SMALL), small)


def test_a_part_is_removed_when_writing_it_fails(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / "file").write_text("before")
    with pytest.raises(OSError, match="full"):
        _files.write_whole(tmp_path / "file", b"after")
    assert [item.read_text() for item in tmp_path.iterdir()] == ["before"]


def test_a_full_disk(disturbed):
    """A real one: a small file system in memory, which then grows."""
    found = disturbed["full"]
    if found is None:
        pytest.skip("this user may not mount a file system, even one of its own")
    text = r"\[Errno 28\] there is no space left to write to .*run\.zarr \(No space left on device\)\. Free some; "
    assert re.match(text + "what has run is kept: call the sweep again with the same arguments to run", found["said"])
    assert found["error"] == "OSError"
    assert 0 < found["chunks"] < faults.CHUNKS
    assert found["difference"] == []


# Chunks and their lanes


def _grid(traced):
    """Axes of lengths 3, 4, 5, ...; those not traced are static."""
    return read_axes(
        {f"x{i}": np.ones(3 + i) if yes else [str(j) for j in range(3 + i)] for i, yes in enumerate(traced)}
    )


@pytest.mark.parametrize(
    ("traced", "batch_size", "block"),
    [
        ([True, True], 100, (3, 4)),
        ([True, True], 12, (3, 4)),
        ([True, True], 11, (2, 4)),
        ([True, True], 4, (1, 4)),
        ([True, True], 3, (1, 2)),
        ([True, True], 1, (1, 1)),
        ([True, False, True], 15, (3, 1, 5)),
        ([True, False, True], 14, (2, 1, 5)),
        ([False, True, True], 6, (1, 1, 5)),
        ([False, False], 64, (1, 1)),
        ([True, True, False], 12, (3, 4, 1)),
    ],
)
def test_grids_are_cut_into_blocks(traced, batch_size, block):
    blocks = cut(_grid(traced), batch_size, 8)
    assert blocks.block == block
    lanes = [blocks.lanes(number) for number in range(len(blocks))]
    grid = np.arange(np.prod(blocks.grid)).reshape(blocks.grid)
    assert sorted(np.concatenate(lanes)) == list(range(np.prod(blocks.grid)))
    for number, inside in enumerate(lanes):
        assert len(inside) <= batch_size
        assert np.all(np.diff(inside) > 0)
        np.testing.assert_array_equal(blocks.of(inside), number)
        np.testing.assert_array_equal(grid[blocks.region(number)].ravel(), inside)
    # In the order in which a group's lanes run, each block is a run of neighbors.
    static = tuple(i for i, yes in enumerate(traced) if not yes)
    order = np.transpose(grid, (*static, *(i for i, yes in enumerate(traced) if yes))).ravel()
    changes = np.count_nonzero(np.diff(blocks.of(order)))
    assert changes == len(blocks) - 1


def test_chunks_fit_into_memory():
    assert cut(_grid([True, True]), 100, 2**26).block == (1, 4)
    assert cut(_grid([True, True]), 100, 2**40).block == (1, 1)


@pytest.fixture(scope="module")
def everything():
    """The plan of the whole grid, and all of its lanes as one batch."""
    options: dict[str, Any] = {"observe": [observe.loss(), observe.outputs()], "batch_size": 4}
    plan = read_plan(_modes, AXES, DYNAMICS, TS, **options)
    batches = []
    for group in plan.groups:
        program = plan.trace(group)
        program.runner.compile()
        batches += ShrinkingProgram(program).run(np.ones(plan.lanes, bool))
    lanes = np.concatenate([batch.lanes for batch in batches])
    rows = jax.tree.map(lambda *parts: np.concatenate(parts)[np.argsort(lanes)], *(batch.rows for batch in batches))
    return plan, Batch(np.sort(lanes), rows, 1.0)


def _part(batch, lanes):
    return Batch(lanes, jax.tree.map(lambda leaf: leaf[lanes], batch.rows), 1.0)


@pytest.mark.parametrize("order", ["forward", "backward", "random", "again"])
def test_lanes_arrive_in_any_order(order, everything, whole, tmp_path, monkeypatch):
    """In pieces of any size; each chunk is written once, with each lane in its place."""
    plan, batch = everything
    written: list[int] = []
    put = Chunks._put
    monkeypatch.setattr(Chunks, "_put", lambda self, number, rows: written.append(number) or put(self, number, rows))
    lanes = np.arange(plan.lanes)
    chance = np.random.default_rng(3)
    if order == "backward":
        lanes = lanes[::-1]
    elif order != "forward":
        lanes = chance.permutation(np.repeat(lanes, 2) if order == "again" else lanes)
    with HeldStore(tmp_path / "run.zarr", plan, lambda: plan.trace(plan.groups[0])) as store:
        for piece in np.split(lanes, [1, 2, 9, 15, 16]):
            store.write(_part(batch, piece))
        assert not store.missing.any()
        data = store.dataset()
    assert sorted(written) == list(range(10))
    _same(data, whole[1])


def test_unfinished_chunks_are_written_when_they_changed(everything, tmp_path, monkeypatch):
    plan, batch = everything
    written: list[Any] = []
    put = Chunks._put
    known = lambda rows: [bool(code >= 0) for code in rows["result"]]
    monkeypatch.setattr(
        Chunks, "_put", lambda self, number, rows: written.append((number, known(rows))) or put(self, number, rows)
    )
    with HeldStore(tmp_path / "run.zarr", plan, lambda: plan.trace(plan.groups[0])) as store:
        store.write(_part(batch, np.array([7])))
        store.chunks.flush()
        store.chunks.flush()
        assert written == [(2, [False, True, False])]
        store.write(_part(batch, np.array([6, 8])))
        store.write(_part(batch, np.array([6, 8])))
        store.chunks.flush()
    assert written[1:] == [(2, [True, True, True])]


def test_lanes_of_another_dtype_are_refused(everything, tmp_path):
    plan, batch = everything
    other = batch._replace(rows=batch.rows | {"t_end": batch.rows["t_end"].astype(np.float16)})
    with HeldStore(tmp_path / "run.zarr", plan, lambda: plan.trace(plan.groups[0])) as store:
        with pytest.raises(ValueError, match=r"'t_end' is float16 of shape \(\) here, but the store holds float"):
            store.write(other)


def test_what_stands_for_lanes_that_have_not_run():
    missing = {dtype: Variable("a", (), (), dtype, {}).missing for dtype in ("float32", "int8", "bool", "uint8")}
    assert np.isnan(missing.pop("float32"))
    assert missing == {"int8": -1, "bool": False, "uint8": 0}


@pytest.mark.x64_only
@pytest.mark.parametrize("stored", [False, True])
def test_dtypes_that_differ_between_static_combinations(tmp_path, stored):
    build = lambda dtype, rate: cases.modes(jnp.ones(2, dtype), rate.astype(dtype) * jnp.ones(2, dtype))
    axes = {"dtype": ["float32", "float64"], "rate": [1.0, 2.0]}
    options = {"axes": axes, "observe": observe.outputs(), "dynamics": Descent(optax.sgd(0.5))}
    with pytest.raises(ValueError, match=r"'outputs' has dtypes \['float32', 'float64'\] along the axes \['dtype'\]"):
        _run(tmp_path / "run.zarr" if stored else None, build, **options)


def _net(sigma, start):
    net = nets.MLP(
        in_size=3,
        out_size=1,
        width_size=4,
        depth=1,
        activation="tanh",
        scaling=nets.Scaling.ntk(sigma=sigma),
        key=jax.random.key(0),
    )
    x = jnp.array([[1.0, -0.5, 0.2], [0.3, 0.8, -1.0]])
    return Problem(net, x, start * jnp.array([[1.0], [-1.0]]))


@pytest.mark.parametrize(
    ("problem_fn", "name", "dynamics"),
    [
        (_modes, "rate", Descent(optax.sgd(0.1))),
        pytest.param(_net, "sigma", GradientFlow(), marks=pytest.mark.slow),
    ],
    ids=["descent", "flow"],
)
def test_a_march_goes_on_to_the_last_bit(tmp_path, problem_fn, name, dynamics):
    """Three at once, which the second run puts together in other ways."""
    options: dict[str, Any] = {
        "axes": {name: [0.5, 1.0, -1.0, 2.0], "start": [1.0, 2.0]},
        "dynamics": dynamics,
        "batch_size": 3,
    }
    with _after(1, _stop), pytest.raises(Stop):
        _run(tmp_path / "run.zarr", problem_fn, **options)
    with _watched() as batches:
        data = _run(tmp_path / "run.zarr", problem_fn, **options)
    assert 0 < len(sum(batches, [])) < 8
    _same(data, _run(tmp_path / "through.zarr", problem_fn, **options))
    assert set(data["result"].values.ravel()) == {0, 7}
