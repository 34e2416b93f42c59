"""Several processes that fill one store: those of `jax.distributed`, and the shares that they get."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from typing import Any

import jax
import numpy as np
import pytest

from jaxsolve import observe, sweep
from jaxsolve.sweeps import Hosts
from tests import cases
from tests.processes import ROOT
from tests.sweeps import faults
from tests.sweeps.inside import cut, dealt, Origin, Plan, read_plan, write_json


TS = (0.0, 0.3, 1.0)
AXES = {"rate": [0.5, 1.0, 2.0, 4.0, 3.0], "kind": ["slow", "fast"], "start": [1.0, 2.0, -1.0]}
QUIET = functools.partial(sweep, progress=False)


def _plan(axes: Any) -> Plan:
    return read_plan(faults.modes, axes, cases.ModesDecay(), TS, observe=observe.loss(), batch_size=4)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "axes", [AXES, {"kind": ["a", "b"], "rate": np.ones(24)}, {"kind": ["a", "b", "c", "d"], "rate": [1.0]}]
)
def test_lanes_are_dealt_out(axes, count):
    """Each lane to one process, chunks as wholes, and of every static combination as many to each as can be."""
    plan = _plan(axes)
    blocks = cut(plan.axes, 4, 8)
    shares = [dealt(plan, blocks, index, count) for index in range(count)]
    np.testing.assert_array_equal(np.sum(shares, axis=0), 1)
    for share in shares:
        for number in range(len(blocks)):
            assert len(set(share[blocks.lanes(number)])) == 1
    chunks = [len(np.unique(blocks.of(np.flatnonzero(share)))) for share in shares]
    assert max(chunks) - min(chunks) <= 2


def test_one_process_runs_everything(tmp_path):
    problem_fn = lambda rate, kind, start: faults.modes(rate, kind, start)
    options: dict[str, Any] = {"batch_size": 4, "observe": observe.loss()}
    data = QUIET(problem_fn, AXES, cases.ModesDecay(), TS, store=tmp_path / "a.zarr", executor=Hosts(), **options)
    alone = QUIET(problem_fn, AXES, cases.ModesDecay(), TS, store=tmp_path / "b.zarr", **options)
    assert data["loss"].values.tobytes() == alone["loss"].values.tobytes()
    assert faults.difference(tmp_path / "a.zarr", tmp_path / "b.zarr") == []
    with pytest.raises(ValueError, match=r"the processes of Hosts\(\) share a store: give store=, a folder that all"):
        QUIET(problem_fn, AXES, cases.ModesDecay(), TS, executor=Hosts())


def test_what_other_processes_say_stands_in_the_manifest(tmp_path):
    """Which one of them does not write itself."""
    path, alone = tmp_path / "run.zarr", jax.devices()[0].device_kind
    problem_fn = lambda rate, kind, start: faults.modes(rate, kind, start)
    run = lambda: QUIET(problem_fn, AXES, cases.ModesDecay(), TS, store=path, batch_size=4)
    assert run().attrs["device"] == alone
    words = [Origin("far", "TPU v9", "Other", "0", 4), Origin("far", "TPU v9", "Other", "3", 2)]
    write_json(path / "_jaxsolve" / "hosts" / "1.json", [word._asdict() for word in words])
    data = run()
    assert data.attrs["device"] == f"{alone}; TPU v9"
    assert data.attrs["dynamics"] == "ModesDecay; Other"
    manifest = json.loads((path / "_jaxsolve" / "manifest.json").read_text())
    assert manifest["batch_size"]["used"] == {"0": 4, "3": 2}
    assert manifest["runs"][-1]["workers"] == {"far, TPU v9": 0}
    assert run().identical(data)


# Runs as process INDEX of two, and prints which lanes it ran. The memory of the second one is small.
PROCESS = """
import os, signal, sys, time
from pathlib import Path
import jax

index, port, path = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=index)
from jaxsolve.sweeps import Hosts
from tests.sweeps import faults
from tests.sweeps.inside import _execute, Fused

ran, run_group, run = [], _execute.run_group, Fused.run

def watched(program, *args):
    for done in run_group(program, *args):
        ran.extend(done.lanes.tolist())
        yield done

def limited(self, *args):
    if index and self._rows > 2:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8000000000 bytes.")
    run(self, *args)

_execute.run_group, Fused.run = watched, limited
faults.run(path, executor=Hosts())
data = faults.run(path, executor=Hosts())
print(index, len(ran), len(set(ran)))
"""


def _start(*arguments: Any, code: str = PROCESS) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"JAX_ENABLE_X64": str(int(cases.X64))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_two_processes_fill_one_store(tmp_path):
    """Half of the lanes each; what comes out is the store of one process."""
    alone = tmp_path / "alone.zarr"
    faults.run(alone)
    path, port = tmp_path / "run.zarr", _port()
    processes = [_start(index, port, path) for index in range(2)]
    said = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    half = faults.LANES // 2
    assert [out.splitlines()[-1] for out, _ in said] == [f"{index} {half} {half}" for index in range(2)]
    assert faults.difference(path, alone) == []
    assert [file.name for file in path.rglob("*.partial")] == []
    manifest = json.loads((path / "_jaxsolve" / "manifest.json").read_text())
    assert manifest["batch_size"]["used"] == {"0": 2}
    assert manifest["runs"][-1]["workers"] == {f"{socket.gethostname()}, {jax.devices()[0].device_kind}": 0}


@pytest.mark.slow
def test_the_others_are_told_when_the_first_does_not_begin(tmp_path):
    (tmp_path / "run.zarr").write_text("mine")
    port = _port()
    processes = [_start(index, port, tmp_path / "run.zarr") for index in range(2)]
    said = [process.communicate(timeout=150)[1] for process in processes]
    assert re.search(r"FileExistsError: .*run\.zarr is a file", said[0])
    assert re.search(
        r"RuntimeError: process 0 did not begin to fill .*run\.zarr; see the error of that process", said[1]
    )
