"""Where the lanes of a sweep go."""

import abc
from collections.abc import Callable, Iterator
from typing import Any, TYPE_CHECKING

import numpy as np

from ._axes import Group
from ._execute import Program
from ._frame import Frame
from ._lanes import Timed
from ._manifest import environment, summary
from ._origin import credited, Origin
from ._outlet import AbstractOutlet, Home, Receipt
from ._store import to_dataset
from ._variables import variables_of


if TYPE_CHECKING:
    import xarray


class AbstractSink(abc.ABC):
    """Takes the lanes of a sweep, in any order, and gives back its dataset.

    It is entered before the first lane comes and left when no more do.
    """

    @abc.abstractmethod
    def __enter__(self) -> "AbstractSink": ...

    @abc.abstractmethod
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    @property
    @abc.abstractmethod
    def missing(self) -> np.ndarray:
        """Which lanes have yet to run: a flag for each cell of the grid."""

    @abc.abstractmethod
    def batch_size(self, group: Group) -> int | None:
        """The lanes of a group to run together; None chooses."""

    @abc.abstractmethod
    def expect(self, program: Program) -> None:
        """Prepares for the lanes of a program; to be called before they come.

        Raises:
            ValueError: the variables are not those of the lanes before.
        """

    @abc.abstractmethod
    def add(self, batch: Timed) -> None:
        """Takes the rows of some lanes."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Makes sure that no lane taken so far is lost."""

    @abc.abstractmethod
    def dataset(self) -> "xarray.Dataset":
        """All lanes, once none is missing."""


class AbstractHub(AbstractSink):
    """A sink for lanes that other processes run."""

    @property
    @abc.abstractmethod
    def outlet(self) -> AbstractOutlet:
        """Where the others leave their lanes."""

    @abc.abstractmethod
    def parts(self, lanes: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Cuts lanes of a program that is expected into parts of about `size`, for different processes."""

    @abc.abstractmethod
    def receive(self, receipt: Receipt) -> None:
        """Takes what the outlet returned."""

    @abc.abstractmethod
    def confirm(self, heed: Callable[[], None]) -> None:
        """Makes sure of all lanes received; to be called when the others have stopped.

        Arguments:
            heed: called now and then.

        Raises:
            OSError: some have not arrived.
        """


class Memory(AbstractHub):
    """Keeps the lanes in memory.

    Arguments:
        frame: of the dataset.
        elsewhere: whether the lanes run in other processes.
    """

    def __init__(self, frame: Frame, *, elsewhere: bool):
        self._frame = frame
        self._elsewhere = elsewhere
        self._labels: dict[str, str] = {}
        self._missing = np.ones(frame.lanes, bool)
        self._batches: list[Timed] = []

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        pass

    @property
    def missing(self) -> np.ndarray:
        return self._missing

    def batch_size(self, group: Group) -> int | None:
        return self._frame.batch_size

    def expect(self, program: Program) -> None:
        if not self._elsewhere:
            self._labels = credited(self._labels, Origin.here(program))

    def add(self, batch: Timed) -> None:
        self._batches.append(batch)
        self._missing[batch.lanes] = False

    def flush(self) -> None:
        pass

    @property
    def outlet(self) -> AbstractOutlet:
        return Home()

    def parts(self, lanes: np.ndarray, size: int) -> Iterator[np.ndarray]:
        return (lanes[start : start + size] for start in range(0, len(lanes), size))

    def receive(self, receipt: Receipt) -> None:
        self._labels = credited(self._labels, receipt.origin)
        for batch in receipt.batches:
            self.add(batch)

    def confirm(self, heed: Callable[[], None]) -> None:
        pass

    def dataset(self) -> "xarray.Dataset":
        frame, batches = self._frame, self._batches
        rounded = not all(map(frame.saved_as_asked, batches))
        variables = variables_of(frame.observables, batches[0].rows, rounded=rounded)
        attrs = summary(self._labels, environment())
        return to_dataset(frame.axes, variables, frame.ts, batches, attrs)
