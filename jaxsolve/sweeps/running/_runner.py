"""Running the lanes of a group: which lanes are next, the program compiled for them, and how the host feeds it.

The runner of closed forms is here: one fused kernel, in which no lane waits. Those of marches are in `_marches`.
"""

import abc
import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import Certificate, March, Problem
from ..._results import FIRST_FAILURE, result_code, RESULTS
from ..._solve import observe_random_access, random_access_result, require_kind
from ...observe import Observable
from ..grid._axes import rows_at
from ._builder import Builder, Cells, Devices, Leaves


WINDOW = 1024  # lanes sorted by cost at a time: limits how many chunks of a store are open at once
GOLDEN = (5**0.5 - 1) / 2
SHAPE = re.compile(r"\[([\d,]+)\]")
TILE = 1024  # lanes per call of a closed form on a CPU: with more, each lane costs more


class LaneQueue:
    """The lanes of a group that have yet to run, the most expensive first, as far as costs are known.

    The last lanes should be short, since other threads wait for them. Costs are predicted from finished lanes: the
    logarithm of the cost is modeled as a sum of functions of one argument each. The first lanes are spread over the
    grid, so that they inform the model. Thread-safe.

    Arguments:
        cells: values by argument, one row per lane; empty if all lanes cost the same. Then lanes run in order, and a
            call may take any number of them.
        count: number of lanes.
    """

    def __init__(self, cells: Mapping[str, Any], count: int):
        self._ranks = [np.unique(values, return_inverse=True)[1].ravel() for values in cells.values()]
        self._costs = np.full(count, np.nan)
        self._sorted_at = 0  # number of costs known at the last sort
        self._left = np.arange(count)
        self._window = self._left[:0]
        self._lock = threading.Lock()
        self._fill_window()

    def __len__(self) -> int:
        return len(self._window) + len(self._left)

    def take(self, count: int) -> np.ndarray:
        """Removes and returns up to `count` lanes."""
        with self._lock:
            found = self._window[:count]
            self._window = self._window[count:]
            if not len(self._window):
                self._fill_window()
        return found

    def learn(self, lanes: np.ndarray, costs: np.ndarray) -> None:
        """Records the costs of lanes, in steps."""
        if not self._ranks:
            return
        with self._lock:
            self._costs[lanes] = costs
            known = int(np.sum(np.isfinite(self._costs)))
            # Sort when the known costs have doubled: the number of sorts is then logarithmic in the number of lanes.
            if known and known >= 2 * self._sorted_at:
                self._sorted_at = known
                self._sort()

    def close(self) -> None:
        """Removes all lanes."""
        with self._lock:
            self._window, self._left = self._window[:0], self._left[:0]

    def _fill_window(self) -> None:
        size = WINDOW if self._ranks else len(self._left)
        self._window, self._left = self._left[:size], self._left[size:]
        if self._ranks:
            # Multiples of the golden ratio mod 1 are a low-discrepancy sequence: any number of first lanes are spread
            # over the whole window.
            self._window = self._window[np.argsort(np.arange(len(self._window)) * GOLDEN % 1, kind="stable")]
            if self._sorted_at:
                self._sort()

    def _sort(self) -> None:
        known = np.isfinite(self._costs)
        logs = np.log1p(self._costs[known])
        cost = np.zeros(len(self._window))
        for ranks in self._ranks:
            # The main effect of an argument: the mean of the logarithms at each value that was seen, interpolated
            # linearly for the others.
            levels, which = np.unique(ranks[known], return_inverse=True)
            effects = np.bincount(which, logs - logs.mean()) / np.bincount(which)
            cost += np.interp(ranks[self._window], levels, effects)
        self._window = self._window[np.argsort(-cost, kind="stable")]


Lanes = dict[str, Any]
"""The results of a program by variable of the dataset, one row per lane; `trust` is there if there is a certificate.

Arrays, or their shapes and dtypes."""


def lane_of(run: March, observed: dict[str, Array]) -> Lanes:
    """The variables of a lane, from its march and its observed values."""
    return observed | _trust(run.certificate) | _ended(run.times, run.t_end, run.steps, run.result)


def _trust(certificate: Certificate | None) -> Lanes:
    return {} if certificate is None else {"trust": certificate.trust.astype(jnp.float32)}


def _ended(times: Array, t_end: Array, steps: Array, result: RESULTS) -> Lanes:
    return {"t_saved": times, "t_end": t_end, "steps": steps, "result": result_code(result).astype(jnp.int8)}


class Origin(NamedTuple):
    """Where and how lanes ran, for the attributes of a dataset."""

    host: str
    device: str
    dynamics: str  # in one line
    group: str  # its name
    size: int  # lanes per batch

    @property
    def where(self) -> str:
        """The host and the device."""
        return f"{self.host}, {self.device}"


class Batch(NamedTuple):
    """Lanes that have run, on the host."""

    lanes: np.ndarray  # indices: in the group when they come from a runner, in the grid after that
    rows: dict[str, np.ndarray]
    wall: float  # seconds spent on them; lanes that ran together share the time by their useful steps
    useful: int = 0  # steps of lanes that had not finished, accepted or rejected; 0 for closed forms
    executed: int = 0  # all steps since the last batch, including those of finished lanes that waited for others
    origin: Origin | None = None  # None when they come from a runner

    @property
    def failed(self) -> int:
        """The number of lanes that failed."""
        return int(np.sum(self.rows["result"] >= FIRST_FAILURE))


class AbstractRunner(abc.ABC):
    """Runs lanes with one program, which is traced when the runner is made."""

    refills: ClassVar[bool]  # whether new lanes take the places of finished ones: such a runner should get many at once
    alone: ClassVar[bool] = False  # whether only one thread may run it
    out_info: Lanes  # shapes and dtypes of its results
    size: int  # lanes of a batch, on all devices
    streams: int  # best number of threads, known once it is compiled
    _compiled: Any

    def __init__(
        self,
        builder: Builder,
        observables: tuple[Observable, ...],
        ts: Float[Array, " times"],
        devices: Devices,
        lanes: int,
    ):
        self.builder, self.observables, self.ts, self.devices = builder, observables, ts, devices
        self._rows = -(-lanes // len(devices))  # the same number on each device
        self.size = self._rows * len(devices)
        self._lowered = devices.lower(*self._program())
        self.out_info, *_ = self._lowered.out_info

    @abc.abstractmethod
    def _program(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """A function of the rows of one device that returns their lanes first, and the shapes of its arguments."""

    @abc.abstractmethod
    def run(self, cells: Cells, lanes_left: LaneQueue, hand_over: Callable[[Batch], Any]) -> None:
        """Runs lanes until `lanes_left` is empty. Several threads may call it at the same time."""

    def resized(self, lanes: int) -> "AbstractRunner":
        """The same runner for batches of this many lanes, or slightly more."""
        return type(self)(self.builder, self.observables, self.ts, self.devices, lanes)

    def lane(self, leaves: Leaves) -> tuple[Problem, Any]:
        """Problem and dynamics of a lane, in a trace; raises as `js.solve` does if an observable does not apply."""
        problem, dynamics = self.builder.lane(leaves)
        for item in self.observables:
            if item.require is not None:
                with contextlib.suppress(jax.errors.JAXTypeError):  # values are traced, so some checks cannot be made
                    item.require(problem)
        return problem, dynamics

    def shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a number of cells."""
        return {name: jax.ShapeDtypeStruct((rows, *v.shape), v.dtype) for name, v in self.builder.cell.items()}

    def compile(self) -> None:
        """Compiles the program, in any thread."""
        self._compiled = self.devices.compile(self._lowered)
        # jaxlib (0.10) spreads a batch of factorizations, such as eigenvalues at several times, over XLA's threads,
        # and waits in one of them. If as many programs do so as there are threads, they deadlock.
        program = self._compiled.as_text() or ""
        alone = self.alone or _factorizes_batches(program)
        self.streams = 1 if alone else self.devices.streams

    @property
    def memory(self) -> int:
        """Bytes needed while it runs, apart from results on the host; 0 if XLA does not say."""
        plan = self._compiled.memory_analysis()
        sizes = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
        return self.streams * sum(getattr(plan, name, 0) for name in sizes)


def _factorizes_batches(program: str) -> bool:
    """True if a program of XLA passes several matrices to LAPACK in one call; a single one stays in its thread."""
    calls = (line for line in program.splitlines() if 'custom_call_target="lapack_' in line)
    shapes = (shape.split(",") for call in calls for shape in SHAPE.findall(call))
    return any(len(sizes) > 2 and set(sizes[:-2]) != {"1"} for sizes in shapes)


@final
class Fused(AbstractRunner):
    """One fused kernel for a batch of a closed form. Raises NotApplicable if the problem is of another kind."""

    refills = False

    def _program(self) -> Any:
        ts = self.ts
        rows = self._rows = min(self._rows, TILE) if self.devices.on_cpu else self._rows

        def lane(own: Any, shared: Any) -> Lanes:
            problem, closed = self.lane(Leaves(own, shared))
            require_kind(problem, closed)
            observed = observe_random_access(problem, closed, self.observables, ts.astype(problem.dtype))
            trust = _trust(closed.at(problem, ts[-1].astype(problem.dtype)).certificate)
            return observed | trust | _ended(ts, ts[-1], jnp.zeros((), int), random_access_result(problem, closed))

        def batch(cells: dict[str, Array]) -> tuple[Lanes]:
            own, shared = jax.vmap(self.builder.leaves, out_axes=Leaves(0, None), axis_size=rows)(cells)
            return (jax.vmap(lane, in_axes=(0, None), axis_size=rows)(own, shared),)

        return batch, [self.shapes(rows)]

    def run(self, cells: Cells, lanes_left: LaneQueue, hand_over: Callable[[Batch], Any]) -> None:
        size = len(self.devices) * self._rows
        while len(places := lanes_left.take(size)):
            begin = time.perf_counter()
            # The last call is padded, so that a lane's bits do not depend on how many lanes are left.
            filled = rows_at(cells, np.pad(places, (0, size - len(places)), "edge"))
            rows = rows_at(self._compiled(filled)[0], slice(len(places)))
            hand_over(Batch(places, rows, time.perf_counter() - begin))
