"""Filling the chunks of a store with lanes. Several processes may do so at the same time, each with its own chunks."""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from .._dynamics import AbstractChoice, AbstractMarching
from ._axes import Group
from ._chunks import Chunks
from ._collect import Collector, Part
from ._execute import Program
from ._files import explained
from ._frame import Frame
from ._lanes import Timed
from ._layout import Layout
from ._store import ChunkCodec
from ._variables import FINE, rows_of, Variable, variables_of


AGAIN = "what has run is kept: call the sweep again with the same arguments to run the rest"
FLUSH_SECONDS = 60.0  # between two writings of unfinished chunks
FLUSH_SHARE = 0.05  # of the time, at most, goes into that
SLOWEST_LOOK = 2.0  # seconds between two looks for the chunks of others


class Filler:
    """Takes the lanes of a store in any order, and writes a chunk when its last lane comes.

    Arguments:
        path: the store.
        frame: of its dataset.
        layout: of the store.

    Attributes:
        blocks: of the store.
        missing: which lanes have yet to run, as far as this process knows; all, before it looks.
    """

    def __init__(self, path: Path, frame: Frame, layout: Layout):
        self.path = path
        self.blocks = layout.blocks
        self.missing = np.ones(frame.lanes, bool)
        self._frame = frame
        self._variables = layout.variables
        self._chunks = Chunks(path, layout.blocks, ChunkCodec(layout.files, layout.blocks, layout.variables))
        self._collector = Collector(layout.blocks, layout.variables, self._chunks.write)
        self._next_flush = time.monotonic() + FLUSH_SECONDS

    def look(self, numbers: Iterable[int], *, forget_failed: bool = False) -> set[int]:
        """Takes up those of some chunks that are on disk, and returns their numbers.

        Arguments:
            numbers: of the chunks.
            forget_failed: whether lanes that failed are removed from the disk.
        """
        found = set[int]()
        for chunk in self._chunks.find(numbers):
            found.add(chunk.number)
            if chunk.whole and not (forget_failed and chunk.failed):
                self._collector.finished(chunk.number)
                self.missing[self.blocks.lanes(chunk.number)] = False
            else:
                part = self._chunks.read(chunk.number)
                if forget_failed and chunk.failed:
                    self._forget_failed(chunk.number, part)
                self._collector.begin(chunk.number, part)
                self.missing[part.lanes[part.known]] = False
        return found

    def drop(self, numbers: Iterable[int]) -> None:
        """Removes chunks, so that readers see lanes that have not run."""
        for number in numbers:
            self._chunks.drop(number)

    def require(self, found: tuple[Variable, ...], group: Group) -> None:
        """Raises ValueError unless the variables of a group are those of the store."""
        for old, new in zip(self._variables, found, strict=True):
            if (old.name, old.dims, old.shape, old.dtype) != (new.name, new.dims, new.shape, new.dtype):
                raise ValueError(
                    f"{new.name!r} is {new.dtype} of shape {new.shape} for {group.static}, but the store {self.path} "
                    f"holds {old.name!r} as {old.dtype} of shape {old.shape}; sweep them in stores of their own"
                )

    def add(self, batch: Timed) -> None:
        """Takes the rows of some lanes."""
        if all(item.name != "t_saved" for item in self._variables) and not self._frame.saved_as_asked(batch):
            raise ValueError(f"{self._frame.dynamics.name} saved other times than its method `times` says")
        with explained(self.path, AGAIN):
            self._collector.add(batch.lanes, rows_of(batch))
        self.missing[batch.lanes] = False
        begin = time.monotonic()
        if begin > self._next_flush:
            self.flush()
            now = time.monotonic()
            self._next_flush = now + max(FLUSH_SECONDS, (now - begin) / FLUSH_SHARE)

    def flush(self) -> None:
        """Writes what is known of chunks that are not whole."""
        with explained(self.path, AGAIN):
            self._collector.flush()

    def wait(self, lanes: np.ndarray, heed: Callable[[], None], patience: float = math.inf) -> None:
        """Waits until lanes that other processes run are on disk, and so no longer missing.

        Arguments:
            lanes: flat indices.
            heed: called between two looks.
            patience: seconds to wait; those that have not come by then stay missing.
        """
        begin = time.monotonic()
        while True:
            lanes = lanes[self.missing[lanes]]
            self.look(number for number in map(int, np.unique(self.blocks.of(lanes))) if self._chunks.ended(number))
            waited = time.monotonic() - begin
            if not self.missing[lanes].any() or waited > patience:
                return
            heed()
            time.sleep(min(SLOWEST_LOOK, 0.01 + 0.1 * waited))

    def _forget_failed(self, number: int, part: Part) -> None:
        failed = part.rows["result"] >= FINE
        part.known[failed] = False
        for item in self._variables:
            part.rows[item.name][failed] = item.missing
        with explained(self.path, AGAIN):
            self._chunks.write(number, part)


def variables_for(frame: Frame, program: Program) -> tuple[Variable, ...]:
    """The variables of a store for the lanes of a program."""
    dynamics, ts = frame.dynamics, frame.ts
    # Where the problem chooses the dynamics, how it rounds times is not known before it runs.
    unknown = isinstance(dynamics, AbstractChoice) and not isinstance(dynamics, AbstractMarching)
    rounded = unknown or not np.array_equal(np.asarray(dynamics.times(jnp.asarray(ts))), ts)
    return variables_of(frame.observables, program.lowered.out_info, rounded=rounded)
