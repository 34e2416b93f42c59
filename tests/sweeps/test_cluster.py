"""Sweeps on the workers of a dask cluster, in processes of their own, whose JAX has its default settings."""

import asyncio
import collections
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import Any

import distributed
import jax
import jax.numpy as jnp
import optax
import pytest

from jaxsolve import Descent, nets, observe, Problem, sweep
from jaxsolve.sweeps import _cluster, _on_disk, _outlet
from jaxsolve.sweeps._conditions import Conditions
from tests import cases
from tests.sweeps import faults


TS = (0.0, 0.3, 1.0)
AXES = {"rate": [0.5, 1.0, 2.0, 150.0, 3.0], "kind": ["slow", "fast"], "start": [1.0, 2.0, -1.0]}
OBSERVE = [observe.loss(), observe.outputs()]
QUIET = functools.partial(sweep, progress=False)


@pytest.fixture(scope="module")
def client():
    """Of two workers."""
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


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
    assert [file.name for file in path.rglob("*.part")] == []
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
    # A store that is whole asks nothing of them.
    before = log.read_text()
    _same(_run(_modes(log), store=path, executor=client), whole[1])
    assert log.read_text() == before


@pytest.mark.slow
def test_networks_and_keys_travel(client):
    """Networks with lambdas for activations, made of seeds; the key of a dynamics."""

    def build(seed, sigma):
        scaling = nets.Scaling.ntk(sigma=sigma)
        net = nets.MLP(3, 4, 1, 1, lambda z: jnp.sin(z), scaling=scaling, key=jax.random.key(seed))
        return Problem(net, x, y)

    x, y = cases.inputs(jax.random.key(1), 6), cases.inputs(jax.random.key(2), 6, 1)
    dynamics = Descent(optax.sgd, 0.1, batch_size=2, key=jax.random.key(3))
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
        add = _on_disk.OnDisk.add

        def stopping(sink, batch):
            if next(left, None) is None:
                raise InterruptedError
            add(sink, batch)

        patch.setattr(_on_disk.OnDisk, "add", stopping)
        with pytest.raises(InterruptedError):
            _run(_modes(), store=path)
    assert 0 < faults.count(path) < 10
    _same(_run(_modes(), store=path, executor=client), whole[1])
    assert faults.difference(path, whole[0]) == []
    _same(_run(_modes(), store=path, executor=client, retry_failed=True), whole[1])
    assert faults.difference(path, whole[0]) == []


# What goes wrong


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
def test_without_dask_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(TypeError, match=r"got int 3\. For dask: pip install 'jaxsolve\[dask\]'"):
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
    try:
        said = rf"the worker {address} has jaxsolve 9\.9\.9 instead of \d\S*: its results may differ.* Install the same"
        with pytest.raises(ValueError, match=said):
            _run(_modes(), executor=client)
        # One that comes later is found out when it begins.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_cluster, "_require_versions", lambda *args: None)
            with pytest.raises(ValueError, match=said):
                _run(_modes(), executor=client)
    finally:
        client.run(change, str(tmp_path), workers=[address])
    with pytest.raises(ValueError, match=r"it has python missing instead of 3\.\d+, jaxsolve missing"):
        Conditions.here().require_versions({}, "it")


def test_other_flags_of_xla_are_refused(client, monkeypatch):
    """By workers that have computed something; others take them over."""
    _run(_modes(), executor=client)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    with pytest.raises(ValueError, match=r"the worker \S+ runs with XLA_FLAGS='.*', the sweep was asked for with '--"):
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
    monkeypatch.setattr(_outlet, "PATIENCE", 0.0)
    with pytest.raises(FileNotFoundError, match=r"run\.zarr is not there for process \d+ on .* that all of them see"):
        _outlet.await_layout(tmp_path / "run.zarr")


def test_lanes_that_do_not_arrive(whole, tmp_path, monkeypatch):
    """Though a worker says that it has written them."""
    monkeypatch.setattr(_on_disk, "PATIENCE", 0.0)
    receive = _on_disk.OnDisk.receive

    class Forgetful:
        """A client of workers that do nothing."""

    def pretend(client, job, programs, hub, signals, tell):
        for program in programs:
            hub.expect(program)
            for lanes in hub.parts(program.group.lanes, 4):
                receive(hub, _outlet.Receipt(lanes, "there", 0, ()))
        hub.confirm(lambda: None)

    monkeypatch.setattr("jaxsolve.sweeps._sweep.run_on", pretend)
    monkeypatch.setattr("jaxsolve.sweeps._sweep.require_client", lambda executor: None)
    with pytest.raises(OSError, match=r"30 lanes that other processes wrote to .*run\.zarr are not there"):
        _run(_modes(), store=tmp_path / "run.zarr", executor=Forgetful())


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
