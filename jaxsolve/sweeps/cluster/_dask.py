"""Sweeps on the workers of a dask cluster: the side of the calling process. `_workers` is their side."""

import concurrent.futures
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TYPE_CHECKING

import numpy as np

from ..._checks import describe
from ..._extras import needs
from .._progress import Signals
from ..running._execute import TracedGroup
from ..store._files import AGAIN
from ..store._memory import LIBRARIES, MemoryStore
from ..store._zarr import AbstractOnDisk, HeldStore
from ._workers import Conditions, packed, Receipt, short, work


if TYPE_CHECKING:
    import distributed


log = logging.getLogger("jaxsolve")

LOOK = 0.1  # seconds between checks of signals, or of running tasks
REFILLS = 4  # batches per task, if new lanes take the places of finished ones
ANSWER = 60.0  # seconds to wait until the scheduler says what workers run
IDLE = 60.0  # seconds without news until the workers are checked for activity
IDLE_LOOKS = 3  # checks in a row that find the cluster idle before the sweep gives up


def require_client(executor: Any) -> None:
    """Raises TypeError or ValueError if `executor` cannot run a sweep."""
    # No import: a user who has a client has imported the library.
    if not isinstance(executor, getattr(sys.modules.get("distributed"), "Client", ())):
        raise TypeError(
            "executor must be a dask.distributed.Client, or sweeps.Hosts() for the processes of jax.distributed, got "
            f"{describe(executor)}. For dask: pip install distributed"
        )
    if executor.asynchronous:
        raise ValueError("executor is an asynchronous client, but sweep waits for its results; give a Client(...)")


def run_on(
    client: "distributed.Client",
    programs: Iterable[TracedGroup],
    store: MemoryStore | AbstractOnDisk,
    signals: Signals,
    tell: Callable[[int, int], None],
) -> None:
    """Runs the missing lanes of a store on the workers of a cluster; `tell` gets the numbers that ran and failed.

    Programs are traced here only to find their batch sizes: workers trace their own. After a signal, running tasks are
    finished and the others dropped. Raises ValueError if a worker has other versions or flags of XLA, RuntimeError if a
    batch killed several workers, the cluster is gone, or its workers do nothing.
    """
    conditions = Conditions.here()
    promised = np.zeros(store.plan.lanes, bool)  # lanes that workers report as written
    sizes: dict[str, int] = {}  # lanes per batch, by group
    disk = store if isinstance(store, HeldStore) else None
    confirm = (lambda check: None) if disk is None else functools.partial(disk.confirm, promised)
    _require_versions(client, conditions)
    with _Tasks(client, packed(store.plan, None if disk is None else (disk.path, disk.chunks.id), conditions)) as tasks:

        def check() -> None:
            if signals.noted():
                tasks.stop()
                confirm(lambda: None)
                signals.check(store.missing)

        def take() -> None:
            for receipt in tasks.ended():
                origin = receipt.origin
                if origin.size < sizes[origin.group]:
                    said = "out of memory on %s with batches of %d lanes: continuing with %d"
                    log.warning(said, origin.where, sizes[origin.group], origin.size)
                    sizes[origin.group] = origin.size
                promised[receipt.lanes] = True
                if disk is not None:
                    disk.record(origin, len(receipt.lanes))
                for batch in receipt.batches:
                    store.write(batch)
                tell(len(receipt.lanes), receipt.failed)

        for program in programs:
            check()
            lanes, sizes[program.group.name] = program.group.lanes, program.size
            left, size = lanes[store.missing[lanes]], program.size * (REFILLS if program.runner.refills else 1)
            pieces = (left[start : start + size] for start in range(0, len(left), size))
            # Tasks that write chunks themselves get the lanes of whole chunks.
            for part in pieces if disk is None else disk.chunks.blocks.parts(left, size):
                tasks.begin(program.group.name, program.size, part)
            take()
        while tasks.left:
            check()
            take()
            tasks.require_work()
            time.sleep(LOOK)
        confirm(check)


class _Tasks(contextlib.AbstractContextManager["_Tasks"]):
    """The tasks of a sweep on a cluster: a context that ends them when it exits."""

    def __init__(self, client: "distributed.Client", blob: bytes):
        with needs("sweeps", "a cluster"):
            import dask.config
            import distributed

        self.left: set[Any] = set()  # keys of tasks
        self._client: Any = client  # to type checkers, its methods might be asynchronous
        self._completed = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._next_look = time.monotonic() + IDLE
        self._idle_looks = 0  # in a row
        self._manned = bool(self._client.scheduler_info(n_workers=-1)["workers"])  # whether there was ever a worker
        self._seen: dict[str, Any] = {}  # when each worker was last heard from, as of the last check
        # As the result of a task, the blob is passed between workers, and survives the loss of one.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": f"{2 * len(blob) + 2**20} B"}):
            self._blob = client.submit(bytes, blob, pure=False)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After a second signal there is no time to wait.
        if isinstance(error, KeyboardInterrupt):
            self._client.cancel(list(self._completed.futures))
        else:
            self.stop()
        self._blob.release()

    def begin(self, group: str, size: int, lanes: np.ndarray) -> None:
        """Submits a task that runs these lanes."""
        future = self._client.submit(work, self._blob, group, size, lanes, pure=False)
        self.left.add(future.key)
        self._completed.add(future)

    def ended(self) -> Iterator[Receipt]:
        """The receipts of newly ended tasks; RuntimeError if one killed its workers, or the cluster is gone."""
        from distributed import KilledWorker

        for future, receipt in self._completed.next_batch(block=False):
            self._next_look, self._idle_looks = time.monotonic() + IDLE, 0
            self.left.discard(future.key)
            try:
                found = receipt if isinstance(receipt, Receipt) else future.result()  # raises what the task raised
            except KilledWorker as error:
                raise RuntimeError(
                    f"a batch ended {error.allowed_failures + 1} workers, one after another; the last was "
                    f"{error.last_worker.address}. They may have run out of memory: give a smaller batch_size, or "
                    f"workers more memory; {AGAIN}"
                ) from error
            except concurrent.futures.CancelledError as error:
                said = "the cluster was closed or restarted before the sweep had ended"
                raise RuntimeError(f"{said}; {AGAIN}") from error
            yield found

    def require_work(self) -> None:
        """Checks once in a while that workers are busy; RuntimeError if none has been for minutes.

        Workers that have not started yet may be queued for hours: they are waited for.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + IDLE
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        self._manned |= bool(workers)
        if not workers and not self._manned:
            log.warning("the cluster has no workers; %d batches wait until there are some", len(self.left))
        elif not workers:
            self._idle_looks += 1
            if self._idle_looks >= IDLE_LOOKS:
                raise RuntimeError(
                    f"all workers of the cluster have been gone for {IDLE_LOOKS * IDLE:.0f} s, with {len(self.left)} "
                    f"batches left: start workers, and see the logs of those that ended; {AGAIN}"
                )
            said = "all workers of the cluster are gone; %d batches wait for others, for %.0f s more"
            log.warning(said, len(self.left), (IDLE_LOOKS - self._idle_looks) * IDLE)
            return
        # A worker not heard from since the last check may be busy: it does not count as idle.
        unknown = {"executing": 1}
        idle = [
            facts["last_seen"] != self._seen.get(name)
            and not facts["metrics"].get("task_counts", unknown).get("executing")
            for name, facts in workers.items()
        ]
        self._seen = {name: facts["last_seen"] for name, facts in workers.items()}
        self._idle_looks = self._idle_looks + 1 if idle and all(idle) else 0
        if self._idle_looks >= IDLE_LOOKS:
            assigned = sum(len(self.left & set(keys)) for keys in self._client.processing().values())
            raise RuntimeError(
                f"{len(self.left)} batches are left, {assigned} of them assigned to workers, but none of the "
                f"{len(workers)} workers has run anything for {IDLE_LOOKS * IDLE:.0f} s. See the logs of scheduler and "
                f"workers; client.restart() may help; {AGAIN}"
            )

    def stop(self) -> None:
        """Drops the tasks that have not begun and waits for the others, whose results are kept."""
        left = set(self.left)
        if left:
            self._client.cancel([*self._completed.futures])
            self.left.clear()
            with contextlib.suppress(OSError, RuntimeError):  # the cluster is gone, and its tasks with it
                quiet = 0
                while quiet < 2:  # the second check sees a task that was about to begin
                    time.sleep(LOOK)
                    ask = self._client.scheduler.call_stack  # like client.call_stack, but with a timeout
                    stacks = self._client.sync(ask, keys=None, callback_timeout=ANSWER)
                    busy = any(left & of_worker.keys() for of_worker in stacks.values())
                    quiet = 0 if busy else quiet + 1


def _require_versions(client: "distributed.Client", conditions: Conditions) -> None:
    """Raises ValueError if a present worker has other versions."""
    versions: Any = client.get_versions(packages=list(LIBRARIES))
    if not versions["workers"]:
        log.warning("the cluster has no workers; the sweep waits until there are some")
    for address, worker in versions["workers"].items():
        found = worker["packages"]
        conditions.require_versions(found | {"python": short(found["python"])}, f"the worker {address}")
