"""What happens to a sweep that is killed, stopped, or disturbed: run in a process of its own, which prints JSON.

`python -m tests.sweeps.faults FOLDER KILLS`, with `JAX_ENABLE_X64` as wanted. Sweeps run in forks of this process, so
that none need import JAX again. It must not start JAX's threads itself, and so computes nothing.
"""

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.progress  # noqa: F401  (these three so that no fork needs to)
import xarray  # noqa: F401
import zarr  # noqa: F401

import jaxsolve
from tests import cases
from tests.processes import ROOT
from tests.sweeps.inside import _chunks, plan_facts, read_plan


TS = (0.0, 0.3, 1.0)
CHUNKS = 24
LANES = 72
SLOW_RATE = 2e-7  # 5,000,000 steps


def modes(rate, kind, start):
    """Two modes that decay."""
    rates = jnp.stack([rate, jnp.ones(())])
    return cases.modes(jnp.stack([start * (2.0 if kind == "fast" else 1.0), jnp.ones(())]), rates)


def run(path: Path, **options: Any) -> None:
    """Batches of four lanes, chunks of three: now and then a chunk is written before it is complete."""
    _chunks.FLUSH_SECONDS = 0.02
    axes = {"rate": np.linspace(0.5, 2.0, 12), "kind": ["fast"], "start": np.linspace(1.0, 3.0, 6)}
    observe = [jaxsolve.observe.loss(), jaxsolve.observe.outputs()]
    jaxsolve.sweep(
        modes, axes, cases.ModesDecay(), TS, observe=observe, store=path, batch_size=4, progress=False, **options
    )


def run_slow(path: Path | None, **options: Any) -> Any:
    """Twelve chunks that take tenths of a second each."""
    build = lambda rate: cases.modes(jnp.ones(2), rate * jnp.ones(2))
    dynamics = jaxsolve.Descent(optax.sgd(SLOW_RATE))
    axes = {"rate": np.linspace(0.5, 1.0, 12)}
    return jaxsolve.sweep(build, axes, dynamics, [1.0], store=path, batch_size=1, progress=False, **options)


def run_long(path: Path) -> None:
    """A batch that takes minutes, after one that is invalid and so ends at once."""
    dynamics = jaxsolve.Descent(optax.sgd(1e-9), max_steps=10**9)
    build = lambda power: cases.modes(jnp.sqrt(power) * jnp.ones(50), jnp.ones(50))
    jaxsolve.sweep(build, {"power": np.array([-1.0, 2.0])}, dynamics, [1.0], store=path, batch_size=1, progress=False)


def facts() -> list[dict[str, Any]]:
    """What identifies plans of several kinds of dynamics, whose programs hold functions, rules and sets."""

    def problem(sigma, activation):
        scaling = jaxsolve.nets.Scaling.ntk(sigma=sigma)
        net = jaxsolve.nets.MLP(
            in_size=2, out_size=1, width_size=3, depth=1, activation=activation, scaling=scaling, key=jax.random.key(0)
        )
        scales = {"a": 1.0, "b": 2.0}
        return jaxsolve.Problem(net, jnp.eye(2), scales["a"] * jnp.ones((2, 1)))

    axes = {"sigma": [0.5, 1.0], "activation": ["tanh", "relu"]}
    observe = [jaxsolve.observe.loss(), jaxsolve.observe.kernel_spectrum(2)]
    several = (
        jaxsolve.GradientFlow(diffrax.Tsit5()),
        jaxsolve.GradientFlow(diffrax.Kvaerno5(), until=jaxsolve.until.loss_below(0.1)),
        jaxsolve.Descent(optax.adam(0.1), rate=0.1),
        jaxsolve.FrozenKernel(),
    )
    return [plan_facts(read_plan(problem, axes, each, TS, observe=observe)) for each in several]


class Child:
    """A fork of this process that does one thing."""

    def __init__(self, folder: Path, job: Callable[[], None]):
        self.begin = time.perf_counter()
        self._said = folder / f"said-{time.monotonic_ns()}"
        self.pid = os.fork()
        if self.pid == 0:
            self._work(job)

    def _work(self, job: Callable[[], None]) -> None:
        code = 1
        try:
            with open(self._said, "w") as said, contextlib.redirect_stderr(said):
                try:
                    job()
                    code = 0
                except KeyboardInterrupt as error:
                    said.write(f"KeyboardInterrupt: {error}")
                    code = 3
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(code)

    def end(self) -> tuple[int, str, float]:
        """Waits for the end; how it ended, what was written to stderr, and how long it took."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), self._said.read_text(), time.perf_counter() - self.begin

    def ended(self) -> bool:
        """Whether it has ended, without taking notice."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait_for(self, path: Path, chunks: int) -> None:
        """Waits until a store has so many chunks."""
        while not self.ended() and count(path) < chunks:
            time.sleep(0.0005)

    def wait_until_said(self, text: str, patience: float = 30.0) -> None:
        """Waits until something was written to stderr, if it is in so many seconds."""
        end = time.perf_counter() + patience
        while not self.ended() and text not in self._said.read_text() and time.perf_counter() < end:
            time.sleep(0.01)


def count(path: Path) -> int:
    """Chunks with a record."""
    records = (path / "result" / "c").rglob("*")
    return sum(file.is_file() and file.suffix != ".partial" for file in records)


def ok(folder: Path, job: Callable[[], None]) -> tuple[str, float]:
    """Does something in a fork, where it must not fail."""
    code, said, seconds = Child(folder, job).end()
    assert code == 0, said
    return said, seconds


@contextlib.contextmanager
def bare_workers() -> Iterator[tuple[Any, Callable[[], None]]]:
    """A client of two workers that nobody starts again, and a function that kills both."""
    import distributed

    empty = distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL)
    with empty, distributed.Client(empty) as client:
        address: Any = client.scheduler_info()
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address["address"], "--no-nanny"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        workers = [subprocess.Popen([*command, "--nthreads", "1", "--no-dashboard"], **quiet) for _ in range(2)]

        def kill() -> None:
            for worker in workers:
                worker.kill()
                worker.wait()

        try:
            client.wait_for_workers(2, timeout=60)
            yield client, kill
        finally:
            kill()


def difference(one: Path, other: Path) -> list[str]:
    """The files of the chunks and coordinates in which two stores differ, but for wall times."""
    files = [
        {f.relative_to(root).as_posix(): f.read_bytes() for f in root.rglob("*") if f.is_file() and "/c/" in str(f)}
        for root in (one, other)
    ]
    return sorted(
        name
        for name in files[0].keys() | files[1].keys()
        if not name.startswith("wall/") and files[0].get(name) != files[1].get(name)
    )


def look(path: Path) -> str:
    """What xarray says of a store in a new process that does not know jaxsolve, where warnings are errors."""
    code = """
    import sys, xarray, numpy as np
    for consolidated in (None, False):
        data = xarray.open_zarr(sys.argv[1], chunks=None, consolidated=consolidated).load()
    run = data.result.values >= 0
    assert run.any() and not run.all(), run.sum()
    assert np.all(data.result.values[~run] == -1)
    # Of one chunk of three lanes: it may have been held up while that was being written, of which result comes last.
    assert np.sum(data.steps.values[~run] != -1) <= 3
    assert np.all(np.isfinite(data.loss.values[run])) and np.all(np.isfinite(data.outputs.values[run]))
    assert data.outputs.dims == ("rate", "kind", "start", "t", "sample", "output")
    assert data.loss.attrs["units"] == "loss" and data.t.attrs["units"] == "gradient-flow time"
    assert list(data.kind.values) == ["fast"] and "plan_hash" in data.attrs
    assert "jaxsolve" not in sys.modules
    print("seen", int(run.sum()))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


def disturbed(folder: Path, path: Path) -> dict[str, Any]:
    """A reader and a second writer while a sweep runs, which is held up meanwhile and then asked to stop; twice."""
    child = Child(folder, lambda: run(path))
    child.wait_for(path, 4)
    os.kill(child.pid, signal.SIGSTOP)
    seen = look(path)
    _, second, seconds = Child(folder, lambda: run(path)).end()
    os.kill(child.pid, signal.SIGINT)
    os.kill(child.pid, signal.SIGCONT)
    found: dict[str, Any] = {"pid": child.pid, "seen": seen, "second": second, "seconds": seconds}
    found["SIGINT"] = [*child.end()[:2], count(path)]
    child = Child(folder, lambda: run(path))
    child.wait_for(path, count(path) + 4)
    os.kill(child.pid, signal.SIGTERM)
    found["SIGTERM"] = [*child.end()[:2], count(path)]
    return found


def killed(folder: Path, path: Path, seconds: float, kills: int) -> list[int]:
    """SIGKILL at random moments: of time from the start, or some milliseconds after a chunk was written."""
    moments = random.Random(20)
    chunks = []
    for turn in range(kills):
        if count(path) == CHUNKS:
            shutil.rmtree(path)
        child = Child(folder, lambda: run(path))
        if turn % 3 == 2:
            time.sleep(moments.uniform(0, seconds))
        else:
            child.wait_for(path, count(path) + moments.randint(1, CHUNKS // 4))
            time.sleep(moments.uniform(0, 0.01))
        os.kill(child.pid, signal.SIGKILL)
        code, said, _ = child.end()
        assert code in (-signal.SIGKILL, 0), said
        chunks.append(count(path))
    return chunks


def taken_away(folder: Path, path: Path, act: Callable[[], Any]) -> tuple[int, str]:
    """Does something to a store of which some chunks have been written; how its sweep ends, and what it says."""
    child = Child(folder, lambda: run(path))
    child.wait_for(path, 4)
    os.kill(child.pid, signal.SIGSTOP)
    act()
    os.kill(child.pid, signal.SIGCONT)
    return child.end()[:2]


def replaced(folder: Path, reference: Path) -> dict[str, Any]:
    """A store is removed while it is filled, and another sweep begins in its place."""
    path = folder / "replaced.zarr"

    def act() -> None:
        shutil.rmtree(path)
        ok(folder, lambda: run(path))

    code, said = taken_away(folder, path, act)
    return {"code": code, "said": said, "difference": difference(path, reference)}


def moved(folder: Path, reference: Path) -> dict[str, Any]:
    """A store is moved while it is filled, and carried on where it is then."""
    path, elsewhere = folder / "moved.zarr", folder / "elsewhere.zarr"
    code, said = taken_away(folder, path, lambda: path.rename(elsewhere))
    left, ran = path.exists(), count(elsewhere)
    ok(folder, lambda: run(elsewhere))
    return {"code": code, "said": said, "left": left, "ran": ran, "difference": difference(elsewhere, reference)}


def copied(folder: Path, reference: Path) -> dict[str, Any]:
    """A store is copied while it is filled, one variable after another; lanes that a reader takes for whole are."""
    path, copy = folder / "copied.zarr", folder / "copy.zarr"
    child = Child(folder, lambda: run(path))
    child.wait_for(path, 4)
    first = [path / name for name in ("loss", "outputs", "steps", "t_end", "wall", "result")]
    copy.mkdir()
    for item in (*first, *sorted(set(path.iterdir()) - set(first), key=lambda item: item.name == "_jaxsolve")):
        if item.is_dir():
            shutil.copytree(item, copy / item.name, ignore=shutil.ignore_patterns("*.partial"))
        else:
            shutil.copy(item, copy)
        child.wait_for(path, count(path) + 2)
    child.end()

    def read() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = jaxsolve.sweeps.load(copy)
        run_lanes = data["result"].values >= 0
        whole = np.isfinite(data["loss"].values).all(-1) & np.isfinite(data["outputs"].values).all((-3, -2, -1))
        sys.stderr.write(json.dumps([int(run_lanes.sum()), int((run_lanes & ~whole).sum())]))

    lanes, hollow = json.loads(ok(folder, read)[0])
    ok(folder, lambda: run(copy))
    return {"lanes": lanes, "hollow": hollow, "difference": difference(copy, reference)}


def asked_twice(folder: Path) -> dict[str, Any]:
    """Two signals, of different kinds, while a long batch runs."""
    path = folder / "twice.zarr"
    child = Child(folder, lambda: run_long(path))
    child.wait_for(path, 1)
    time.sleep(0.2)
    os.kill(child.pid, signal.SIGTERM)
    child.wait_until_said("again to stop at once")
    time.sleep(1.1)  # within a second they would count as one
    alive, begin = not child.ended(), time.perf_counter()
    os.kill(child.pid, signal.SIGINT)
    code, said, _ = child.end()
    return {"alive": alive, "code": code, "said": said, "seconds": time.perf_counter() - begin}


def full_disk(folder: Path, reference: Path) -> dict[str, Any] | None:
    """A file system of 600 KB, and then one with space enough; None where it may not be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mount = lambda *options: subprocess.run(["mount", *options, str(disk)], capture_output=True).returncode == 0
    if not mount("-t", "tmpfs", "-o", "size=600k", "tmpfs"):
        return None
    path = disk / "run.zarr"

    def job() -> None:
        try:
            run(path)
        except OSError as error:
            sys.stderr.write(json.dumps([type(error).__name__, str(error), count(path)]))
        assert mount("-o", "remount,size=20m")
        run(path)

    error, text, chunks = json.loads(ok(folder, job)[0])
    return {"error": error, "said": text, "chunks": chunks, "difference": difference(path, reference)}


def main(folder: Path, kills: int) -> dict[str, Any]:
    """All faults, one after another, on one store; in the end it must be what an undisturbed sweep makes."""
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background without
    reference, path = folder / "reference.zarr", folder / "run.zarr"
    _, seconds = ok(folder, lambda: run(reference))
    found: dict[str, Any] = {"disturbed": disturbed(folder, path)}
    found["killed"] = killed(folder, path, seconds, kills)
    found["said"], _ = ok(folder, lambda: run(path))
    found["difference"] = difference(path, reference)
    found["parts"] = [file.name for file in path.rglob("*.partial")]
    found["facts"] = json.loads(ok(folder, lambda: print(json.dumps(facts()), file=sys.stderr))[0])  # noqa: T201
    for act in (replaced, moved, copied):
        found[act.__name__] = act(folder, reference)
    return found | {"twice": asked_twice(folder), "full": full_disk(folder, reference)}


def launch(folder: Path, kills: int) -> dict[str, Any]:
    """What `main` finds, in a process of its own with the precision of this one."""
    own = ["unshare", "--map-root-user", "--mount"]  # a view of the file systems of its own, to mount a small one
    may = shutil.which("unshare") and not subprocess.run([*own, "true"], capture_output=True).returncode
    done = subprocess.run(
        [*(own if may else ()), sys.executable, "-m", "tests.sweeps.faults", str(folder), str(kills)],
        cwd=ROOT,
        env=os.environ | {"JAX_ENABLE_X64": str(int(cases.X64)), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=170 if kills < 10 else 600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
