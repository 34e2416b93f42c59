"""A store may come from anybody: reading one follows nothing out of it, and takes no more than it holds."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import google_crc32c
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from numcodecs.zstd import Zstd
from zarr.codecs import BloscCodec

import jaxsolve as js
from tests import cases
from tests.processes import ROOT
from tests.sweeps.inside import write_json


READERS = [js.sweeps.load, lambda path: js.report.write(path, path.parent / "report.html")]


def _sweep(store: Path | None) -> xarray.Dataset:
    problem = lambda rate, start: cases.modes(start * jnp.ones(1), rate * jnp.ones(1))
    axes = {"rate": [0.5, 1.0, 2.0], "start": [1.0, 2.0]}
    return js.sweep(problem, axes, cases.ModesDecay(), [0.0, 1.0], batch_size=2, progress=False, store=store)


@pytest.fixture
def filled(tmp_path) -> Path:
    """What a sweep has filled."""
    _sweep(tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


@pytest.fixture(params=["filled", "saved"])
def store(tmp_path, request) -> Path:
    """That, or what `save` has written."""
    path = tmp_path / "run.zarr"
    if request.param == "filled":
        _sweep(path)
    else:
        js.sweeps.save(_sweep(None), path)
    return path


def _file(store: Path, name: str) -> Path:
    """The file of a name; of a variable, one of its chunks."""
    if "/" in name:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        return store / name
    return next(file for file in sorted((store / name / "c").rglob("*")) if file.is_file())


def _link(file: Path) -> None:
    secret = file.parents[3] / "secret.json"
    secret.write_text('{"token": "TOPSECRET"}')
    file.symlink_to(secret)


ODD = {
    "link": _link,
    "device": lambda file: file.symlink_to("/dev/zero"),
    "fifo": os.mkfifo,
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["loss", "t", "_jaxsolve/manifest.json", "_jaxsolve/chunks/0.0", "loss/zarr.json"])
def test_only_plain_files_are_read(store, name, kind, read):
    file = _file(store, name)
    file.unlink(missing_ok=True)
    ODD[kind](file)
    with pytest.raises(ValueError, match=r"run\.zarr.* holds (a link|something that is neither a file nor a folder), "):
        read(store)
    assert not (store.parent / "report.html").exists()


@pytest.mark.parametrize("name", ["_jaxsolve", "loss"])
def test_folders_are_no_links_either(store, name):
    (store / name).mkdir(exist_ok=True)
    (store / name).rename(store.parent / "away")
    (store / name).symlink_to(store.parent / "away")
    with pytest.raises(ValueError, match=f"holds a link, {name}"):
        js.sweeps.load(store)
    if name == "_jaxsolve":
        with pytest.raises(ValueError, match="_jaxsolve is a link"):
            js.sweeps.read_manifest(store)


def test_the_manifest_alone_is_read_as_carefully(store):
    file = _file(store, "_jaxsolve/manifest.json")
    for kind, said in (("link", "is a link"), ("fifo", "is not a plain file")):
        file.unlink(missing_ok=True)
        ODD[kind](file)
        with pytest.raises(ValueError, match=said):
            js.sweeps.read_manifest(store)
    file.unlink()
    file.write_text("[" * 10**6)
    with pytest.raises(ValueError, match="is damaged"):
        js.sweeps.read_manifest(store)


# Sizes. Each in a process of its own, with so much memory (stacks of threads count, too) and time.

LIMITED = """
    import resource, sys
    import jaxsolve as js, jax, xarray, zarr, plotly.offline
    jax.devices()
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**31, held + 2**31))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    try:
        {read}
    except (ValueError, MemoryError) as error:
        print(type(error).__name__, error)
"""
READ = {
    "load": "js.sweeps.load(sys.argv[1])",
    "report": "js.report.write(sys.argv[1], sys.argv[1] + '.html')",
}


def _read(store: Path, how: str) -> str:
    code = textwrap.dedent(LIMITED).format(read=READ[how])
    found = subprocess.run(
        [sys.executable, "-c", code, str(store)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


def _reshape(store: Path, name: str, shape: list[int], chunk: list[int] | None = None) -> None:
    """Changes what Zarr's metadata say of an array."""
    whole = json.loads((store / "zarr.json").read_text())
    one = json.loads((store / name / "zarr.json").read_text())
    for found in (one, whole["consolidated_metadata"]["metadata"][name]):
        found["shape"] = shape
        found["chunk_grid"]["configuration"]["chunk_shape"] = shape if chunk is None else chunk
    (store / "zarr.json").write_text(json.dumps(whole))
    (store / name / "zarr.json").write_text(json.dumps(one))


@pytest.mark.parametrize(("how", "name"), [("load", "loss"), ("load", "t"), ("report", "rate")])
@pytest.mark.parametrize("chunked", [False, True])
def test_shapes_are_bounded_before_anything_is_read(store, how, name, chunked):
    shape = [10**6, 10**5, 10] if name == "loss" else [10**11]
    _reshape(store, name, shape, [2] * len(shape) if chunked else None)
    said = _read(store, how)
    assert "of numbers" in said or "others" in said
    assert "run.zarr" in said


@pytest.mark.parametrize("how", READ)
def test_a_grid_of_a_foreign_manifest_is_bounded(filled, how):
    file = filled / "_jaxsolve" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["chunks"] = {"grid": [10**9, 3], "block": [1, 1]}
    write_json(file, manifest)
    assert "its metadata others" in _read(filled, how)
    for item in manifest["variables"]:
        _reshape(filled, item["name"], [10**9, 3, *item["shape"]], [1, 1, *(max(n, 1) for n in item["shape"])])
    assert "of numbers, but only" in _read(filled, how)


@pytest.mark.parametrize(("how", "name"), [("load", "loss"), ("load", "t"), ("report", "start")])
@pytest.mark.parametrize("frames", [1, 40])
def test_chunks_unpack_to_no_more_than_their_shape(store, how, name, frames):
    """8 GB in one frame, or in several; with the checksum of what is there."""
    bomb = _zeros(2 * 10**8) * frames if frames > 1 else _unsized(8 * 10**9)
    with_checksum = "crc32c" in (store / name / "zarr.json").read_text()
    checksum = google_crc32c.value(bomb).to_bytes(4, "little") if with_checksum else b""
    _file(store, name).write_bytes(bomb + checksum)
    assert "is damaged" in _read(store, how)


def _zeros(size: int) -> bytes:
    return Zstd(1).encode(np.zeros(size, np.uint8))


def _unsized(size: int) -> bytes:
    """Zeros in a frame of Zstandard that does not say how many: blocks that repeat one byte."""
    block = 128 * 1024
    count = size // block
    blocks = [((block << 3) | 2 | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)


def test_other_codecs_are_named(tmp_path):
    """Which may unpack to anything; whoever trusts them reads them by xarray."""
    data = xarray.Dataset({"result": ("x", np.zeros(3, np.int8))}, {"x": [0.0, 1.0, 2.0], "t": [0.0]})
    encoding = {"result": {"compressors": (BloscCodec(),)}}
    data.to_zarr(tmp_path / "run.zarr", encoding=encoding, zarr_format=3, consolidated=False)
    with pytest.raises(ValueError, match=r"with the codecs \['bytes', 'blosc'\].*give the dataset"):
        js.sweeps.load(tmp_path / "run.zarr")


def test_metadata_are_bounded(store):
    (store / "zarr.json").write_text(" " * (2**26 + 1))
    with pytest.raises(ValueError, match=r"zarr\.json has 67108865 bytes, and 67108864 are the most"):
        js.sweeps.load(store)
    (store / "zarr.json").write_text("[" * 10**6)
    with pytest.raises(ValueError, match="is damaged"):
        js.sweeps.load(store)


def test_carrying_on_is_as_careful(filled):
    shutil.rmtree(filled / "result" / "c" / "0")
    file = _file(filled, "loss")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(FileExistsError, match="holds something that is neither a file nor a folder, loss"):
        _sweep(filled)
