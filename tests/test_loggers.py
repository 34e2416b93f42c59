"""The loggers of docs/monitor.md take the rows of a monitor, and what they have kept is read back.

They need wandb, trackio, tensorboardX and TensorBoard, which no other test does: `.ci/run torch` installs them beside.
"""

import json
import sqlite3
import struct
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxsolve as js
from tests.test_readme import FENCE, ROOT


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
STEPS = (0, 5, 10)


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """All that loggers write lies in one folder, and none asks the network."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")


def watched(library: str) -> tuple[dict[int, dict[str, float]], dict]:
    """The rows of a short training, and the names of the page's block that was run for its logger."""
    net = eqx.nn.MLP(2, 1, 8, 1, jnp.tanh, key=jax.random.key(0))
    text = (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8")
    (block,) = (f["body"] for f in FENCE.finditer(text) if f["language"] == "text" and f"import {library}" in f["body"])
    names = {"js": js, "problem": js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))}
    exec(block, names)
    monitor, rows = names["monitor"], {}
    monitor.every = STEPS[1]
    for step in range(STEPS[-1] + 1):
        if (row := monitor(step, net)) is not None:
            rows[step] = row
        net = jax.tree.map(lambda leaf: 1.01 * leaf if eqx.is_inexact_array(leaf) else leaf, net)
    assert tuple(rows) == STEPS
    assert rows[10]["kernel_change"] > 0
    return rows, names


def same(rows: dict[int, dict[str, float]], kept: dict[int, dict[str, float]]) -> None:
    for step, row in rows.items():
        # NaN of the first row is not equal to itself.
        assert {k: v for k, v in row.items() if v == v} == {k: kept[step][k] for k, v in row.items() if v == v}


def test_wandb():
    wandb = pytest.importorskip("wandb")
    records = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows, _ = watched("wandb")
    wandb.finish()
    (file,) = Path.cwd().glob("**/run-*.wandb")
    kept = {}
    for data in _records(file.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            kept[record.history.step.num] = items
    same(rows, kept)


def _records(raw: bytes):
    """Of a run's file: a head of 7 bytes, then blocks of 32 KiB with checksum, length and kind before each part."""
    place, held = 7, b""
    while place + 7 <= len(raw):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", raw[place : place + 7])
        part = raw[place + 7 : place + 7 + length]
        place += 7 + length
        held = part if kind in (1, 2) else held + part
        if kind in (1, 4):
            yield held


def test_trackio():
    trackio = pytest.importorskip("trackio")
    rows, _ = watched("trackio")
    trackio.finish()
    (file,) = Path.cwd().glob("trackio/*.db")
    with sqlite3.connect(file) as base:
        same(rows, {step: json.loads(row) for step, row in base.execute("select step, metrics from metrics")})


def test_tensorboard():
    pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows, names = watched("SummaryWriter")
    names["writer"].close()
    kept = events.EventAccumulator("runs/first", size_guidance={"scalars": 0})
    kept.Reload()
    for name in ("loss", "kernel_change", "nonlinearity"):
        found = {event.step: event.value for event in kept.Scalars(name)}
        assert found == pytest.approx({step: row[name] for step, row in rows.items()}, rel=1e-6)  # float32
