"""One program for each group of lanes, compiled while an earlier one runs, and run in batches that fit into memory."""

import collections
import dataclasses
import inspect
import itertools
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ..._checks import concrete, describe
from ..._core import AbstractDynamics, AbstractMarching, AbstractRandomAccess, is_key, Problem, require_end
from ..._numerics import free_memory, one_thread, out_of_memory
from ...dynamics._internal import AbstractFlow
from ...observe import Observable
from ...until import AbstractCondition
from ..grid._axes import Group, rows_at
from ._builder import Builder, cells_of, Devices, Dynamics, read_devices
from ._marches import Lockstep, Looped
from ._runner import AbstractRunner, Batch, Fused, LaneQueue, Origin


log = logging.getLogger("jaxsolve")

AHEAD = 2  # programs compiled at once while an earlier one runs: XLA compiles each on one core
# Default lanes per batch: results come often enough, and fit into memory. The lockstep number is per device: a step
# waits for its kernels to be launched, so more lanes hardly cost more.
LOOPED, STEPPED, FUSED = 64, 1024, 65536
LOOK = 0.1  # seconds between checks of whether to stop
SHARE = 0.5  # of the free memory that batches may take: a step needs working memory beyond what XLA plans


class TracedGroup(NamedTuple):
    """A traced group, ready to be compiled and run."""

    group: Group  # the traced group, or some of its lanes
    runner: AbstractRunner
    caption: str  # the dynamics of the lanes, in one line
    chosen: bool  # whether the batch size was chosen here

    @property
    def size(self) -> int:
        """The number of lanes in a batch."""
        return self.runner.size

    @property
    def origin(self) -> Origin:
        """Where and how its lanes run in this process."""
        device = self.runner.devices.all[0].device_kind
        return Origin(socket.gethostname(), device, self.caption, self.group.name, self.size)

    def parts(self, wanted: np.ndarray) -> "Iterator[TracedGroup]":
        """Splits the wanted lanes (a flag for each cell of the grid) into the parts that are best run at once."""
        lanes = np.flatnonzero(wanted[self.group.lanes])
        size = max(1, len(lanes)) if self.runner.refills else self.size
        return (self.of(lanes[start : start + size]) for start in range(0, len(lanes), size))

    def of(self, lanes: np.ndarray) -> "TracedGroup":
        """The same for some lanes only, given by their indices in the group."""
        some = self.group._replace(lanes=self.group.lanes[lanes], cells=rows_at(self.group.cells, lanes))
        return self._replace(group=some)


def trace_group(
    problem_fn: Callable[..., Problem],
    group: Group,
    dynamics: Dynamics,
    observables: tuple[Observable, ...],
    ts: Float[Array, " times"],
    batch_size: int | None,
    devices: Devices | None = None,
) -> TracedGroup:
    """The traced program of a group. None chooses the batch size, or takes the devices of this process."""
    devices = read_devices(None) if devices is None else devices
    builder = Builder(problem_fn, dynamics, group)
    chosen = builder.chosen
    require_end(ts, chosen)
    kind, total = _kind(chosen, devices), len(group.lanes)
    size = default_batch(chosen, total, devices) if batch_size is None else min(batch_size, total)
    alike = isinstance(dynamics, AbstractDynamics)
    said = caption(builder.dynamics, chosen, builder.shape) if alike else builder.name
    return TracedGroup(group, kind(builder, observables, ts, devices, size), said, batch_size is None)


def default_batch(dynamics: AbstractDynamics, lanes: int, devices: Devices) -> int:
    """The batch size for a number of lanes, if it fits into memory. `dynamics` is the one that the problem chooses."""
    most = {Looped: LOOPED, Lockstep: STEPPED * len(devices), Fused: FUSED}
    return min(lanes, most[_kind(dynamics, devices)])


def _kind(dynamics: AbstractDynamics, devices: Devices) -> Any:
    """The class that runs lanes, chosen by the kinds of dynamics and of device, never by sizes.

    On CPUs, a loop was faster in every measurement except for tens of thousands of networks with a dozen parameters
    (`docs/performance-notes.md`). A loop has no use on accelerators.
    """
    if isinstance(dynamics, AbstractRandomAccess):
        return Fused
    if not isinstance(dynamics, AbstractMarching):
        raise TypeError(f"dynamics must be marching or random access, got {describe(dynamics)}")
    return Looped if devices.on_cpu else Lockstep


def compiled_ahead(programs: Iterable[TracedGroup]) -> Iterator[TracedGroup]:
    """Yields every program in order, once it is compiled, while the next ones are being compiled.

    Programs are traced in the caller's thread, with its JAX settings; only XLA runs in other threads.
    """
    pool = ThreadPoolExecutor(AHEAD)
    try:
        begun = ((program, pool.submit(program.runner.compile)) for program in programs)
        # The program that the caller runs next, and those that compile behind it.
        waiting = collections.deque(itertools.islice(begun, AHEAD + 1))
        while waiting:
            program, compiled = waiting.popleft()
            compiled.result()
            yield program
            waiting.extend(itertools.islice(begun, 1))
    finally:  # a caller that stops does not wait for programs that it no longer needs
        pool.shutdown(wait=False, cancel_futures=True)


def caption(given: AbstractDynamics, chosen: AbstractDynamics, problem: Problem) -> str:
    """A dynamics with its settings, such as `GradientFlow(integrator=Tsit5, rtol=1e-06, atol=1e-09)`.

    Defaults are left out, except for the integrator and the tolerances that the problem chooses. The problem may be
    given in shapes only.
    """
    if type(chosen) is not type(given):  # an internal class that users do not know
        return _with_settings(given, {})
    return _with_settings(chosen, chosen.tolerances(problem) if isinstance(chosen, AbstractFlow) else {})


def _with_settings(thing: Any, known: dict[str, Any]) -> str:
    """The expression that makes an object, without arguments that have their defaults."""
    defaults = {name: p.default for name, p in inspect.signature(type(thing)).parameters.items()}
    fields = [field.name for field in dataclasses.fields(thing)]
    kept = lambda name: name in fields or isinstance(getattr(type(thing), name, None), property)
    values = {name: known.get(name, getattr(thing, name)) for name in defaults if kept(name)}
    plain = bool | int | float | str | tuple
    usual = lambda name, value: value is None or (isinstance(value, plain) and value == defaults.get(name))
    said = {name: _value(value) for name, value in values.items() if not (is_key(value) or usual(name, value))}
    name = type(thing).__name__.removeprefix("_")
    return f"{name}({', '.join(f'{key}={text}' for key, text in said.items())})" if said else name


def _value(value: Any) -> str:
    if isinstance(value, AbstractDynamics | AbstractCondition):
        return _with_settings(value, {})
    number = concrete(value) if hasattr(value, "dtype") else value
    if isinstance(number, float) or (isinstance(number, np.ndarray) and number.ndim == 0):
        return f"{float(number):g}"
    if isinstance(number, tuple):
        return f"({', '.join(map(_value, number))})"
    if number is None or isinstance(number, bool | int | str):
        return str(number)
    return getattr(number, "__name__", type(number).__name__)


class OutOfMemory(RuntimeError):
    """A batch does not fit into the memory of its devices."""


def run_group(program: TracedGroup, stop: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
    """Runs every lane of a compiled program's group, and yields lanes as they finish, in any order.

    Once `stop` is true, which is checked now and then, no more lanes begin, and running ones are finished. Raises
    OutOfMemory if a batch does not fit; lanes yielded before that are valid.
    """
    group, runner, origin = program.group, program.runner, program.origin
    if group.way is None and len(runner.builder.possible) > 1:
        raise ValueError(f"lanes of {runner.builder.name} do not share a program: part their group by `Ways` first")
    cells = cells_of(group, program.runner.builder.dynamics)
    lanes_left = LaneQueue(group.cells if runner.refills else {}, len(group.lanes))
    # A SimpleQueue may wait forever if a signal arrives at the end of a timeout (CPython 3.11).
    said: queue.Queue[Batch | BaseException | None] = queue.Queue()
    x64 = jax.config.jax_enable_x64

    def work() -> None:
        try:
            with jax.enable_x64(x64):  # the setting may be local to the caller's thread
                runner.run(cells, lanes_left, said.put)
        except BaseException as error:
            said.put(error)
        finally:
            said.put(None)

    streams = min(runner.streams, len(group.lanes))
    with one_thread():
        try:
            # Daemon threads let a second Ctrl-C end the process even while one of them is inside XLA.
            for _ in range(streams):
                threading.Thread(target=work, daemon=True).start()
            failed = None
            while streams:
                if stop():
                    lanes_left.close()
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
                    lanes_left.close()
            if failed is not None and out_of_memory(failed):
                advice = "a smaller batch_size" if program.size > 1 else "fewer samples, times or observables"
                raise OutOfMemory(f"out of memory with batches of {program.size} lanes; give {advice}") from failed
            if failed is not None:
                raise failed
        finally:
            lanes_left.close()


class ShrinkingProgram:
    """A compiled program that halves its batch size whenever a batch does not fit into memory.

    If the batch size was chosen automatically, it takes at most half of the free memory from the start. Thread-safe.
    """

    def __init__(self, program: TracedGroup):
        self._lock = threading.Lock()
        self.program = program  # the current one
        free = free_memory()
        while program.chosen and free is not None and (needed := self.program.runner.memory) > free * SHARE:
            # Memory is about proportional to the number of lanes. Halving at least makes the loop terminate.
            size = max(1, min(self.program.size // 2, int(self.program.size * free * SHARE / needed)))
            if not self._shrink(size, log.info, f"batches of %d lanes would take {needed >> 10} kB: %d instead"):
                return

    def run(self, wanted: np.ndarray, stop: Callable[[], bool] = lambda: False) -> Iterator[Batch]:
        """Runs the wanted lanes of the group (a flag for each cell of the grid), as `run_group` does.

        Logs the lane efficiency: the share of steps made for lanes that had not finished.
        """
        wanted = wanted.copy()
        begin, lanes, useful, executed = time.perf_counter(), 0, 0, 0
        while wanted[self.program.group.lanes].any() and not stop():
            program = self.program
            try:
                for part in program.parts(wanted):
                    for batch in run_group(part, stop):
                        wanted[batch.lanes] = False
                        lanes, useful = lanes + len(batch.lanes), useful + batch.useful
                        executed += batch.executed
                        yield batch
                    if stop():
                        break
            except OutOfMemory:
                with self._lock:
                    said = "out of memory with batches of %d lanes: continuing with %d"
                    # If another thread has shrunk the program meanwhile, this one only tries again.
                    if program is self.program and not self._shrink(max(1, program.size // 2), log.warning, said):
                        raise
        if executed:
            seconds, share = time.perf_counter() - begin, 100 * useful / executed
            said = "%s: %d lanes in %.3g s, lane efficiency %.0f %%"
            log.info(said, self.program.group.static, lanes, seconds, share)

    def _shrink(self, lanes: int, tell: Callable[..., None], said: str) -> bool:
        """Reduces the batch to this many lanes. False if it cannot shrink: there is one lane per device already."""
        before, smaller = self.program.size, self.program._replace(runner=self.program.runner.resized(lanes))
        if smaller.size < before:
            tell(said, before, smaller.size)
            smaller.runner.compile()
            self.program = smaller
        return smaller.size < before
