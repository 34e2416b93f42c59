"""Running the lanes of a program, in batches that fit into memory."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from ... import kernels
from ..._memory import out_of_memory
from ._builder import cells_of
from ._execute import Program
from ._runner import Batch, Waiting


log = logging.getLogger("jaxsolve")

LOOK = 0.1  # seconds between two looks at whether to stop
SHARE = 0.5  # of the free memory that batches may take: what a step works with comes on top of what XLA plans


class OutOfMemory(RuntimeError):
    """A batch does not fit into the memory of its devices."""


def run_group(program: Program, stop: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
    """Runs every lane of a compiled program's group, and yields lanes as they finish, in any order.

    Once `stop` is true, which is looked at now and then, no lane begins any more, and those that run are finished;
    so are lanes that have been yielded when a batch does not fit, which raises OutOfMemory.
    """
    group, runner, origin = program.group, program.runner, program.origin
    cells = cells_of(group, program.runner.builder.dynamics)
    known = group.cells if runner.refills else {}
    waiting = Waiting({name: cells[name] for name in known}, len(group.lanes))
    # A SimpleQueue may wait for ever when a signal comes at the end of a timeout (CPython 3.11).
    said: queue.Queue[Batch | BaseException | None] = queue.Queue()
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    def work() -> None:
        try:
            with jax.enable_x64(x64):  # which may be a setting of the caller's thread
                runner.run(cells, waiting, said.put)
        except BaseException as error:
            said.put(error)
        finally:
            said.put(None)

    streams = min(runner.streams, len(group.lanes))
    try:
        # Daemon threads: a second Ctrl-C ends the process even while one of them is inside XLA.
        for _ in range(streams):
            threading.Thread(target=work, daemon=True).start()
        failed = None
        while streams:
            if stop():
                waiting.close()
            try:
                item = said.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(item, Batch):
                yield item._replace(lanes=group.lanes[item.lanes], origin=origin)
            elif item is None:
                streams -= 1
            else:
                failed = failed or item
                waiting.close()
        if failed is not None and out_of_memory(failed):
            advice = "a smaller batch_size" if program.size > 1 else "fewer samples, times or observables"
            raise OutOfMemory(f"out of memory with batches of {program.size} lanes; give {advice}") from failed
        if failed is not None:
            raise failed
    finally:
        waiting.close()


class Fitting:
    """A compiled program that goes on with half as many lanes at once whenever a batch does not fit into memory.

    One whose batch size was chosen takes at most half of the free memory from the start. Threads may share one.
    """

    def __init__(self, program: Program):
        self._lock = threading.Lock()
        self.program = program  # the one that runs now
        free = kernels.free_memory()
        while program.chosen and free is not None and (needed := self.program.runner.memory) > free * SHARE:
            size = max(1, min(self.program.size // 2, int(self.program.size * free * SHARE / needed)))
            if not self._shrink(size, log.info, f"batches of %d lanes would take {needed >> 10} kB: %d instead"):
                return

    def run(self, wanted: np.ndarray, stop: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
        """Runs the lanes of the group that are wanted, a flag for each cell of the grid, as `run_group` does.

        The log tells how many of the steps were made for lanes that had not finished: the lane efficiency.
        """
        wanted = wanted.copy()
        begin, lanes, useful, executed = time.perf_counter(), 0, 0, 0
        while wanted[self.program.group.lanes].any() and not stop():
            program = self.program
            try:
                for part in program.parts(wanted):
                    for batch in run_group(part, stop):
                        wanted[batch.lanes] = False
                        lanes, useful = lanes + len(batch.lanes), useful + batch.useful
                        executed += batch.executed
                        yield batch
                    if stop():
                        break
            except OutOfMemory as error:
                self._halve(program, error)
        if executed:
            seconds, share = time.perf_counter() - begin, 100 * useful / executed
            said = "%s: %d lanes in %.3g s, lane efficiency %.0f %%"
            log.info(said, self.program.group.static, lanes, seconds, share)

    def _halve(self, program: Program, error: OutOfMemory) -> None:
        with self._lock:
            said = "out of memory with batches of %d lanes: going on with %d"
            if program is self.program and not self._shrink(max(1, program.size // 2), log.warning, said):
                raise error

    def _shrink(self, lanes: int, tell: Callable[..., None], said: str) -> bool:
        """Goes on with so many lanes at once; false where that is no less: a lane for each device."""
        before, smaller = self.program.size, self.program.resized(lanes)
        if smaller.size < before:
            tell(said, before, smaller.size)
            smaller.runner.compile()
            self.program = smaller
        return smaller.size < before
