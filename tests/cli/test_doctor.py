"""What `jaxsolve doctor` says of this machine, and of machines where something is missing or broken."""

import importlib.metadata
import sys

import jax
import numpy as np
import pytest

from jaxsolve import kernels
from tests.inside import numerics


def _idx(*shape):
    """An IDX file of zeros."""
    header = (0x0800 + len(shape)).to_bytes(4, "big") + b"".join(size.to_bytes(4, "big") for size in shape)
    return header + bytes(int(np.prod(shape)))


@pytest.fixture
def doctor(command, tmp_path, monkeypatch):
    """The exit code and, for each thing looked at, its mark, what was found, and the advice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv("JAXSOLVE_DATA", raising=False)

    def run(*arguments):
        code, out, _ = command("doctor", *arguments)
        found, name = {}, ""
        *lines, end = out.splitlines()
        for line in lines:
            mark, what, text = line[:8].strip(), line[8:25].strip(), line[25:]
            name = what or name
            found[name] = (mark, text, "") if what else (*found[name][:2], text)
        assert end == "nothing is broken" if code == 0 else end.startswith("broken: ")
        assert {mark for mark, *_ in found.values()} <= {"ok", "note", "BROKEN"}
        assert code == any(mark == "BROKEN" for mark, *_ in found.values())
        assert all((mark == "ok") == (not advice) for mark, _, advice in found.values())
        return code, found

    return run


def _without(monkeypatch, library, version=None):
    """As if a library were of another version, or not installed."""
    installed = importlib.metadata.version

    def ask(name):
        if name != library:
            return installed(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", ask)


def test_a_machine_where_all_is_well(doctor, tmp_path, monkeypatch):
    folder = tmp_path / "images" / "mnist"
    folder.mkdir(parents=True)
    for kind, count in (("train", 20), ("t10k", 10)):
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(_idx(count, 28, 28))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(_idx(count))
    monkeypatch.setenv("JAXSOLVE_DATA", str(folder.parent))
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    code, found = doctor()
    assert code == 0
    for name in ("jax", "jaxlib", "equinox", "diffrax", "optax"):
        assert found[name] == ("ok", importlib.metadata.version(name), "")
    assert found["neural-tangents"][:2] == ("ok", f"{importlib.metadata.version('neural-tangents')}, works")
    assert jax.devices()[0].platform in found["devices"][1]
    assert found["memory"][1].endswith("GB free")
    assert "JAX_TRACEBACK_FILTERING=off" in found["environment"][1]
    for name, most in (("float32", 1e-6), ("float64", 1e-15)):
        assert found[name][0] == "ok"
        assert 0 <= float(found[name][1].rpartition(" ")[2]) < most
    assert found["cache"][1].startswith(str(tmp_path / "cache" / "jaxsolve" / "programs"))
    assert found["data mnist"][:2] == ("ok", f"MNIST (20 training images in {folder})")


def test_without_data_it_says_where_it_looked_and_how_to_get_them(doctor, tmp_path):
    code, found = doctor()
    assert code == 0
    for name in ("data mnist", "data fashion", "data cifar10"):
        mark, state, advice = found[name]
        assert (mark, state) == ("note", "not found")
        assert f"Looked in: {tmp_path / 'cache' / 'jaxsolve'}" in advice
        assert "jaxsolve data fetch" in advice


def test_a_damaged_file_is_named(doctor, tmp_path, monkeypatch):
    folder = tmp_path / "images" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(_idx(20, 28, 28)[:-1])
    (folder / "train-labels-idx1-ubyte").write_bytes(_idx(20))
    monkeypatch.setenv("JAXSOLVE_DATA", str(folder.parent))
    code, found = doctor()
    assert code == 1
    assert found["data mnist"][0] == "BROKEN"
    assert "train-images-idx3-ubyte" in found["data mnist"][1]


def test_a_cache_that_cannot_be_written(doctor, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, found = doctor()
    assert code == 1
    mark, state, advice = found["cache"]
    assert (mark, state) == ("BROKEN", f"{tmp_path / 'file' / 'jaxsolve' / 'programs'} cannot be written")
    assert "--no-cache" in advice
    code, found = doctor("--no-cache")
    assert (code, found["cache"][0]) == (0, "ok")


def test_programs_are_counted(doctor, tmp_path):
    folder = tmp_path / "cache" / "jaxsolve" / "programs"
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(bytes(3_000_000))
    assert "1 files, 3 MB" in doctor()[1]["cache"][1]


@pytest.mark.parametrize(("version", "state"), [(None, "not installed"), ("0.1", "0.1, and >=")])
def test_a_dependency_that_is_missing_or_too_old(doctor, monkeypatch, version, state):
    _without(monkeypatch, "diffrax", version)
    code, found = doctor()
    assert code == 1
    assert found["diffrax"][0] == "BROKEN"
    assert found["diffrax"][1].startswith(state)
    assert found["diffrax"][2].startswith('pip install --upgrade "diffrax>=')
    assert "devices" not in found  # they were not looked at


def test_a_version_known_to_be_wrong_is_tried(doctor, monkeypatch):
    """It is excluded, and the programs with known answers run nevertheless: they say what is wrong."""
    _without(monkeypatch, "jaxlib", "0.10.2")
    code, found = doctor()
    assert (code, found["jaxlib"][0]) == (1, "BROKEN")
    assert found["compiler"][0] == "ok"  # what is installed here is right


def test_programs_with_known_answers_that_do_not_run(doctor, monkeypatch):
    def refuse():
        raise RuntimeError("no float64 on this device")

    monkeypatch.setattr(numerics, "known_answers", refuse)
    code, found = doctor()
    assert (code, found["compiler"][0]) == (1, "BROKEN")
    assert "no float64 on this device" in found["compiler"][1]


def test_a_dependency_that_cannot_be_imported(doctor, monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    code, found = doctor()
    assert (code, found["optax"][0]) == (1, "BROKEN")


def test_neural_tangents_may_be_missing_but_not_broken(doctor, monkeypatch):
    def refuse(net, x1):
        raise kernels.NeuralTangentsUnavailable("the reason, and what to do")  # tests/kernels has the real ones

    monkeypatch.setattr(kernels, "infinite", refuse)
    code, found = doctor()
    assert (code, found["neural-tangents"][0]) == (1, "BROKEN")
    assert found["neural-tangents"][1].endswith("does not work")
    _without(monkeypatch, "neural-tangents")
    code, found = doctor()
    assert (code, found["neural-tangents"]) == (0, ("note", "not installed", "the reason, and what to do"))


def test_an_accelerator_that_cannot_be_had(doctor, monkeypatch):
    def refuse():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", refuse)
    code, found = doctor()
    assert (code, found["devices"][0]) == (1, "BROKEN")
    assert "JAX_PLATFORMS" in found["devices"][2]
