"""Running the lanes of a group in one compilation."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.experimental
import numpy as np
from jaxtyping import Array, Float

from .. import kernels
from .._checks import describe
from .._dynamics import AbstractDynamics, AbstractMarching, AbstractRandomAccess, resolve
from .._problem import Problem
from .._solve import read_times
from ..observe import Observable
from ._axes import Group
from ._cells import Builder
from ._cost import Waiting
from ._devices import Devices, read_devices
from ._fused import LoweredFused
from ._lanes import Lanes as Lanes, Timed as Timed
from ._looped import LoweredLooped
from ._runner import AbstractLowered, AbstractRunner, Finished
from ._stepped import LoweredStepped


log = logging.getLogger("jaxsolve")

LOOK = 0.1  # seconds between two looks at whether to stop
SHARE = 0.5  # of the free memory that batches may take


class OutOfMemory(RuntimeError):
    """A batch does not fit into the memory of its devices."""


class Program(NamedTuple):
    """A group, traced: what is left is to compile and run it.

    Attributes:
        group: any lanes of the group that was traced.
        size: lanes per batch.
        lowered: what is compiled.
        chosen: whether the batch size was chosen here.
        resized: traces it for another batch size.
    """

    group: Group
    size: int
    lowered: AbstractLowered
    chosen: bool
    resized: Callable[[int], Any]

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
        return self._replace(group=Group(self.group.static, self.group.lanes[lanes], cells))


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
    dynamics = resolve(dynamics, builder.shape)
    read_times(ts, dynamics, ts.dtype)
    kind = _kind(dynamics, devices)
    total = len(group.lanes)
    size = default_batch(dynamics, total) if batch_size is None else min(batch_size, total)
    size = len(devices) * -(-size // len(devices))
    cell = {name: np.asarray(values)[0] for name, values in group.cells.items()}
    lowered = kind(builder, dynamics, observables, ts, devices, cell, size)
    resized = lambda size: trace_group(problem_fn, group, dynamics, observables, ts, size, devices)
    return Program(group, size, lowered, batch_size is None, resized)


def default_batch(dynamics: AbstractDynamics, lanes: int) -> int:
    """Lanes run together, if so many fit into memory."""
    return min(lanes, 64 if isinstance(dynamics, AbstractMarching) else 65536)


def _kind(dynamics: AbstractDynamics, devices: Devices) -> Any:
    """How lanes run: by the kind of dynamics and of device, never by numbers.

    On processors a loop has won wherever it was measured, but for tens of thousands of networks of a dozen parameters
    (`docs/performance-sweeps.md`); accelerators have no use for a loop.
    """
    if isinstance(dynamics, AbstractRandomAccess):
        return LoweredFused
    if not isinstance(dynamics, AbstractMarching):
        raise TypeError(f"dynamics must be marching or random access, got {describe(dynamics)}")
    return LoweredLooped if devices.on_cpu else LoweredStepped


def run_group(
    program: Program,
    compiled: AbstractRunner,
    report: Callable[[int], Any],
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Timed]:
    """Runs every lane of a program's group, and yields lanes as they finish, in any order.

    Arguments:
        program: as traced, or with fewer lanes.
        compiled: its programs.
        report: called with the number of lanes that have finished.
        stop: looked at now and then: once it is true no lane begins any more, and those that run are finished.

    Raises:
        OutOfMemory: a batch does not fit. Lanes that have been yielded are finished all the same.
    """
    group = program.group
    cells = {name: np.asarray(values) for name, values in group.cells.items()}
    waiting = Waiting(cells if program.lowered.refills else {}, len(group.lanes))
    said: queue.SimpleQueue[Finished | BaseException | None] = queue.SimpleQueue()
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
        # Threads that nobody waits for: a second Ctrl-C ends the process while one is inside of XLA.
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
            if isinstance(item, Finished):
                yield Timed(group.lanes[item.places], item.rows, item.wall, item.useful, item.executed)
                report(len(item.places))
            elif item is None:
                streams -= 1
            else:
                failed = failed or item
                waiting.close()
        if failed is not None:
            raise _explained(failed, program.size)
    finally:
        waiting.close()


def fitted(
    program: Program, compiled: AbstractRunner, expect: Callable[[Program], Any]
) -> tuple[Program, AbstractRunner]:
    """The program and its executables, or those for smaller batches if its size was chosen and is too large.

    Arguments:
        program, compiled: as traced, and compiled.
        expect: called with a new program.
    """
    free = kernels.free_memory()
    while program.chosen and free is not None and compiled.memory > free * SHARE and program.size > 1:
        size = min(program.size // 2, int(program.size * free * SHARE / compiled.memory))
        log.info("batches of %d lanes would take %d kB: %d instead", program.size, compiled.memory >> 10, max(1, size))
        program = program.resized(max(1, size))._replace(chosen=True)
        compiled = program.lowered.compile()
        expect(program)
    return program, compiled


def halved(program: Program, error: OutOfMemory, expect: Callable[[Program], Any]) -> tuple[Program, AbstractRunner]:
    """A program for half as many lanes at once, compiled, after one that ran out of memory.

    Raises:
        OutOfMemory: a batch is a single lane already.
    """
    if program.size == 1:
        raise error
    log.warning("out of memory with batches of %d lanes: going on with %d", program.size, program.size // 2)
    smaller = program.resized(program.size // 2)
    expect(smaller)
    return smaller, smaller.lowered.compile()


class Tally:
    """Counts the steps of a program, and tells the log."""

    def __init__(self, program: Program):
        self._what = program.group.static
        self._begin = time.perf_counter()
        self._lanes = self._useful = self._executed = 0

    def add(self, done: Timed) -> None:
        """Counts some lanes."""
        self._lanes += len(done.lanes)
        self._useful += done.useful
        self._executed += done.executed

    def report(self) -> None:
        """Says how many of the steps that were made were of lanes that had not finished: the lane efficiency."""
        if self._executed:
            seconds, share = time.perf_counter() - self._begin, 100 * self._useful / self._executed
            log.info("%s: %d lanes in %.3g s, lane efficiency %.0f %%", self._what, self._lanes, seconds, share)


def _precision(x64: bool) -> Any:
    # JAX before 0.8 has it among the experiments.
    setting: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    return setting.enable_x64(x64)


def _explained(error: BaseException, size: int) -> BaseException:
    if not (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return error
    advice = "give a smaller batch_size" if size > 1 else "give fewer samples, times or observables"
    found = OutOfMemory(f"out of memory with batches of {size} lanes; {advice}")
    found.__cause__ = error
    return found
