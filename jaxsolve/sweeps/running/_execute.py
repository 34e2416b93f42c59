"""Running the lanes of a group in one compilation."""

import collections
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.experimental
import numpy as np
from jaxtyping import Array, Float

from ..._checks import describe
from ..._dynamics import AbstractDynamics, AbstractMarching, AbstractRandomAccess, resolve
from ..._memory import out_of_memory
from ..._problem import Problem
from ..._solve import read_times
from ...observe import Observable
from ..grid._axes import Group
from ._builder import Builder, cells_of, Setup
from ._caption import caption
from ._devices import Devices, read_devices
from .programs._base import AbstractLowered, AbstractRunner, Batch, Origin
from .programs._fused import LoweredFused
from .programs._lockstep import LoweredLockstep
from .programs._looped import LoweredLooped
from .programs._queue import Waiting


LOOK = 0.1  # seconds between two looks at whether to stop
AHEAD = 2  # programs compiled at once, while an earlier one runs: XLA compiles one of them on one core
LOOPED, FUSED = 64, 65536  # lanes of a batch, where nobody chooses: results come often enough, and fit into memory


class OutOfMemory(RuntimeError):
    """A batch does not fit into the memory of its devices."""


class Program(NamedTuple):
    """A group, traced: what is left is to compile and run it.

    Attributes:
        group: any lanes of the group that was traced.
        setup: what they do, and where.
        lowered: what is compiled.
        caption: what they do, in a line.
        chosen: whether the batch size was chosen here.
        resized: traces it for another batch size.
    """

    group: Group
    setup: Setup
    lowered: AbstractLowered
    caption: str
    chosen: bool
    resized: Callable[[int], Any]

    @property
    def size(self) -> int:
        """Lanes of a batch."""
        return self.setup.size

    @property
    def origin(self) -> Origin:
        """Where and how its lanes run in this process."""
        device = self.setup.devices.all[0].device_kind
        return Origin(socket.gethostname(), device, self.caption, self.group.name, self.size)

    def parts(self, wanted: np.ndarray) -> "Iterator[Program]":
        """Cuts the lanes that are wanted, a flag for each cell of the grid, into parts that are best run at once."""
        lanes = np.flatnonzero(wanted[self.group.lanes])
        size = max(1, len(lanes)) if self.lowered.refills else self.size
        return (self.of(lanes[start : start + size]) for start in range(0, len(lanes), size))

    def of(self, lanes: np.ndarray) -> "Program":
        """The same for some lanes only.

        Arguments:
            lanes: their places in the group.
        """
        cells: dict[str, Any] = {name: np.asarray(values)[lanes] for name, values in self.group.cells.items()}
        return self._replace(group=self.group.with_lanes(self.group.lanes[lanes], cells))


def trace_group(
    problem_fn: Callable[..., Problem],
    group: Group,
    dynamics: AbstractDynamics,
    observables: tuple[Observable, ...],
    ts: Float[Array, " times"],
    batch_size: int | None,
    devices: Devices | None = None,
) -> Program:
    """Traces the programs that run a group.

    Arguments:
        problem_fn, dynamics, observables, ts: of the sweep.
        group: all of its lanes.
        batch_size: lanes at once; None chooses.
        devices: None takes those of this process.
    """
    devices = read_devices(None) if devices is None else devices
    builder = Builder(problem_fn, group)
    chosen = resolve(dynamics, builder.shape)
    read_times(ts, chosen, ts.dtype)
    kind = _kind(chosen, devices)
    said = caption(dynamics, chosen, builder.shape)
    cell = {name: values[0] for name, values in cells_of(group, chosen).items()}

    def of_size(lanes: int) -> Program:
        size = len(devices) * -(-lanes // len(devices))
        setup = Setup(builder, chosen, observables, ts, devices, size, cell)
        return Program(group, setup, kind(setup), said, False, of_size)

    total = len(group.lanes)
    size = default_batch(chosen, total) if batch_size is None else min(batch_size, total)
    return of_size(size)._replace(chosen=batch_size is None)


def default_batch(dynamics: AbstractDynamics, lanes: int) -> int:
    """Lanes run together, if so many fit into memory.

    Arguments:
        dynamics: that of the problem, where the problem chooses.
        lanes: of the group.
    """
    return min(lanes, LOOPED if isinstance(dynamics, AbstractMarching) else FUSED)


def compiled_ahead(
    programs: Iterable[Program], check: Callable[[], None] = lambda: None
) -> Iterator[tuple[Program, AbstractRunner]]:
    """Yields every program with its executable, in order, while the next ones are being compiled.

    Programs are traced in the caller's thread, whose JAX settings they follow; only XLA works in others.

    Arguments:
        programs: traced one by one.
        check: called whenever one has been traced.
    """
    waiting: collections.deque[tuple[Program, Future[Any]]] = collections.deque()

    def first() -> tuple[Program, AbstractRunner]:
        program, future = waiting.popleft()
        return program, future.result()

    with ThreadPoolExecutor(AHEAD) as pool:
        for program in programs:
            check()
            waiting.append((program, pool.submit(program.lowered.compile)))
            if len(waiting) > AHEAD:
                yield first()
        while waiting:
            yield first()


def _kind(dynamics: AbstractDynamics, devices: Devices) -> Any:
    """How lanes run: by the kind of dynamics and of device, never by numbers.

    On processors a loop has won wherever it was measured, but for tens of thousands of networks of a dozen parameters
    (`docs/performance-sweeps.md`); accelerators have no use for a loop.
    """
    if isinstance(dynamics, AbstractRandomAccess):
        return LoweredFused
    if not isinstance(dynamics, AbstractMarching):
        raise TypeError(f"dynamics must be marching or random access, got {describe(dynamics)}")
    return LoweredLooped if devices.on_cpu else LoweredLockstep


def run_group(
    program: Program,
    compiled: AbstractRunner,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Batch]:
    """Runs every lane of a program's group, and yields lanes as they finish, in any order.

    Arguments:
        program: as traced, or with fewer lanes.
        compiled: its programs.
        stop: looked at now and then: once it is true no lane begins any more, and those that run are finished.

    Raises:
        OutOfMemory: a batch does not fit. Lanes that have been yielded are finished all the same.
    """
    group, origin = program.group, program.origin
    cells = cells_of(group, program.setup.dynamics)
    known = group.cells if program.lowered.refills else {}
    waiting = Waiting({name: cells[name] for name in known}, len(group.lanes))
    # A SimpleQueue may wait for ever when a signal comes at the end of a timeout (CPython 3.11).
    said: queue.Queue[Batch | BaseException | None] = queue.Queue()
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]

    def work() -> None:
        try:
            with _precision(x64):  # which may be a setting of the caller's thread
                compiled.run(cells, waiting, said.put)
        except BaseException as error:
            said.put(error)
        finally:
            said.put(None)

    streams = min(compiled.streams, len(group.lanes))
    try:
        # Daemon threads: a second Ctrl-C ends the process even while one of them is inside XLA.
        for _ in range(streams):
            threading.Thread(target=work, daemon=True).start()
        failed = None
        while streams:
            if stop():
                waiting.close()
            try:
                item = said.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(item, Batch):
                yield item._replace(lanes=group.lanes[item.lanes], origin=origin)
            elif item is None:
                streams -= 1
            else:
                failed = failed or item
                waiting.close()
        if failed is not None:
            raise _explained(failed, program.size)
    finally:
        waiting.close()


def _precision(x64: bool) -> Any:
    # JAX before 0.8 has it among the experiments.
    setting: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    return setting.enable_x64(x64)


def _explained(error: BaseException, size: int) -> BaseException:
    if not out_of_memory(error):
        return error
    advice = "give a smaller batch_size" if size > 1 else "give fewer samples, times or observables"
    found = OutOfMemory(f"out of memory with batches of {size} lanes; {advice}")
    found.__cause__ = error
    return found
