"""Sweeps on the workers of a dask cluster: all that dask does here."""

import concurrent.futures
import contextlib
import functools
import logging
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .._checks import describe
from .._problem import Problem
from ._axes import groups
from ._conditions import Conditions, short
from ._execute import Program, trace_group
from ._fill import AGAIN
from ._fit import Fitting
from ._frame import Frame
from ._interrupt import Deferred
from ._layout import name_of
from ._manifest import LIBRARIES
from ._origin import Origin
from ._outlet import AbstractOutlet, Receipt
from ._sink import AbstractHub


if TYPE_CHECKING:
    import distributed


log = logging.getLogger("jaxsolve")

LOOK = 0.1  # seconds between two looks at signals, or at what workers run
REFILLS = 4  # batches of a task, where lanes that have finished make room for others
ANSWER = 60.0  # seconds within which the scheduler says what workers run
RESULT = 300.0  # seconds within which a result arrives that a worker has
IDLE = 60.0  # seconds without news after which it is looked at whether the workers do anything
IDLE_LOOKS = 3  # looks in a row at an idle cluster after which it is given up


class Job(NamedTuple):
    """What all tasks of a sweep have in common."""

    problem_fn: Callable[..., Problem]
    frame: Frame
    outlet: AbstractOutlet


def require_client(executor: Any) -> None:
    """Raises TypeError or ValueError for what cannot run a sweep."""
    try:
        from distributed import Client

        missing = ""
    except ImportError:
        Client, missing = (), ". For dask: pip install 'jaxsolve[dask]'"
    if not isinstance(executor, Client):
        raise TypeError(
            "executor must be a dask.distributed.Client, or sweeps.Hosts() for the processes of jax.distributed, got "
            f"{describe(executor)}{missing}"
        )
    if executor.asynchronous:
        raise ValueError("executor is an asynchronous client, but sweep waits for its results; give a Client(...)")


def run_on(
    client: "distributed.Client",
    job: Job,
    programs: Iterable[Program],
    hub: AbstractHub,
    signals: Deferred,
    tell: Callable[[int, int], None],
) -> None:
    """Runs the lanes that a hub misses on the workers of a cluster.

    Arguments:
        client: of the cluster.
        job: what to run.
        programs: of the groups, traced here to know their shapes and batches. Workers trace theirs themselves.
        hub: for the lanes.
        signals: heeded between tasks: those that run are waited for, the others are dropped.
        tell: called with how many lanes have run, and how many of them failed.

    Raises:
        ValueError: a worker has other versions of the libraries, or XLA runs there with other flags.
        RuntimeError: a batch ended several workers, the cluster went away, or its workers do nothing.
    """
    conditions = Conditions.here()
    sizes: dict[str, int] = {}  # lanes per batch, by group
    _require_versions(client, conditions)
    with _Tasks(client, _packed(job, conditions)) as tasks:

        def heed() -> None:
            if signals.asked is not None:
                signals.tell()
                tasks.stop()
                hub.confirm(lambda: None)
                signals.stop_here(hub)

        def take(timeout: float) -> None:
            for receipt in tasks.ended(timeout):
                _tell_size(receipt.origin, sizes)
                hub.receive(receipt)
                tell(len(receipt.lanes), receipt.failed)

        for program in programs:
            heed()
            hub.expect(program)
            lanes, sizes[name_of(program.group)] = program.group.lanes, program.size
            size = program.size * (REFILLS if program.lowered.refills else 1)
            for part in hub.parts(lanes[hub.missing[lanes]], size):
                tasks.begin(int(lanes[0]), program.size, part)
            take(0.0)
        while tasks.left:
            heed()
            take(LOOK)
            tasks.require_work()
        hub.confirm(heed)


def _tell_size(origin: Origin, sizes: dict[str, int]) -> None:
    """Says, once, that a worker had to take smaller batches."""
    if origin.size < sizes[origin.group]:
        said = "out of memory on %s with batches of %d lanes: it goes on with %d"
        log.warning(said, origin.where, sizes[origin.group], origin.size)
        sizes[origin.group] = origin.size


class _Tasks(contextlib.AbstractContextManager["_Tasks"]):
    """The tasks of a sweep on a cluster; none of them runs any more when it is left.

    Arguments:
        client: of the cluster.
        blob: from `_packed`.
    """

    def __init__(self, client: "distributed.Client", blob: bytes):
        import dask.config

        self.left: dict[Any, distributed.Future] = {}
        self._client: Any = client  # whose methods, to type checkers, may be asynchronous
        self._ended = queue.Queue[Any]()  # as in `run_group`
        self._next_look = time.monotonic() + IDLE
        self._idle_looks = 0  # in a row
        self._seen: dict[str, Any] = {}  # when each worker was heard of, at the last look
        # As a task's result, workers pass it on to each other, and a worker that is lost does not take it along.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": f"{2 * len(blob) + 2**20} B"}):
            self._blob = client.submit(_held, blob, pure=False)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After a second signal there is no time to wait.
        if isinstance(error, KeyboardInterrupt):
            self._client.cancel(list(self.left.values()))
        else:
            self.stop()
        self._blob.release()

    def begin(self, first: int, size: int, lanes: np.ndarray) -> None:
        """Sends the lanes of a task."""
        future = self._client.submit(_work, self._blob, first, size, lanes, pure=False)
        self.left[future.key] = future
        future.add_done_callback(self._ended.put)

    def ended(self, timeout: float) -> Iterator[Receipt]:
        """What the tasks returned that have ended since.

        Arguments:
            timeout: seconds to wait for the first of them.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                future = self._ended.get(timeout=timeout) if timeout else self._ended.get_nowait()
                timeout = 0.0
                receipt = self._result(future)
                if receipt is None:
                    future.add_done_callback(self._ended.put)
                    continue
                self._next_look, self._idle_looks = time.monotonic() + IDLE, 0
                yield receipt
                del self.left[future.key]

    def require_work(self) -> None:
        """Looks, now and then, at whether workers work. Without workers it waits, which the log tells.

        Raises:
            RuntimeError: they have done nothing for minutes.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + IDLE
        workers = self._client.scheduler_info()["workers"]
        if not workers:
            log.warning("the cluster has no workers; %d batches wait until there are some", len(self.left))
        # Of a worker that has not been heard of since the last look nobody knows what it does.
        idle = [_is_idle(facts) and facts["last_seen"] != self._seen.get(name) for name, facts in workers.items()]
        self._seen = {name: facts["last_seen"] for name, facts in workers.items()}
        self._idle_looks = self._idle_looks + 1 if idle and all(idle) else 0
        if self._idle_looks >= IDLE_LOOKS:
            assigned = sum(len(self.left.keys() & set(keys)) for keys in self._client.processing().values())
            raise RuntimeError(
                f"{len(self.left)} batches are left, {assigned} of them assigned to workers, but none of the "
                f"{len(workers)} workers has run anything for {IDLE_LOOKS * IDLE:.0f} s. See the logs of scheduler and "
                f"workers; client.restart() may help; {AGAIN}"
            )

    def stop(self) -> None:
        """Drops the tasks that have not begun and waits for the others, of which what they write stays."""
        left = set(self.left)
        if left:
            self._client.cancel(list(self.left.values()))
            self.left.clear()
            with contextlib.suppress(OSError, RuntimeError):  # the cluster has gone, and with it the tasks
                quiet = 0
                while quiet < 2:  # one that was about to begin is seen the second time
                    time.sleep(LOOK)
                    ask = self._client.scheduler.call_stack  # as client.call_stack does, but not for ever
                    stacks = self._client.sync(ask, keys=None, callback_timeout=ANSWER)
                    busy = any(left & of_worker.keys() for of_worker in stacks.values())
                    quiet = 0 if busy else quiet + 1

    def _result(self, future: "distributed.Future") -> Receipt | None:
        """What a task returned; None if that does not arrive, since the worker that had it was lost."""
        from distributed import KilledWorker

        try:
            return future.result(timeout=RESULT)
        except TimeoutError:
            if future.status == "error":  # one of the task itself
                raise
            log.warning("the result of %s has not come for %.0f s; the sweep goes on waiting", future.key, RESULT)
            return None
        except KilledWorker as error:
            raise RuntimeError(
                f"a batch ended {error.allowed_failures + 1} workers, one after another; the last was "
                f"{error.last_worker.address}. They may have run out of memory: give a smaller batch_size, or workers "
                f"more memory; {AGAIN}"
            ) from error
        except concurrent.futures.CancelledError as error:
            raise RuntimeError(f"the cluster was closed or restarted before the sweep had ended; {AGAIN}") from error


def _require_versions(client: "distributed.Client", conditions: Conditions) -> None:
    """Raises ValueError if a worker that is there cannot take part."""
    versions: Any = client.get_versions(packages=list(LIBRARIES))
    if not versions["workers"]:
        log.warning("the cluster has no workers; the sweep waits until there are some")
    for address, worker in versions["workers"].items():
        found = worker["packages"]
        conditions.require_versions(found | {"python": short(found["python"])}, f"the worker {address}")


def _packed(job: Job, conditions: Conditions) -> bytes:
    """A job in which functions and classes that a worker cannot import travel by value."""
    import cloudpickle

    return pickle.dumps((conditions, cloudpickle.dumps(job)))


def _is_idle(worker: dict[str, Any]) -> bool:
    """Whether a worker says that it runs nothing."""
    counts = worker["metrics"].get("task_counts")
    return counts is not None and not counts.get("executing")


# What runs on the workers


def _held(blob: bytes) -> bytes:
    return blob


def _work(blob: bytes, first: int, size: int, lanes: np.ndarray) -> Receipt:
    """Runs lanes of the group that begins with the lane `first`, in batches of `size`."""
    return _desk(blob).run(first, size, lanes)


@functools.lru_cache(maxsize=1)
def _desk(blob: bytes) -> "_Desk":
    return _Desk(blob, fresh=_desk.cache_info().currsize == 0)


class _Desk:
    """A job in one worker, where each group is compiled once.

    Arguments:
        blob: from `_packed`.
        fresh: whether this is the first job of the process.
    """

    def __init__(self, blob: bytes, *, fresh: bool):
        import cloudpickle
        from distributed import get_worker

        where = f"the worker {get_worker().address}"
        self._conditions, content = pickle.loads(blob)
        self._conditions.require_versions(dict(Conditions.here().versions), where)  # it may have come later
        self._conditions.adopt_flags(where, fresh=fresh)
        self._compiling = threading.Lock()
        self._compiled: dict[tuple[int, int], Fitting] = {}
        with self._conditions.applied():
            try:
                self._job: Job = cloudpickle.loads(content)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"{where} has no module {error.name!r}, which the sweep needs; install it there, or send it by "
                    f"client.upload_file('{error.name}.py')"
                ) from error
            self._groups = {int(group.lanes[0]): group for group in groups(self._job.frame.axes)}

    def run(self, first: int, size: int, lanes: np.ndarray) -> Receipt:
        """Runs lanes and leaves them where the job says."""
        with self._conditions.applied():
            with self._compiling:
                fitting = self._fitting(first, size)
            return self._job.outlet.collect(fitting, lanes)

    def _fitting(self, first: int, size: int) -> Fitting:
        if (first, size) not in self._compiled:
            problem_fn, frame, _ = self._job
            traced = trace_group(
                problem_fn, self._groups[first], frame.dynamics, tuple(frame.observables), jnp.asarray(frame.ts), size
            )
            self._compiled[first, size] = Fitting(traced, traced.lowered.compile(), lambda program: None)
        return self._compiled[first, size]
