"""Batches that fit into memory."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from ... import kernels
from ._execute import OutOfMemory, Program, run_group
from .programs._base import AbstractRunner, Batch


log = logging.getLogger("jaxsolve")

SHARE = 0.5  # of the free memory that batches may take: what a step works with comes on top of what XLA plans


class Fitting:
    """A compiled program that goes on with half as many lanes at once whenever a batch does not fit into memory.

    One whose batch size was chosen takes at most half of the free memory from the start. Threads may share one.

    Arguments:
        program, compiled: as traced, and compiled.
    """

    def __init__(self, program: Program, compiled: AbstractRunner):
        self._lock = threading.Lock()
        self._current = program, compiled
        free = kernels.free_memory()
        while program.chosen and free is not None and compiled.memory > free * SHARE:
            size = max(1, min(program.size // 2, int(program.size * free * SHARE / compiled.memory)))
            smaller = program.resized(size)
            if smaller.size == program.size:  # a lane for each device
                return
            log.info("batches of %d lanes would take %d kB: %d instead", program.size, compiled.memory >> 10, size)
            program, compiled = self._go_on(smaller._replace(chosen=True))

    @property
    def program(self) -> Program:
        """The one that runs now."""
        return self._current[0]

    def run(self, wanted: np.ndarray, stop: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
        """Runs lanes of the group, and yields them as they finish, in any order.

        The log tells how many of the steps were made for lanes that had not finished: the lane efficiency.

        Arguments:
            wanted: a flag for each cell of the grid.
            stop: once it is true no lane begins any more.

        Raises:
            OutOfMemory: not even a lane for each device fits.
        """
        wanted = wanted.copy()
        begin, lanes, useful, executed = time.perf_counter(), 0, 0, 0
        while wanted[self.program.group.lanes].any() and not stop():
            program, compiled = self._current
            try:
                for part in program.parts(wanted):
                    for batch in run_group(part, compiled, stop):
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
            log.info(
                "%s: %d lanes in %.3g s, lane efficiency %.0f %%", self.program.group.static, lanes, seconds, share
            )

    def _halve(self, program: Program, error: OutOfMemory) -> None:
        with self._lock:
            if program is not self.program:  # another thread has done so
                return
            smaller = program.resized(max(1, program.size // 2))
            if smaller.size == program.size:  # a lane for each device
                raise error
            log.warning("out of memory with batches of %d lanes: going on with %d", program.size, smaller.size)
            self._go_on(smaller)

    def _go_on(self, program: Program) -> tuple[Program, AbstractRunner]:
        self._current = program, program.lowered.compile()
        return self._current
