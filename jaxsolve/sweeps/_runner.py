"""How the lanes of a group run: what is compiled for them, and how the host feeds it."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from ._cells import Cells
from ._cost import Waiting
from ._lanes import Lanes


class Finished(NamedTuple):
    """Lanes that a runner has finished.

    Attributes:
        places: of the lanes in the group.
        rows: one per lane.
        wall: seconds that went into them.
        useful, executed: steps that they took; and all that were made since the last were handed over.
    """

    places: np.ndarray
    rows: Lanes
    wall: float
    useful: int
    executed: int


class AbstractRunner(abc.ABC):
    """Runs lanes by compiled programs. Threads may use one at the same time.

    Attributes:
        programs: what was compiled.
        streams: how many threads are best used at once.
    """

    programs: Sequence[jax.stages.Compiled]
    streams: int

    @abc.abstractmethod
    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Finished], Any]) -> None:
        """Runs lanes until none is waiting."""

    @property
    def memory(self) -> int:
        """Bytes that are needed while it runs, beyond those of results on the host; 0 where XLA does not tell."""
        plans = [program.memory_analysis() for program in self.programs]
        sizes = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
        found = [sum(getattr(plan, name, 0) for name in sizes) for plan in plans if plan is not None]
        return self.streams * max(found, default=0)


class AbstractLowered(abc.ABC):
    """The programs of a group, traced.

    Attributes:
        out_info: shapes and dtypes of some lanes.
        refills: whether new lanes take the places of those that finish, so that it is best given many at once.
    """

    out_info: Lanes
    refills: ClassVar[bool]

    @abc.abstractmethod
    def compile(self) -> AbstractRunner:
        """Compiles them; possible in any thread."""


def take(cells: Cells, places: np.ndarray) -> Cells:
    """The rows of some lanes."""
    return {name: values[places] for name, values in cells.items()}


def padded(places: np.ndarray, size: int) -> np.ndarray:
    """The places, and copies of the last one: a program always has the same number of rows."""
    return np.concatenate([places, np.full(size - len(places), places[-1])])


def first(rows: Lanes, count: int) -> Lanes:
    """The first rows, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], rows)
