"""What strangers give to a sweep, and what they do to its store."""

import functools
import importlib
import json
import os
import signal
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import jaxsolve as js
from tests import cases


QUIET = functools.partial(js.sweep, progress=False)
DYNAMICS, TS = cases.ModesDecay(), [0.0, 1.0]
LOSS = js.observe.loss()
AXES = {"rate": [0.5, 1.0, 2.0], "start": [1.0, 2.0]}


def _modes(rate, start=1.0):
    return cases.modes(jnp.ones(1) * start, jnp.ones(1) * rate)


def _run(path, problem_fn: Any = _modes, axes: Any = None, **options):
    return QUIET(problem_fn, AXES if axes is None else axes, DYNAMICS, TS, store=path, batch_size=2, **options)


@pytest.fixture
def store(tmp_path) -> Path:
    _run(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def _manifest(path: Path, change) -> None:
    file = path / "_jaxsolve" / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def _forget(path: Path, number: str = "0/0") -> None:
    """As if the lanes of a chunk had not run."""
    (path / "result" / "c" / number).unlink()


# Names


def _constant(name: str, dims: tuple[str, ...] = ("neuron",), size: int = 2, dtype: Any = float):
    return js.observe.Observable(name, lambda view: jnp.full(size, view.loss).astype(dtype), LOSS.needs, dims=dims)


@pytest.mark.parametrize("name", ["a/b", "..", "a\0b", "_jaxsolve", "a\nb", "x" * 101])
def test_names_that_cannot_be_those_of_folders(tmp_path, name):
    # A NUL is refused where the name is given, whether anything is stored or not.
    said = "characters that can be printed" if "\0" in name else "cannot be stored: "
    because = "Zarr takes '/' for a folder" if "/" in name else ""
    with pytest.raises(ValueError, match=f"{said}{because}"):
        _run(tmp_path / "run.zarr", observe=_constant(name))
    with pytest.raises(ValueError, match=said):
        _run(tmp_path / "run.zarr", lambda **cell: _modes(1.0), axes={name: [1.0]})
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize("name", ["t", "result", "trust", "neuron"])
def test_observables_called_like_something_else(name):
    with pytest.raises(ValueError, match=f"an observable may not be called '{name}'"):
        QUIET(_modes, AXES, DYNAMICS, TS, observe=_constant(name))


@pytest.mark.parametrize(
    "axes",
    [
        [js.Zip(a_b=[1.0], c=[1.0]), js.Zip(a=[1.0], b_c=[1.0])],
        [js.Zip(a=[1.0], b=[1.0]), {"a_b": [1.0]}],
    ],
)
def test_zips_called_like_something_else(axes):
    with pytest.raises(ValueError, match="appear more than once .a Zip is called by its axes, as 'a_b'"):
        js.plan(lambda **cell: _modes(1.0), axes, DYNAMICS, TS)


def test_a_dimension_of_two_sizes_is_refused_before_anything_runs(tmp_path):
    observe = [_constant("one", size=2), _constant("other", size=3)]
    said = "dimension 'neuron' of observable 'other' has 3 entries, but 2 in"
    for options in ({}, {"store": tmp_path / "run.zarr"}):
        with pytest.raises(ValueError, match=said):
            QUIET(_modes, AXES, DYNAMICS, TS, observe=observe, **options)
    with pytest.raises(ValueError, match=said):
        js.plan(_modes, AXES, DYNAMICS, TS, observe=observe)
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize("verb", [QUIET, js.plan])
def test_what_no_dataset_holds(verb):
    with pytest.raises(TypeError, match="observable 'half' is bfloat16, which a dataset cannot hold"):
        verb(_modes, AXES, DYNAMICS, TS, observe=_constant("half", dtype=jnp.bfloat16))
    key = js.observe.Observable("key", lambda view: jax.random.key(0), LOSS.needs)
    with pytest.raises(TypeError, match=r"observable 'key' is key<fry>.*jax\.random\.key_data"):
        verb(_modes, AXES, DYNAMICS, TS, observe=key)


# Values


def test_texts_with_brackets_stay_as_they_are(tmp_path):
    axes = {"rate": [0.5, 1.0], "kind": ["[ a ]", "b [ ]", "[", ", ]"]}
    run = lambda: _run(tmp_path / "run.zarr", lambda rate, kind: _modes(rate), axes)
    whole = run()
    assert js.sweeps.read_manifest(tmp_path / "run.zarr")["plan"]["axes"]["kind"]["kind"]["static"] == axes["kind"]
    assert run().identical(whole)


def test_values_that_this_precision_cannot_hold():
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match="axis 'rate' holds 2147483648, which int32 cannot"):
            js.plan(_modes, {"rate": np.array([1, 2**31])}, DYNAMICS, TS)
        with pytest.raises(ValueError, match="axis 'rate' holds 4294967296, which int32 cannot"):
            js.plan(_modes, {"rate": range(2**32, 2**32 + 2)}, DYNAMICS, TS)
        with pytest.raises(ValueError, match="axis 'rate' has values that are equal in float32"):
            js.plan(_modes, {"rate": [1.0, 1.0 + 1e-9]}, DYNAMICS, TS)
    assert js.plan(_modes, {"rate": [1.0, 1.0]}, DYNAMICS, TS).lanes == 2  # by intention


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("name", ["resume", "retry_failed", "progress"])
def test_flags_are_true_or_false(name):
    strange: Any = {name: "yes"}
    with pytest.raises(TypeError, match=f"{name} must be True or False, got str 'yes'"):
        js.sweep(_modes, AXES, DYNAMICS, TS, **strange)


# Paths


def test_paths_from_the_home_and_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    _run("~/run.zarr")
    assert js.sweeps.load(tmp_path / "run.zarr").sizes["rate"] == 3
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="store must be a folder of this machine, got s3://bucket/run.zarr"):
        _run("s3://bucket/run.zarr")
    assert sorted(os.listdir(tmp_path)) == ["run.zarr"]


@pytest.mark.parametrize("name", ["_jaxsolve/lock", "_jaxsolve/writer.json", "loss/c/0/0/0"])
def test_links_are_refused_and_what_they_lead_to_is_left_alone(store, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    _forget(store)
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(victim)
    with pytest.raises(FileExistsError, match=f"run.zarr holds a link, {name}"):
        _run(store)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "extra"])
def test_only_what_the_plan_names_is_written(store, name):
    _forget(store)
    before = sorted(store.parent.iterdir())
    _manifest(store, lambda content: content["variables"][0].update(name=name))
    with pytest.raises(ValueError, match="the manifest of this store is damaged, or was made by another program"):
        _run(store)
    assert sorted(store.parent.iterdir()) == before


@pytest.mark.parametrize("block", [[0, 1], [-1, 1], [1], ["a", 1]])
@pytest.mark.usefixtures("as_users")
def test_blocks_of_a_foreign_manifest(store, block):
    _manifest(store, lambda content: content["chunks"].update(block=block))
    with pytest.raises(ValueError, match="the manifest of this store is damaged"):
        _run(store)


def test_a_manifest_cannot_accept_every_plan(store):
    _manifest(store, lambda content: content.update(plan="*"))
    with pytest.raises(ValueError, match="is damaged|another plan"):
        _run(store)


def test_a_disk_that_is_full_gives_the_lock_back(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="there is no space left to write to"):
            _run(tmp_path / "run.zarr")
    assert _run(tmp_path / "run.zarr")["result"].shape == (3, 2)


def test_files_of_the_user_stay(store):
    mine, ours = store / "thesis.partial", store / f"0.{'a' * 32}.partial"
    for file in (mine, ours):
        file.write_text("mine")
    _forget(store)
    _run(store)
    assert mine.exists()
    assert not ours.exists()


# What is damaged or missing


def test_reading_says_what_is_missing(store):
    (store / "loss" / "c" / "1" / "0" / "0").unlink()
    with pytest.warns(UserWarning, match=r"1 files of lanes that have run are missing, the first is loss/c/1/0/0"):
        data = js.sweeps.load(store)
    assert np.isnan(data["loss"].values).sum() == 2 * len(TS)


@pytest.mark.parametrize("name", ["rate/c/0", "t/c/0", "loss/c/0/0/0"])
def test_reading_says_what_is_damaged(store, name):
    file = store / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.zarr is damaged: .*checksum.* To mend it: the sweep that made"):
        js.sweeps.load(store)
    with pytest.raises(ValueError, match="checksum"), xarray.open_zarr(store, chunks=None) as data:
        data.load()


# Another problem


def test_a_changed_module_is_another_plan(tmp_path, monkeypatch):
    (tmp_path / "edge_models.py").write_text(
        "from tests import cases\nimport jax.numpy as jnp\nSCALE = 1.0\n"
        "def make(rate):\n    return cases.modes(SCALE * jnp.ones(1), jnp.ones(1) * rate)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    models: Any = importlib.import_module("edge_models")
    monkeypatch.setitem(sys.modules, "edge_models", models)
    problem = lambda rate: models.make(rate)
    axes = {"rate": [0.5, 1.0]}
    first = _run(tmp_path / "run.zarr", problem, axes)
    models.SCALE = 64.0
    with pytest.raises(ValueError, match="the problem's program differs"):
        _run(tmp_path / "run.zarr", problem, axes)
    models.SCALE = 1.0
    assert first["loss"].equals(_run(tmp_path / "run.zarr", problem, axes)["loss"])


@pytest.mark.parametrize("kind", [dict, list, types.SimpleNamespace])
def test_containers_that_a_function_refers_to(tmp_path, kind):
    def problem_of(scale):
        scales = np.full(3, scale)
        held = {dict: {"scales": scales}, list: [scales], types.SimpleNamespace: types.SimpleNamespace(scales=scales)}
        kept: Any = held[kind]
        of = {dict: lambda: kept["scales"], list: lambda: kept[0], types.SimpleNamespace: lambda: kept.scales}[kind]
        return lambda rate: cases.modes(jnp.ones(1) * of()[0], jnp.ones(1) * rate)

    _run(tmp_path / "run.zarr", problem_of(1.0), {"rate": [0.5, 1.0]})
    with pytest.raises(ValueError, match="another plan"):
        _run(tmp_path / "run.zarr", problem_of(2.0), {"rate": [0.5, 1.0]})


def test_what_is_read_from_a_file_shows_in_the_program(tmp_path):
    """Such as data."""
    file = tmp_path / "scale.txt"
    problem = lambda rate, start: cases.modes(jnp.ones(1) * start * float(file.read_text()), jnp.ones(1) * rate)
    file.write_text("1.0")
    _run(tmp_path / "run.zarr", problem)
    _forget(tmp_path / "run.zarr")
    file.write_text("64.0")
    with pytest.raises(ValueError, match=r"another plan:\s+the problem's program differs"):
        _run(tmp_path / "run.zarr", problem)
    file.write_text("1.0")
    _run(tmp_path / "run.zarr", problem)


# Trust


def test_low_trust_is_warned_of(tmp_path):
    """A loose tolerance: the certificate of the fast lanes vouches for little."""
    net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
    problem = lambda target: js.Problem(net, jnp.eye(2), target * jnp.ones((2, 1)))
    flow, ts = js.GradientFlow(rtol=0.5, atol=0.5), [0.0, 0.3]
    for options in ({}, {"store": tmp_path / "run.zarr"}):
        with pytest.warns(UserWarning, match=r"1 of 2 lanes can be trusted to fewer than 2 digits.*lower rtol"):
            data = QUIET(problem, {"target": [1e-3, 300.0]}, flow, ts, **options)
        alone = [js.solve(problem(target), flow, ts).certificate for target in (1e-3, 300.0)]
        expected = [float(certificate.trust) for certificate in alone if certificate is not None]
        np.testing.assert_allclose(data["trust"], expected, rtol=1e-5)
    assert data["trust"].attrs["units"] == "digits"


def test_closed_forms_have_no_trust():
    assert "trust" not in QUIET(_modes, AXES, DYNAMICS, TS)


# Signals


def test_signals_within_a_second_are_one(tmp_path):
    """As `timeout` sends them, to the process and to its group."""
    fired = []

    def problem(rate, start):
        if not fired:
            fired.append(True)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
        return _modes(rate, start)

    with pytest.raises(KeyboardInterrupt, match=r"stopped by SIGTERM: \d of 6 lanes are in the store"):
        _run(tmp_path / "run.zarr", problem)
