"""Where a process leaves the lanes that it has run for another one."""

import abc
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ._execute import Program, Timed
from ._fill import Filler, variables_for
from ._frame import Frame
from ._layout import has_manifest, Layout, read_layout
from ._variables import FINE


PATIENCE = 60.0  # seconds after which what one machine writes is seen by all that share its file system
LOOK = 0.1  # seconds between two looks


class Receipt(NamedTuple):
    """For lanes that have run in another process.

    Attributes:
        lanes: their flat indices.
        where: the host and the device.
        failed: how many of them failed.
        batches: their rows, if they were sent back.
    """

    lanes: np.ndarray
    where: str
    failed: int
    batches: tuple[Timed, ...]


class AbstractOutlet(abc.ABC):
    """Takes lanes in another process, to which it travels by pickle."""

    @abc.abstractmethod
    def collect(self, program: Program, lanes: np.ndarray, run: Callable[[np.ndarray], Iterable[Timed]]) -> Receipt:
        """Runs lanes, and leaves their rows.

        Arguments:
            program: of the group of the lanes.
            lanes: flat indices.
            run: runs some of them.
        """


class Home(AbstractOutlet):
    """Sends the rows back."""

    def collect(self, program: Program, lanes: np.ndarray, run: Callable[[np.ndarray], Iterable[Timed]]) -> Receipt:
        batches = tuple(run(lanes))
        return Receipt(lanes, _here(), sum(map(failures, batches)), batches)


class Shelf(AbstractOutlet):
    """Writes the chunks of a store. The lanes must be all that are missing from their chunks.

    Arguments:
        path: the store.
        frame: of its dataset.
    """

    def __init__(self, path: Path, frame: Frame):
        self._path = path
        self._frame = frame

    def collect(self, program: Program, lanes: np.ndarray, run: Callable[[np.ndarray], Iterable[Timed]]) -> Receipt:
        layout = await_layout(self._path)
        filler = Filler(self._path, self._frame, layout)
        filler.require(variables_for(self._frame, program), program.group)
        # A process that was lost may have written some.
        filler.look(map(int, np.unique(layout.blocks.of(lanes))))
        failed = 0
        for batch in run(lanes[filler.missing[lanes]]):
            filler.add(batch)
            failed += failures(batch)
        filler.flush()
        return Receipt(lanes, _here(), failed, ())


def _here() -> str:
    return f"{socket.gethostname()}, {jax.local_devices()[0].device_kind}"


def failures(batch: Timed) -> int:
    """How many of some lanes failed."""
    return int(np.sum(np.asarray(batch.rows.result) >= FINE))


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
