"""Rows of lanes that arrive in any order, until a whole chunk of them is known."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._blocks import Blocks
from ._variables import Rows, Variable


class Part(NamedTuple):
    """What is known of a chunk."""

    lanes: np.ndarray  # flat indices, rising
    rows: Rows
    known: np.ndarray  # which rows

    @property
    def whole(self) -> bool:
        """Whether all lanes of the chunk are known."""
        return bool(self.known.all())


class Collector:
    """Buffers the rows of unfinished chunks.

    Arguments:
        blocks: which lanes a chunk holds.
        variables: what is known of a lane.
        write: called with the number of a chunk and its rows when the last of them arrives.
    """

    def __init__(self, blocks: Blocks, variables: tuple[Variable, ...], write: Callable[[int, Part], None]):
        self._blocks = blocks
        self._variables = variables
        self._write = write
        self._done = set[int]()
        self._parts: dict[int, Part] = {}
        self._changed: set[int] = set()

    def finished(self, chunk: int) -> None:
        """Leaves a chunk as it is: rows for it are passed over."""
        self._done.add(chunk)

    def begin(self, chunk: int, part: Part) -> None:
        """Starts a chunk with rows that are known from earlier."""
        self._parts[chunk] = part

    def add(self, lanes: np.ndarray, rows: Rows) -> None:
        """Takes rows of lanes, in any order, and writes the chunks that they complete. A lane may come again."""
        chunks = self._blocks.of(lanes)
        for chunk in map(int, np.unique(chunks)):
            if chunk in self._done:
                continue
            here = np.flatnonzero(chunks == chunk)
            part = self._part(chunk)
            places = np.searchsorted(part.lanes, lanes[here])
            for variable in self._variables:
                part.rows[variable.name][places] = rows[variable.name][here]
            part.known[places] = True
            self._changed.add(chunk)
            if part.whole:
                self._finish(chunk)

    def flush(self) -> None:
        """Writes the unfinished chunks, as they are, that have changed since they were written."""
        for chunk in sorted(self._changed):
            self._write(chunk, self._parts[chunk])
        self._changed.clear()

    def _finish(self, chunk: int) -> None:
        self._write(chunk, self._parts[chunk])
        del self._parts[chunk]
        self._done.add(chunk)
        self._changed.discard(chunk)

    def _part(self, chunk: int) -> Part:
        if chunk not in self._parts:
            self._parts[chunk] = empty(self._blocks, chunk, self._variables)
        return self._parts[chunk]


def empty(blocks: Blocks, chunk: int, variables: tuple[Variable, ...]) -> Part:
    """A chunk of which nothing is known."""
    lanes = blocks.lanes(chunk)
    rows = {item.name: np.full((len(lanes), *item.shape), item.missing, item.dtype) for item in variables}
    return Part(lanes, rows, np.zeros(len(lanes), bool))
