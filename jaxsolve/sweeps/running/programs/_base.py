"""How the lanes of a group run: the program that is compiled for them, and how the host feeds it."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...._dynamics import March
from ...._results import FIRST_FAILURE, result_code
from .._builder import Cells, Setup
from ._queue import Waiting


class Lanes(NamedTuple):
    """What a program returns, one row per lane."""

    observed: dict[str, Array]
    times: Array
    t_end: Array
    result: Array  # codes
    steps: Array
    trust: Array | None = None  # digits; None where the dynamics has no certificate


def lane_of(run: March, observed: dict[str, Array]) -> Lanes:
    """What a march leaves of a lane."""
    trust = None if run.certificate is None else run.certificate.trust
    return Lanes(observed, run.times, run.t_end, result_code(run.result), run.steps, trust)


class Origin(NamedTuple):
    """Where and how lanes ran, for the attributes of a dataset."""

    host: str
    device: str
    dynamics: str  # in a line
    group: str  # its name
    size: int  # lanes per batch

    @property
    def where(self) -> str:
        """The host and the device."""
        return f"{self.host}, {self.device}"


class Batch(NamedTuple):
    """Lanes that have run, on the host."""

    lanes: np.ndarray  # their indices: in the group where a runner hands them over, in the grid from then on
    rows: Lanes
    wall: float  # seconds that went into them: of what ran at once, their share of the useful steps
    useful: int = 0  # steps of lanes that had not finished, accepted or rejected; 0 for closed forms
    executed: int = 0  # all steps since the last batch, with those of finished lanes that waited for others
    origin: Origin | None = None  # None where a runner hands them over

    @property
    def failed(self) -> int:
        """How many of the lanes failed."""
        return int(np.sum(np.asarray(self.rows.result) >= FIRST_FAILURE))


class AbstractRunner(abc.ABC):
    """Runs lanes by one program, which is traced when the runner is made."""

    refills: ClassVar[bool]  # whether new lanes take the places of finished ones, so that it is best given many at once
    alone: ClassVar[bool] = False  # whether one thread runs it
    out_info: Lanes  # shapes and dtypes of some lanes
    streams: int  # how many threads are best used at once, known when it is compiled
    _compiled: Any

    def __init__(self, setup: Setup):
        self._devices, self._rows = setup.devices, setup.rows
        self._lowered = self._devices.lower(*self._program(setup))
        self.out_info, *_ = self._lowered.out_info

    @abc.abstractmethod
    def _program(self, setup: Setup) -> tuple[Callable[..., Any], Sequence[Any]]:
        """A function of the rows of one device, whose result begins with their lanes; the shapes of its arguments."""

    @abc.abstractmethod
    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        """Runs lanes until none is waiting. Threads may do so at the same time."""

    def compile(self) -> None:
        """Compiles the program; possible in any thread."""
        self._compiled = self._devices.compile(self._lowered)
        # jaxlib (0.10) spreads a batch of factorisations, such as eigenvalues at several times, over XLA's own
        # threads, and waits on one of them. Where as many programs do so as there are threads, all wait for ever.
        alone = self.alone or "lapack_" in (self._compiled.as_text() or "")
        self.streams = 1 if alone else self._devices.streams

    @property
    def memory(self) -> int:
        """Bytes that are needed while it runs, beyond those of results on the host; 0 where XLA does not tell."""
        plan = self._compiled.memory_analysis()
        sizes = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
        return self.streams * sum(getattr(plan, name, 0) for name in sizes)


def take(cells: Cells, places: np.ndarray) -> Cells:
    """The rows of some lanes."""
    return {name: values[places] for name, values in cells.items()}


def rows_at(lanes: Lanes, places: Any) -> Lanes:
    """Some rows, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[places], lanes)


def zeros(shapes: Any, rows: int | None = None) -> Any:
    """Zeros of these shapes, or so many rows of them."""
    head = () if rows is None else (rows,)
    return jax.tree.map(lambda leaf: jnp.zeros((*head, *leaf.shape), leaf.dtype), shapes)
