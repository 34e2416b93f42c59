"""One program for each group of lanes: traced, and compiled while an earlier one runs."""

import collections
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ..._checks import describe
from ..._dynamics import AbstractDynamics, AbstractMarching, AbstractRandomAccess
from ..._problem import Problem
from ..._times import require_end
from ...observe import Observable
from ..grid._axes import Group
from ._builder import Builder, cells_of, Dynamics, Setup
from ._caption import caption
from ._devices import Devices, read_devices
from ._marches import Lockstep, Looped
from ._runner import AbstractRunner, Fused, Origin


AHEAD = 2  # programs compiled at once, while an earlier one runs: XLA compiles one of them on one core
LOOPED, FUSED = 64, 65536  # lanes of a batch, where nobody chooses: results come often enough, and fit into memory


class Program(NamedTuple):
    """A group, traced: what is left is to compile and run it."""

    group: Group  # any lanes of the one that was traced
    setup: Setup
    runner: AbstractRunner
    caption: str  # what the lanes do, in a line
    chosen: bool  # whether the batch size was chosen here

    @property
    def size(self) -> int:
        """Lanes of a batch."""
        return self.setup.size

    @property
    def origin(self) -> Origin:
        """Where and how its lanes run in this process."""
        device = self.setup.devices.all[0].device_kind
        return Origin(socket.gethostname(), device, self.caption, self.group.name, self.size)

    def resized(self, lanes: int) -> "Program":
        """Traces it for another batch size."""
        setup = self.setup.of_size(lanes)
        return self._replace(setup=setup, runner=type(self.runner)(setup))

    def parts(self, wanted: np.ndarray) -> "Iterator[Program]":
        """Cuts the lanes that are wanted, a flag for each cell of the grid, into parts that are best run at once."""
        lanes = np.flatnonzero(wanted[self.group.lanes])
        size = max(1, len(lanes)) if self.runner.refills else self.size
        return (self.of(lanes[start : start + size]) for start in range(0, len(lanes), size))

    def of(self, lanes: np.ndarray) -> "Program":
        """The same for some lanes only, given by their places in the group."""
        return self._replace(group=self.group.of(lanes))


def trace_group(
    problem_fn: Callable[..., Problem],
    group: Group,
    dynamics: Dynamics,
    observables: tuple[Observable, ...],
    ts: Float[Array, " times"],
    batch_size: int | None,
    devices: Devices | None = None,
) -> Program:
    """Traces the program of a group; a batch size of None chooses, devices of None are those of this process."""
    devices = read_devices(None) if devices is None else devices
    builder = Builder(problem_fn, dynamics, group)
    chosen = builder.chosen
    require_end(ts, chosen)
    kind, total = _kind(chosen, devices), len(group.lanes)
    cell = {name: values[0] for name, values in cells_of(group, chosen).items()}
    size = default_batch(chosen, total) if batch_size is None else min(batch_size, total)
    setup = Setup(builder, observables, ts, devices, 0, cell).of_size(size)
    alike = isinstance(dynamics, AbstractDynamics)
    said = caption(builder.dynamics, chosen, builder.shape) if alike else chosen.name
    return Program(group, setup, kind(setup), said, batch_size is None)


def default_batch(dynamics: AbstractDynamics, lanes: int) -> int:
    """Lanes run together of so many, if they fit into memory. The dynamics is the one that the problem chooses."""
    return min(lanes, LOOPED if isinstance(dynamics, AbstractMarching) else FUSED)


def _kind(dynamics: AbstractDynamics, devices: Devices) -> Any:
    """How lanes run: by the kind of dynamics and of device, never by numbers.

    On processors a loop has won wherever it was measured, but for tens of thousands of networks of a dozen parameters
    (`docs/performance-notes.md`); accelerators have no use for a loop.
    """
    if isinstance(dynamics, AbstractRandomAccess):
        return Fused
    if not isinstance(dynamics, AbstractMarching):
        raise TypeError(f"dynamics must be marching or random access, got {describe(dynamics)}")
    return Looped if devices.on_cpu else Lockstep


def compiled_ahead(programs: Iterable[Program], check: Callable[[], None] = lambda: None) -> Iterator[Program]:
    """Yields every program compiled, in order, while the next ones are being compiled.

    Programs are traced in the caller's thread, whose JAX settings they follow; only XLA works in others. `check` is
    called whenever one has been traced.
    """
    waiting: collections.deque[tuple[Program, Future[Any]]] = collections.deque()

    def first() -> Program:
        program, future = waiting.popleft()
        future.result()
        return program

    with ThreadPoolExecutor(AHEAD) as pool:
        for program in programs:
            check()
            waiting.append((program, pool.submit(program.runner.compile)))
            if len(waiting) > AHEAD:
                yield first()
        while waiting:
            yield first()
