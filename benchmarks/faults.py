"""What happens to a sweep that is killed, stopped or disturbed: faults, of which the sweep survives each.

Most run in `tests/sweeps/faults.py`, which the tests use as well, with fewer kills.
"""

import contextlib
import functools
import logging
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffrax
import distributed
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsolve as js
from tests import cases
from tests.sweeps import faults
from tests.sweeps.inside import _dask

from ._said import Row


KILLS = 20
QUIET = functools.partial(js.sweep, progress=False)


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; with fewer kills in the quick part."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it tells at length of the worker that is killed
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        yield from _processes(folder, 2 if quick else KILLS)
        yield from _failing_lanes()
        yield from _corrupted(folder)
        yield from _worker(folder)
        yield _all_workers(folder, patience=3 if quick else 180)
        if not quick:
            yield from _hosts(folder)
        yield from _paths(folder)
        yield _checkpoints(folder)
        for fault, file in STRANGERS.items():
            yield _tried(fault, file)


def _row(fault: str, happened: str, survived: bool) -> Row:
    return Row(f"{fault}: survived", float(survived), ">=", 1, ".0f", note=happened)


def _processes(folder: Path, kills: int) -> Iterator[Row]:
    begin = time.perf_counter()
    found = faults.launch(folder, kills)
    middle = sum(0 < chunks < faults.CHUNKS for chunks in found["killed"])
    equal = found["difference"] == [] and found["parts"] == []
    print(f"({faults.LANES} lanes in {faults.CHUNKS} chunks; {time.perf_counter() - begin:.0f} s)\n")
    what = f"{kills} kills, {middle} of them left a store with some of its chunks; resumed, equal to an undisturbed one"
    yield _row("SIGKILL at random moments", f"{what} in every bit but `wall`" if equal else "differs", equal)
    for number in ("SIGINT", "SIGTERM"):
        code, said, chunks = found["disturbed"][number]
        yield _row(f"{number}", _last(said), code == 3 and equal and 0 < chunks)
    twice = found["twice"]
    said = f"ends {twice['seconds']:.2g} s after the second one: {_last(twice['said'])}"
    yield _row("two signals while a batch runs for minutes", said, twice["alive"] and twice["code"] == 3)
    other = found["disturbed"]
    refused = "BlockingIOError" in other["second"]
    yield _row("a second process", f"after {other['seconds']:.1f} s: {_last(other['second'])}", refused)
    yield _row(
        "xarray opens it meanwhile, without jaxsolve", f"{other['seen']} lanes", other["seen"].startswith("seen")
    )
    replaced, moved, copied = found["replaced"], found["moved"], found["copied"]
    survived = "FileExistsError" in replaced["said"] and replaced["difference"] == []
    said = f"the first one stops: {_last(replaced['said'])}; the second one's store is as if undisturbed"
    yield _row("a store removed while it is filled, and another begun in its place", said, survived)
    said = f"stops with {moved['ran']} chunks: {_last(moved['said'])}; carried on there, equal"
    survived = "FileNotFoundError" in moved["said"] and moved["difference"] == [] and not moved["left"]
    yield _row("a store moved while it is filled", said, survived)
    said = f"{copied['lanes']} of 72 lanes are read, {copied['hollow']} of them without all of their values; carried on"
    survived = copied["hollow"] == 0 and copied["difference"] == []
    yield _row("a copy made while a sweep runs, one variable after another", f"{said}, equal", survived)
    full = found["full"]
    if full is None:
        print("disk full: not tried, as this user may not mount a small file system")
    else:
        what = f"{_last(full['said'])}: {full['chunks']} chunks kept; with more space, resumed and equal"
        yield _row("disk full (tmpfs of 600 kB)", what, full["difference"] == [])


def _last(said: str) -> str:
    """The last line, without the folder of this run and what tells it from another one: process, machine, clock."""
    line = re.sub(r"process \d+ on .*, since [^\s;]+;", "process ... on ..., since ...;", said.strip().splitlines()[-1])
    return " ".join(Path(word).name if word.startswith("/") else word for word in line.split())


def _failing_lanes() -> Iterator[Row]:
    def build(rate: Any) -> js.Problem:
        return cases.modes(jnp.ones(2), jnp.stack([rate, jnp.ones(())]))

    flow = js.GradientFlow(diffrax.Tsit5(), max_steps=100)
    descent = js.Descent(optax.sgd(0.01))
    for dynamics, rates in ((flow, [1.0, -1.0, 1e6, 2.0]), (descent, [1.0, -1.0, 1e4, 2.0])):
        data = QUIET(build, {"rate": rates}, dynamics, [0.5, 5.0])
        alone = QUIET(build, {"rate": [1.0, 2.0]}, dynamics, [0.5, 5.0], batch_size=4)
        names = [str(name) for name in js.result_names(data["result"].values)]
        same = np.allclose(data["loss"].sel(rate=[1.0, 2.0]), alone["loss"], rtol=1e-12, atol=0)
        fine = names[0] == names[3] == "successful" and "successful" not in names[1:3]
        what = f"rates {rates} end as {', '.join(names)}; the others as they do alone"
        yield _row(f"lanes that fail, {data.attrs['dynamics']}", what, same and fine)


def _corrupted(folder: Path) -> Iterator[Row]:
    path, reference = folder / "corrupted.zarr", folder / "reference.zarr"
    faults.run(path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and "/c/" in str(file) and "loss" in str(file))
    for file in files[:3]:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    broken = len(faults.difference(path, reference))
    faults.run(path)
    repaired = faults.difference(path, reference) == []
    yield _row("one bit flipped in 3 chunks", f"{broken} files differ; found by checksum, run again, equal", repaired)


def _worker(folder: Path) -> Iterator[Row]:
    path, alone = folder / "cluster.zarr", folder / "alone.zarr"
    faults.run_slow(alone)
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    options["silence_logs"] = logging.CRITICAL
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        found: Any = client.run(os.getpid)
        pids = list(found.values())

        def kill() -> None:
            while faults.count(path) < 2:
                time.sleep(0.01)
            os.kill(pids[0], signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        faults.run_slow(path, executor=client)
        thread.join()
    equal = faults.difference(path, alone) == []
    yield _row("a worker of a dask cluster killed", "its lanes are run by another; equal", equal)


def _all_workers(folder: Path, patience: float) -> Row:
    """Both workers of a cluster, which nobody starts again."""
    path, alone = folder / "no_workers.zarr", folder / "alone.zarr"
    before = _dask.IDLE
    _dask.IDLE = patience / _dask.IDLE_LOOKS
    said, begin = "nothing is said", math.nan
    try:
        with faults.bare_workers() as (client, kill_both):

            def kill() -> None:
                nonlocal begin
                while faults.count(path) < 2:
                    time.sleep(0.01)
                begin = time.perf_counter()
                kill_both()

            thread = threading.Thread(target=kill)
            thread.start()
            try:
                faults.run_slow(path, executor=client)
            except RuntimeError as error:
                said = f"after {time.perf_counter() - begin:.0f} s: {error}"
            thread.join()
    finally:
        _dask.IDLE = before
    kept = faults.count(path)
    faults.run_slow(path)
    survived = "have been gone for" in said and kept >= 2 and faults.difference(path, alone) == []
    return _row("both workers of a dask cluster killed", f"{_last(said)}; carried on, equal", survived)


HOST = """
import sys
from pathlib import Path
import jax
index, port, path, precision = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", precision)
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=index)
from jaxsolve.sweeps import Hosts
from tests.sweeps import faults
faults.run_slow(path, executor=Hosts())
"""


def _hosts(folder: Path) -> Iterator[Row]:
    """One of two processes of `jax.distributed`, whose service ends the other one when it hears no more of it."""
    for victim in (0, 1):
        path = folder / f"host{victim}.zarr"
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        precision = str(jax.config.jax_default_matmul_precision)  # a part of what identifies a sweep
        both = [
            subprocess.Popen([sys.executable, "-c", HOST, str(index), str(port), str(path), precision], **quiet)
            for index in range(2)
        ]
        while faults.count(path) < 2 and all(process.poll() is None for process in both):
            time.sleep(0.01)
        both[victim].kill()
        begin = time.perf_counter()
        code = both[1 - victim].wait(timeout=400)
        seconds, kept = time.perf_counter() - begin, faults.count(path)
        faults.run_slow(path)
        survived = code != 0 and kept >= 2 and faults.difference(path, folder / "alone.zarr") == []
        what = f"JAX ends the other after {seconds:.0f} s; {kept} of 12 chunks kept; carried on, equal"
        yield _row(f"process {victim} of two of jax.distributed killed", what, survived)


class _Code:
    """What a checkpoint may hold that is opened carelessly: unpickling it would write a file."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def _checkpoints(folder: Path) -> Row:
    """Of other sizes, with numbers that are none, and with code in place of numbers."""
    x, y = jnp.eye(3), jnp.ones((3, 1))
    net = lambda width: js.nets.MLP(
        in_size=3,
        out_size=1,
        width_size=width,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(0),
    )
    file, ran = folder / "checkpoint.eqx", folder / "ran"
    with open(file, "wb") as opened:
        np.save(opened, np.array([_Code(ran)], dtype=object), allow_pickle=True)
    tries = {
        "another width": lambda: js.diagnose_checkpoints([net(4), net(5)], x, y, probes=2),
        "NaN": lambda: js.diagnose_checkpoints(
            [net(4), jax.tree.map(lambda leaf: leaf * jnp.nan, net(4))], x, y, probes=2
        ),
        "code": lambda: eqx.tree_deserialise_leaves(file, net(4)),
    }
    refused = dict[str, str]()
    for name, attempt in tries.items():
        try:
            attempt()
        except (ValueError, TypeError, RuntimeError) as error:
            refused[name] = type(error).__name__
    what = "; ".join(f"{name}: {kind}" for name, kind in refused.items())
    return _row("checkpoints of another network, of NaN, with code", what, len(refused) == 3 and not ran.exists())


# What strangers send, in tests.
STRANGERS = {
    "a server that lies to data fetch": "tests/data/test_fetch.py",
    "archives that are bombs": "tests/data/test_data_bombs.py",
    "stores of strangers: links, devices, FIFOs, shapes of 10^11, chunks of 8 GB": "tests/sweeps/test_store_foreign.py",
    "a system that fails to read, a store that changes hands": "tests/sweeps/test_store_owner.py",
}


def _tried(fault: str, file: str) -> Row:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", file], capture_output=True, text=True
    )
    counted = re.search(r"^(?:(\d+) failed, )?(\d+) passed", done.stdout, re.MULTILINE)
    what = f"{counted[2]} tries" if counted else "the tests could not run"
    return _row(fault, what, done.returncode == 0)


@contextlib.contextmanager
def _closed(folder: Path) -> Iterator[None]:
    """A folder in which this user may not write, whoever it is."""
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    root = os.geteuid() == 0
    folder.parent.chmod(0o755)
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


def _paths(folder: Path) -> Iterator[Row]:
    (folder / "file").write_text("mine")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("mine")
    found: list[Row] = []
    try:
        with _closed(folder / "closed"):
            # All at once: who takes a row may have to write it down, which this user may not.
            found = [*_refused("a folder that cannot be written to", folder / "closed" / "run.zarr", PermissionError)]
    except OSError as error:  # of a root that is no more than one in a container
        print(f"a folder that cannot be written to: not tried, as this user can be no other ({error.strerror})")
    yield from found
    yield from _refused("a path that is a file", folder / "file", FileExistsError)
    yield from _refused("a folder of something else", folder / "foreign", FileExistsError)


def _refused(fault: str, path: Path, kind: type[OSError]) -> Iterator[Row]:
    try:
        faults.run(path)
    except OSError as error:
        yield _row(fault, f"{type(error).__name__}: {_last(str(error))}", isinstance(error, kind))
    else:
        yield _row(fault, "nothing is said", False)
