"""Where a process leaves the lanes that it has run for another one."""

import abc
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ._fill import Filler, variables_for
from ._fit import Fitting
from ._frame import Frame
from ._lanes import Timed
from ._layout import has_manifest, Layout, read_layout
from ._origin import Origin
from ._variables import failures


PATIENCE = 60.0  # seconds after which what one machine writes is seen by all that share its file system
LOOK = 0.1  # seconds between two looks


class Receipt(NamedTuple):
    """For lanes that have run in another process.

    Attributes:
        lanes: their flat indices.
        origin: where and how they ran; if they ran in batches of several sizes, the last.
        failed: how many of them failed.
        batches: their rows, if they were sent back.
    """

    lanes: np.ndarray
    origin: Origin
    failed: int
    batches: tuple[Timed, ...]


class AbstractOutlet(abc.ABC):
    """Takes lanes in another process, to which it travels by pickle."""

    @abc.abstractmethod
    def collect(self, fitting: Fitting, lanes: np.ndarray) -> Receipt:
        """Runs lanes, and leaves their rows.

        Arguments:
            fitting: runs them.
            lanes: flat indices of some of its group.
        """


class Home(AbstractOutlet):
    """Sends the rows back."""

    def collect(self, fitting: Fitting, lanes: np.ndarray) -> Receipt:
        batches = tuple(fitting.run(_flags(lanes, fitting)))
        return Receipt(lanes, Origin.here(fitting.program), sum(map(failures, batches)), batches)


class Shelf(AbstractOutlet):
    """Writes the chunks of a store. The lanes must be all that are missing from their chunks.

    Arguments:
        path: the store.
        frame: of its dataset.
    """

    def __init__(self, path: Path, frame: Frame):
        self._path = path
        self._frame = frame

    def collect(self, fitting: Fitting, lanes: np.ndarray) -> Receipt:
        layout, program = await_layout(self._path), fitting.program
        filler = Filler(self._path, self._frame, layout)
        filler.require(variables_for(self._frame, program), program.group)
        # A process that was lost may have written some.
        filler.look(map(int, np.unique(layout.blocks.of(lanes))))
        failed = 0
        for batch in fitting.run(_flags(lanes[filler.missing[lanes]], fitting)):
            filler.add(batch)
            failed += failures(batch)
        filler.flush()
        return Receipt(lanes, Origin.here(fitting.program), failed, ())


def _flags(lanes: np.ndarray, fitting: Fitting) -> np.ndarray:
    """Flags for lanes of a group, as many as it takes for the last of the group."""
    flags = np.zeros(fitting.program.group.lanes[-1] + 1, bool)
    flags[lanes] = True
    return flags


def await_layout(path: Path) -> Layout:
    """Reads the layout of a store that another process has made.

    Raises:
        FileNotFoundError: there is none, not even after a minute.
        ValueError: it is damaged.
    """
    begin = time.monotonic()
    while not has_manifest(path):
        if time.monotonic() - begin > PATIENCE:
            raise FileNotFoundError(
                f"{path} is not there for process {os.getpid()} on {socket.gethostname()}: a store that several "
                "processes fill must be a folder that all of them see"
            )
        time.sleep(LOOK)
    return read_layout(path)
