"""How the lanes of a group run: what is compiled for them, and how the host feeds it."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from ...._dynamics import March
from ...._results import FIRST_FAILURE, result_code
from .._builder import Cells
from .._devices import Devices
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
    """Where and how lanes ran, for the attributes of a dataset.

    Attributes:
        host, device: where.
        dynamics: what moved them, in a line.
        group: the name of their group.
        size: lanes per batch.
    """

    host: str
    device: str
    dynamics: str
    group: str
    size: int

    @property
    def where(self) -> str:
        """The host and the device."""
        return f"{self.host}, {self.device}"


class Batch(NamedTuple):
    """Lanes that have run, on the host.

    Attributes:
        lanes: their indices: in the group where a runner hands them over, in the grid from then on.
        rows: one per lane.
        wall: seconds that went into them: of what ran at once, their share of the useful steps.
        useful: steps of lanes that had not finished, accepted or rejected; 0 for closed forms.
        executed: all steps since the last batch, with those of finished lanes that waited for others.
        origin: where and how they ran; None where a runner hands them over.
    """

    lanes: np.ndarray
    rows: Lanes
    wall: float
    useful: int = 0
    executed: int = 0
    origin: Origin | None = None

    @property
    def failed(self) -> int:
        """How many of the lanes failed."""
        return int(np.sum(np.asarray(self.rows.result) >= FIRST_FAILURE))


class AbstractRunner(abc.ABC):
    """Runs lanes by compiled programs. Threads may use one at the same time.

    Attributes:
        programs: what was compiled.
        streams: how many threads are best used at once.
    """

    programs: Sequence[jax.stages.Compiled]
    streams: int

    @abc.abstractmethod
    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        """Runs lanes until none is waiting."""

    @property
    def memory(self) -> int:
        """Bytes that are needed while it runs, beyond those of results on the host; 0 where XLA does not tell."""
        plans = [program.memory_analysis() for program in self.programs]
        sizes = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
        found = [sum(getattr(plan, name, 0) for name in sizes) for plan in plans if plan is not None]
        return self.streams * max(found, default=0)


def safe_streams(compiled: jax.stages.Compiled, devices: Devices) -> int:
    """How many threads may run a program at once: those that are best for the devices, but one if it calls LAPACK.

    jaxlib (0.10) spreads a batch of factorisations, such as eigenvalues at several times, over XLA's own threads, and
    waits on one of them. Where as many programs do so as there are threads, none is left to work: all wait for ever.
    """
    return 1 if "lapack_" in (compiled.as_text() or "") else devices.streams


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


def repeat_last(places: np.ndarray, size: int) -> np.ndarray:
    """The places, and copies of the last one: a program always has the same number of rows."""
    return np.concatenate([places, np.full(size - len(places), places[-1])])


def first(rows: Lanes, count: int) -> Lanes:
    """The first rows, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], rows)
