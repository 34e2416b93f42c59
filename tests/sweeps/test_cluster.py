"""Sweeps on the workers of a dask cluster, in processes of their own, whose JAX has its default settings."""

import asyncio
import collections
import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import cloudpickle
import distributed
import jax
import jax.numpy as jnp
import optax
import pytest

from jaxsolve import Descent, nets, observe, Problem, sweep
from tests import cases
from tests.sweeps import faults
from tests.sweeps.inside import _dask, _layout, _plan, _zarr, Conditions, OutOfMemory


TS = (0.0, 0.3, 1.0)
AXES = {"rate": [0.5, 1.0, 2.0, 150.0, 3.0], "kind": ["slow", "fast"], "start": [1.0, 2.0, -1.0]}
OBSERVE = [observe.loss(), observe.outputs()]
QUIET = functools.partial(sweep, progress=False)


PATIENCE = 300  # seconds of a test, longer than a sweep waits for an idle cluster


@contextlib.contextmanager
def _in_time(what: str, tell=lambda: ""):
    """Turns a hang into an error that says what was waited for. It counts seconds in which this process runs."""
    done, main = threading.Event(), threading.main_thread().ident

    def late(number, frame):
        stack = "".join(traceback.format_stack(frame)[-12:])
        raise TimeoutError(f"{what} has taken {PATIENCE} s; it waits in\n{stack}{tell()}")

    def watch():
        if not any(done.wait(1.0) for _ in range(PATIENCE)):
            assert main is not None
            signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, late)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def client():
    """Of two workers."""
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with contextlib.ExitStack() as stack:
        with _in_time("starting a cluster"):
            client = distributed.Client(stack.enter_context(distributed.LocalCluster(**options)))
        yield client
        with _in_time("closing a cluster"):
            client.close()
            stack.close()


@pytest.fixture(autouse=True)
def limit(request):
    """Of each test, by which it is told what the cluster was doing."""

    def tell():
        if "client" not in request.fixturenames:
            return ""
        scheduler = request.getfixturevalue("client").cluster.scheduler
        tasks = [f"{key}: {task.state} on {task.processing_on}" for key, task in scheduler.tasks.items()]
        return "\n".join([f"workers: {list(scheduler.workers.values())}", *tasks])

    with _in_time(request.node.name, tell):
        yield


def _modes(log=None):
    """Travels by value, as all functions do that are made by others. It notes where and for what it is called."""

    def build(rate, kind, start):
        if log is not None:
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {kind}\n")
        rates = jnp.stack([jnp.asarray(rate), jnp.ones(())])
        return cases.modes(jnp.stack([start * (2.0 if kind == "fast" else 1.0), jnp.ones(())]), rates)

    return build


def _run(problem_fn, axes: Any = AXES, dynamics: Any = None, **options):
    options = {"observe": OBSERVE, "batch_size": 4} | options
    return QUIET(problem_fn, axes, cases.ModesDecay() if dynamics is None else dynamics, TS, **options)


def _same(a, b):
    """Equal to the last bit, but for the wall time."""
    assert set(a.variables) == set(b.variables)
    for name in set(a.variables) - {"wall"}:
        assert a[name].dims == b[name].dims
        assert a[name].dtype == b[name].dtype
        if a[name].dtype.kind != "T":
            assert a[name].values.tobytes() == b[name].values.tobytes(), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that one process filled, and its dataset."""
    path = tmp_path_factory.mktemp("whole") / "run.zarr"
    return path, _run(_modes(), store=path)


# What comes out


def test_workers_send_back_the_bits_of_one_process(client, whole):
    """In double precision, which is not theirs; lanes that fail stop no others."""
    data = _run(_modes(), executor=client)
    _same(data, whole[1])
    assert (data["result"] >= 3).sum() == 6


def test_workers_write_the_store_of_one_process(client, whole, tmp_path, capsys):
    path, log = tmp_path / "run.zarr", tmp_path / "log"
    data = _run(_modes(log), store=path, executor=client, progress=True)
    _same(data, whole[1])
    assert faults.difference(path, whole[0]) == []
    assert [file.name for file in path.rglob("*.partial")] == []
    assert re.search(r"30/30 runs in .*, 6 failed", capsys.readouterr().err)
    run = json.loads((path / "_jaxsolve" / "manifest.json").read_text())["runs"][-1]
    assert run["workers"] == {f"{socket.gethostname()}, {jax.devices()[0].device_kind}": 30}
    # Each worker traces what it runs, once.
    calls = collections.Counter(log.read_text().splitlines())
    workers = set(client.run(os.getpid).values())
    assert {int(line.split()[0]) for line in calls} == workers | {os.getpid()}
    for pid in workers:
        for kind in ("slow", "fast"):
            assert calls[f"{pid} {kind}"] <= calls[f"{os.getpid()} {kind}"]
    # A store that is whole asks nothing of them: this process alone traces, to know that the sweep is the same.
    theirs = lambda: [line for line in log.read_text().splitlines() if int(line.split()[0]) in workers]
    before = theirs()
    _same(_run(_modes(log), store=path, executor=client), whole[1])
    assert theirs() == before


def test_lanes_draw_the_same_wherever_they_run(client):
    """Their keys depend on their places in the grid alone."""
    dynamics = Descent(optax.sgd(0.1), batch_size=1, key=jax.random.key(3))
    axes = {"rate": [0.5, 2.0], "kind": ["slow"], "start": [1.0, 1.0, 1.0]}
    data = _run(_modes(), axes, dynamics, batch_size=1, executor=client)
    _same(data, _run(_modes(), axes, dynamics, batch_size=1))
    drawn = data["outputs"].values[:, :, :, 1]  # after a step and a half of the two samples
    assert not (drawn[:, :, 0] == drawn[:, :, 1]).all()


@pytest.mark.slow
def test_networks_and_keys_travel(client):
    """Networks with lambdas for activations, made of seeds; the key of a dynamics."""

    def build(seed, sigma):
        scaling = nets.Scaling.ntk(sigma=sigma)
        net = nets.MLP(
            in_size=3,
            out_size=1,
            width_size=4,
            depth=1,
            activation=lambda z: jnp.sin(z),
            scaling=scaling,
            key=jax.random.key(seed),
        )
        return Problem(net, x, y)

    x, y = cases.inputs(jax.random.key(1), 6), cases.inputs(jax.random.key(2), 6, 1)
    dynamics = Descent(optax.sgd(0.1), batch_size=2, key=jax.random.key(3))
    axes = {"seed": range(3), "sigma": [0.5, 1.0]}
    _same(_run(build, axes, dynamics, executor=client), _run(build, axes, dynamics))


def test_the_other_precision_travels_too(client):
    with jax.enable_x64(not cases.X64):
        data = _run(_modes(), {**AXES, "kind": ["slow"]}, executor=client)
        assert data["loss"].dtype == ("float32" if cases.X64 else "float64")
        _same(data, _run(_modes(), {**AXES, "kind": ["slow"]}))


def test_a_worker_goes_on_where_this_process_stopped(client, whole, tmp_path):
    """Also in the middle of a chunk."""
    path = tmp_path / "run.zarr"
    with pytest.MonkeyPatch.context() as patch:
        left = iter(range(2))
        write = _zarr.HeldStore.write

        def stopping(store, batch):
            if next(left, None) is None:
                raise InterruptedError
            write(store, batch)

        patch.setattr(_zarr.HeldStore, "write", stopping)
        with pytest.raises(InterruptedError):
            _run(_modes(), store=path)
    assert 0 < faults.count(path) < 10
    _same(_run(_modes(), store=path, executor=client), whole[1])
    assert faults.difference(path, whole[0]) == []
    _same(_run(_modes(), store=path, executor=client, retry_failed=True), whole[1])
    assert faults.difference(path, whole[0]) == []


# Where it ran


@contextlib.contextmanager
def _changed(client, change):
    """Workers that something was done to, which `change(True)` does and `change(False)` undoes."""
    client.run(change, True)
    try:
        yield
    finally:
        client.run(change, False)


def test_a_dataset_names_the_devices_of_the_workers(client, tmp_path):
    """Here workers that say that they have others than this process."""

    def change(on):
        from tests.sweeps.inside import TracedGroup

        if on:
            TracedGroup.true = TracedGroup.origin  # pyright: ignore[reportAttributeAccessIssue]
            TracedGroup.origin = property(lambda self: self.true._replace(device="TPU v9"))  # pyright: ignore
        else:
            TracedGroup.origin = TracedGroup.true  # pyright: ignore[reportAttributeAccessIssue]

    path = tmp_path / "run.zarr"
    with _changed(client, change):
        data = _run(_modes(), store=path, executor=client)
        assert _run(_modes(), {**AXES, "kind": ["slow"]}, executor=client).attrs["device"] == "TPU v9"
    assert data.attrs["device"] == "TPU v9"
    run = json.loads((path / "_jaxsolve" / "manifest.json").read_text())["runs"][-1]
    assert run["device"] == "TPU v9"
    assert run["workers"] == {f"{socket.gethostname()}, TPU v9": 30}
    assert "backend" not in run
    # It is known when the store is carried on, and stays in the list.
    with pytest.warns(UserWarning, match=r'device: "TPU v9" before, "\S+" now'):
        data = _run(_modes(), store=path, retry_failed=True)
    assert data.attrs["device"] == f"TPU v9; {jax.devices()[0].device_kind}"
    # What devices workers have is not known when they begin: nothing is warned of.
    _run(_modes(), store=path, executor=client, retry_failed=True)


# What goes wrong


def test_a_worker_out_of_memory_goes_on_with_smaller_batches(client, tmp_path, caplog):
    """As a process without a cluster does."""

    def starved(most):
        def change(on):
            import jax

            from tests.sweeps.inside import Fused

            def limited(self, cells, waiting, hand_over):
                if self._rows > most:
                    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8000000000 bytes.")
                Fused.full(self, cells, waiting, hand_over)  # pyright: ignore[reportAttributeAccessIssue]

            if on:
                Fused.full, Fused.run = Fused.run, limited  # pyright: ignore[reportAttributeAccessIssue]
            else:
                Fused.run = Fused.full  # pyright: ignore[reportAttributeAccessIssue]

        return _changed(client, change)

    path = tmp_path / "run.zarr"
    small = _run(_modes(), batch_size=2)
    with starved(3), caplog.at_level(logging.WARNING, "jaxsolve"):
        data = _run(_modes(), store=path, batch_size=8, executor=client)
        _same(_run(_modes(), batch_size=8, executor=client), small)
    _same(data, small)
    where = f"{socket.gethostname()}, {jax.devices()[0].device_kind}"
    said = [record.getMessage() for record in caplog.records if record.name == "jaxsolve"]
    assert said == 4 * [f"out of memory on {where} with batches of 8 lanes: continuing with 2"]
    assert json.loads((path / "_jaxsolve" / "manifest.json").read_text())["batch_size"] == {
        "asked": 8,
        "used": {"0": 2, "3": 2},
    }
    with (
        starved(0),
        pytest.raises(OutOfMemory, match="out of memory with batches of 1 lanes; give fewer samples, time"),
    ):
        _run(_modes(), batch_size=2, executor=client)


def test_a_cluster_that_does_nothing_is_given_up(client, monkeypatch):
    """Here since tasks ask for what no worker has."""
    submit = distributed.Client.submit
    asking = lambda self, *args, **options: submit(self, *args, resources={"nothing": 1}, **options)
    monkeypatch.setattr(distributed.Client, "submit", asking)
    monkeypatch.setattr(_dask, "IDLE", 0.7)
    said = (
        r"\d+ batches are left, 0 of them assigned to workers, but none of the 2 workers has run anything for 2 s\. See"
    )
    with pytest.raises(RuntimeError, match=said):
        _run(_modes(), executor=client)


@pytest.mark.slow
def test_a_cluster_without_workers_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(_dask, "IDLE", 0.5)
    with distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client, caplog.at_level(logging.WARNING, "jaxsolve"):
            scale = cluster.scale  # pyright: ignore[reportAttributeAccessIssue]
            timer = threading.Timer(3.0, scale, (1,))
            timer.start()
            data = _run(_modes(), executor=client)
    assert (data["result"] >= 3).sum() == 6
    said = [record.getMessage() for record in caplog.records if record.name == "jaxsolve"]
    assert said[0] == "the cluster has no workers; the sweep waits until there are some"
    assert re.fullmatch(r"the cluster has no workers; \d+ batches wait until there are some", said[1])


@pytest.mark.slow
def test_a_cluster_that_loses_all_workers_is_given_up(monkeypatch, caplog, tmp_path):
    """Killed, with nobody to start them again: the time is told before it is over, and what has run is kept."""
    monkeypatch.setattr(_dask, "IDLE", 1.0)
    path = tmp_path / "run.zarr"
    with faults.bare_workers() as (client, kill):
        thread = _once(path, 2, kill)
        with caplog.at_level(logging.WARNING, "jaxsolve"):
            with pytest.raises(RuntimeError, match=r"have been gone for 3 s, with \d+ batches left: .* is kept: call"):
                faults.run_slow(path, executor=client)
        thread.join()
    said = [record.getMessage() for record in caplog.records if "all workers" in record.getMessage()]
    assert [line.rpartition(", ")[2] for line in said] == ["for 2 s more", "for 1 s more"]
    ran = faults.count(path)
    assert 2 <= ran < 12
    alone = tmp_path / "alone.zarr"
    faults.run_slow(alone)
    faults.run_slow(path)
    assert faults.difference(path, alone) == []


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    path = tmp_path_factory.mktemp("slow") / "run.zarr"
    return path, faults.run_slow(path)


def _once(path, chunks, act):
    """Does something when a store has so many chunks."""

    def wait():
        while faults.count(path) < chunks:
            time.sleep(0.005)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_the_lanes_of_a_lost_worker_are_run_by_another(client, slow, tmp_path):
    path = tmp_path / "run.zarr"
    pids = list(client.run(os.getpid).values())
    thread = _once(path, 2, lambda: os.kill(pids[0], signal.SIGKILL))
    data = faults.run_slow(path, executor=client)
    thread.join()
    _same(data, slow[1])
    assert faults.difference(path, slow[0]) == []
    client.wait_for_workers(2, timeout=60)
    assert pids[0] not in client.run(os.getpid).values()


def test_ctrl_c_waits_for_what_runs(client, slow, tmp_path):
    path = tmp_path / "run.zarr"
    thread = _once(path, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=r"stopped by SIGINT: \d+ of 12 lanes are in the store; call") as error:
        faults.run_slow(path, executor=client)
    thread.join()
    found = re.search(r"SIGINT: (\d+)", str(error.value))
    assert found
    assert 2 <= int(found[1]) == faults.count(path) < 12
    assert not any(client.call_stack().values())
    time.sleep(0.3)
    assert faults.count(path) == int(found[1])  # nobody goes on
    _same(faults.run_slow(path, executor=client), slow[1])


def test_ctrl_c_without_a_store(client):
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as error:
        faults.run_slow(None, executor=client)
    assert "lanes" not in str(error.value)


@pytest.mark.usefixtures("as_users")
def test_the_executor_is_a_client(client):
    accepted = r"executor must be a dask\.distributed\.Client, or sweeps\.Hosts\(\) for the processes of jax\.distribut"
    with pytest.raises(TypeError, match=f"{accepted}ed, got int 3"):
        _run(_modes(), executor=3)
    with pytest.raises(TypeError, match=accepted):
        _run(_modes(), executor=client.cluster)
    with pytest.raises(ValueError, match="devices= are those of this process; the workers of a cluster run on all"):
        _run(_modes(), executor=client, devices=jax.devices())

    async def wrong():
        async with distributed.Client(client.scheduler.address, asynchronous=True) as other:
            with pytest.raises(ValueError, match="asynchronous client, but sweep waits for its results"):
                _run(_modes(), executor=other)

    asyncio.run(wrong())


@pytest.mark.usefixtures("as_users")
def test_without_dask_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(TypeError, match=r"got int 3\. For dask: pip install distributed"):
        _run(_modes(), executor=3)


def test_workers_of_other_versions_are_refused(client, tmp_path):
    """Here one that finds another version's metadata first."""
    info = tmp_path / "jaxsolve-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxsolve\nVersion: 9.9.9\n")
    address = next(iter(client.scheduler_info()["workers"]))

    def change(folder):
        import sys

        from distributed.versions import _version_cached

        if folder in sys.path:
            sys.path.remove(folder)
        else:
            sys.path.insert(0, folder)
        _version_cached.cache_clear()

    client.run(change, str(tmp_path), workers=[address])
    changed = [address]
    try:
        said = rf"the worker {address} has jaxsolve 9\.9\.9 instead of \d\S*: its results may differ.* Install the same"
        with pytest.raises(ValueError, match=said):
            _run(_modes(), executor=client)
        # One that comes later is found out when it begins: here all, as one alone might be given nothing to do.
        others = [other for other in client.scheduler_info()["workers"] if other != address]
        client.run(change, str(tmp_path), workers=others)
        changed += others
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_dask, "_require_versions", lambda *args: None)
            with pytest.raises(ValueError, match=said.replace(address, r"\S+")):
                _run(_modes(), executor=client)
    finally:
        client.run(change, str(tmp_path), workers=changed)
    with pytest.raises(ValueError, match=r"it has python missing instead of 3\.\d+, jaxsolve missing"):
        Conditions.here().require_versions({}, "it")


def test_other_flags_of_xla_are_refused(client, monkeypatch):
    """By workers that have computed something; others take them over."""
    _run(_modes(), executor=client)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    with pytest.raises(ValueError, match=r"the worker \S+ runs with XLA_FLAGS='.*', but this sweep needs '--"):
        _run(_modes(), executor=client)
    wanted = Conditions.here()
    monkeypatch.setenv("XLA_FLAGS", "")
    wanted.adopt_flags("it", fresh=True)
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    wanted.adopt_flags("it", fresh=False)


def test_modules_that_workers_lack_are_named(client, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        "from tests import cases\nimport jax.numpy as jnp\n"
        "def build(rate):\n    return cases.modes(jnp.ones(2), rate * jnp.ones(2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # pyright: ignore[reportMissingImports]

    with pytest.raises(ModuleNotFoundError, match=r"has no module 'only_here'.*client\.upload_file\('only_here\.py'\)"):
        _run(only_here.build, {"rate": [1.0, 2.0]}, executor=client)


def test_a_store_that_the_workers_do_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(_layout, "PATIENCE", 0.0)
    with pytest.raises(
        FileNotFoundError, match=r"run\.zarr does not exist for this process: .* that all of them can access"
    ):
        _layout.await_layout(tmp_path / "run.zarr")


def test_lanes_that_do_not_arrive(client, tmp_path, monkeypatch):
    """Though a worker says that it has written them: here to another disk."""

    def change(on):
        from tests.sweeps.inside import JoinedStore

        if on:
            JoinedStore.true = JoinedStore.write  # pyright: ignore[reportAttributeAccessIssue]
            JoinedStore.write = lambda self, batch: None
        else:
            JoinedStore.write = JoinedStore.true  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(_layout, "PATIENCE", 0.0)
    with _changed(client, change), pytest.raises(OSError, match=r"30 lanes that other processes wrote to .*run\.zarr"):
        _run(_modes(), store=tmp_path / "run.zarr", executor=client)


@pytest.mark.slow
def test_threads_of_a_worker_share_what_they_compile(monkeypatch):
    """Both begin at the same time, and each combination is traced once: here by the only worker, in this process."""
    traced, trace = collections.Counter(), _plan.Plan.trace
    together = threading.Barrier(2)

    def noting(plan, group, devices=None, size=None):
        if threading.current_thread() is not threading.main_thread():
            traced[group.name] += 1
        return trace(plan, group, devices, size)

    def loading(content, loads=cloudpickle.loads):
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(2.0)
        return loads(content)

    monkeypatch.setattr(_plan.Plan, "trace", noting)
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        client.submit(sum, [1, 2]).result()
        with monkeypatch.context() as patch:
            patch.setattr(cloudpickle, "loads", loading)
            data = _run(_modes(), {**AXES, "kind": ["slow"]}, executor=client)
    _same(data, _run(_modes(), {**AXES, "kind": ["slow"]}))
    assert traced == {"0": 1}


@pytest.mark.slow
def test_signals_are_heeded_while_results_are_on_their_way(client, tmp_path, monkeypatch):
    """Here they come when the sweep has ended."""
    path, ended, result = tmp_path / "run.zarr", threading.Event(), distributed.Future._result

    async def late(future, *args, **options):
        while not ended.is_set():
            await asyncio.sleep(0.05)
        return await result(future, *args, **options)

    monkeypatch.setattr(distributed.Future, "_result", late)
    thread = _once(path, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
            faults.run_slow(path, executor=client)
    finally:
        ended.set()
    thread.join()


@pytest.mark.slow
def test_a_cluster_that_goes_away(tmp_path):
    """Its worker is a thread of this process, which nobody starts again."""
    path = tmp_path / "run.zarr"
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client:
            thread = _once(path, 2, lambda: client.restart(wait_for_workers=False))
            with pytest.raises(RuntimeError, match="the cluster was closed or restarted before the sweep had"):
                faults.run_slow(path, executor=client)
            thread.join()
    assert 2 <= faults.count(path) < 12
