"""Batches that fit into memory."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import kernels
from ._execute import OutOfMemory, Program, run_group
from ._lanes import Timed
from ._runner import AbstractRunner


log = logging.getLogger("jaxsolve")

SHARE = 0.5  # of the free memory that batches may take


class Fitting:
    """A compiled program that goes on with half as many lanes at once whenever a batch does not fit into memory.

    One whose batch size was chosen takes at most half of the free memory from the start. Threads may share one.

    Arguments:
        program, compiled: as traced, and compiled.
        expect: called with each program that takes the place of another.
    """

    def __init__(self, program: Program, compiled: AbstractRunner, expect: Callable[[Program], Any]):
        self._expect = expect
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

    def run(
        self,
        wanted: np.ndarray,
        report: Callable[[int], Any] = lambda lanes: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Timed]:
        """Runs lanes of the group, and yields them as they finish, in any order.

        Arguments:
            wanted: a flag for each cell of the grid.
            report: called with the number of lanes that have finished.
            stop: once it is true no lane begins any more.

        Raises:
            OutOfMemory: not even a lane for each device fits.
        """
        wanted = wanted.copy()
        while wanted[self.program.group.lanes].any() and not stop():
            program, compiled = self._current
            try:
                for part in program.parts(wanted):
                    for done in run_group(part, compiled, report, stop):
                        wanted[done.lanes] = False
                        yield done
                    if stop():
                        break
            except OutOfMemory as error:
                self._halve(program, error)

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
        self._expect(program)
        self._current = program, program.lowered.compile()
        return self._current
