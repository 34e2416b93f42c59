"""How well the steps of a sweep are used."""

import logging
import time

from ._execute import Program
from ._lanes import Timed


log = logging.getLogger("jaxsolve")


class Tally:
    """Counts the steps of a program, and tells the log."""

    def __init__(self, program: Program):
        self._what = program.group.static
        self._begin = time.perf_counter()
        self._lanes = self._useful = self._executed = 0

    def add(self, done: Timed) -> None:
        """Counts some lanes."""
        self._lanes += len(done.lanes)
        self._useful += done.useful
        self._executed += done.executed

    def report(self) -> None:
        """Says how many of the steps that were made were of lanes that had not finished: the lane efficiency."""
        if self._executed:
            seconds, share = time.perf_counter() - self._begin, 100 * self._useful / self._executed
            log.info("%s: %d lanes in %.3g s, lane efficiency %.0f %%", self._what, self._lanes, seconds, share)
