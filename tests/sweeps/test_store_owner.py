"""A store belongs to one run at every write, and its chunks count as wholes."""

import errno
import functools
import os
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsolve as js
from tests import cases
from tests.sweeps.inside import _chunks, _files, Chunks


QUIET = functools.partial(js.sweep, progress=False)
RATES = {"rate": [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}
TS = [0.0, 1.0]


def _problem(scale):
    return lambda rate: cases.modes(scale * jnp.ones(1), jnp.ones(1) * rate)


def _run(path: Path, scale: float = 1.0, axes: Any = None, **options: Any):
    return QUIET(
        _problem(scale), RATES if axes is None else axes, cases.ModesDecay(), TS, store=path, batch_size=2, **options
    )


def _after(monkeypatch: pytest.MonkeyPatch, count: int, act) -> None:
    """Acts once, after so many batches of the next sweep have been written."""
    write, left = Chunks.write, [count]

    def counted(self, batch):
        write(self, batch)
        left[0] -= 1
        if left[0] == 0:
            act()

    monkeypatch.setattr(Chunks, "write", counted)


def _same(data, other) -> bool:
    return data.drop_vars("wall").identical(other.drop_vars("wall").assign_attrs(data.attrs))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_sweep_that_replaces_a_store_keeps_it_for_itself(tmp_path, monkeypatch, count):
    """The one before stops at its next write, also where that is a manifest's; nothing of it gets in."""
    path, alone = tmp_path / "run.zarr", _run(tmp_path / "alone.zarr", 5.0)

    def replace():
        shutil.rmtree(path)
        _run(path, 5.0)

    with monkeypatch.context() as patched:
        _after(patched, count, replace)
        with pytest.raises(FileExistsError, match=r"run\.zarr was replaced while it was filled, so this sweep has st"):
            _run(path)
    assert _same(js.sweeps.load(path), alone)
    assert _same(_run(path, 5.0), alone)


@pytest.mark.parametrize("moved", [False, True])
def test_a_store_that_goes_away_stops_its_sweep(tmp_path, monkeypatch, moved):
    """At the next write, without a trace at the old path; and the advice works when it is followed."""
    path, elsewhere = tmp_path / "run.zarr", tmp_path / "elsewhere.zarr"
    with monkeypatch.context() as patched:
        _after(patched, 2, lambda: path.rename(elsewhere) if moved else shutil.rmtree(path))
        with pytest.raises(FileNotFoundError, match=r"moved or removed while .* with the path that the store has now"):
            _run(path)
    assert not path.exists()
    whole = _run(tmp_path / "whole.zarr")
    if moved:
        ran = []
        _after(monkeypatch, 1, lambda: ran.append(np.sum(js.sweeps.load(elsewhere)["result"].values >= 0)))
        assert _same(_run(elsewhere), whole)
        assert ran == [6]  # four that had run, and two more
    assert _same(_run(path), whole)


def test_a_store_that_goes_away_within_a_write_leaves_no_shell(tmp_path, monkeypatch):
    path = tmp_path / "run.zarr"
    require, calls = _files.require_own, []

    def late(root, identity):
        require(root, identity)
        calls.append(root)
        if len(calls) == 2:
            shutil.rmtree(root)

    with monkeypatch.context() as patched:
        patched.setattr(_chunks, "require_own", late)
        with pytest.raises(FileNotFoundError, match="moved or removed"):
            _run(path)
    assert not path.exists()


def test_a_copy_made_while_a_sweep_runs_has_no_lanes_of_nan(tmp_path, monkeypatch):
    """Its `loss` is older than its `result`, and both are sound: chunks that are not whole are written now and then."""
    path, copy = tmp_path / "run.zarr", tmp_path / "copy.zarr"
    problem = lambda rate, start: cases.modes(start * jnp.ones(1), jnp.ones(1) * rate)
    axes = {"rate": RATES["rate"][:4], "start": [1.0, 2.0, 3.0]}
    sweep = lambda store: QUIET(problem, axes, cases.ModesDecay(), TS, store=store, batch_size=4)  # chunks of three
    with monkeypatch.context() as patched:
        patched.setattr(_chunks, "FLUSH_SECONDS", 0.0)
        patched.setattr(_chunks, "FLUSH_SHARE", np.inf)
        _after(patched, 1, lambda: shutil.copytree(path / "loss", copy / "loss"))
        whole = sweep(path)
    assert (copy / "loss" / "c" / "1" / "0" / "0").exists()  # of one lane in three
    shutil.copytree(path, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("loss"))
    shutil.copytree(path / "loss", copy / "loss", dirs_exist_ok=True, ignore=shutil.ignore_patterns("1"))
    with pytest.warns(
        UserWarning, match=r"1 chunks were copied, or their writer killed, halfway: loss/c/1/0/0 is anot"
    ):
        data = js.sweeps.load(copy)
    assert np.all((data["result"].values >= 0) == np.isfinite(data["loss"].values[..., 0]))
    assert np.sum(data["result"].values < 0) == 3
    assert _same(sweep(copy), whole)
    assert _same(js.sweeps.load(copy), whole)


def test_a_chunk_of_another_store_is_not_taken_up(tmp_path):
    """Not even with all of its files and its record: those say which store they are of."""
    path, other = tmp_path / "run.zarr", tmp_path / "other.zarr"
    _run(path)
    _run(other)
    for file in sorted(other.rglob("*")):
        if file.name == "0" and ("c" in file.parts or "chunks" in file.parts) and file.is_file():
            shutil.copy(file, path / file.relative_to(other))
    with pytest.warns(UserWarning, match=r"_jaxsolve/chunks/0 is not there, or is not the record of a chunk of this"):
        assert js.sweeps.load(path)["result"].values.tolist()[:2] == [-1, -1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("name", ["loss/c/1/0", "_jaxsolve/chunks/1", "_jaxsolve/manifest.json", "rate/c/0"])
@pytest.mark.parametrize("read", [js.sweeps.load, _run])
def test_trouble_of_the_system_is_not_damage(tmp_path, monkeypatch, number, name, read):
    """It is told with the name of the file, and nothing is run again or thrown away."""
    path = tmp_path / "run.zarr"
    before = _run(path)
    (path / "result" / "c" / "3").unlink()
    opened = os.open

    def failing(file, *args, **options):
        if str(file) == str(path / name):
            raise OSError(number, os.strerror(number), str(file))
        return opened(file, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing)
        with pytest.raises(OSError, match=rf"run\.zarr/{name}") as caught:
            read(path)
        assert caught.value.errno == number
    assert (path / "loss" / "c" / "1" / "0").exists()
    assert _same(_run(path), before)
