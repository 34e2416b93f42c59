"""One program for each group of lanes: traced, described in a line, and compiled while an earlier one runs."""

import collections
import dataclasses
import inspect
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ..._checks import concrete, describe
from ..._dynamics import AbstractDynamics, AbstractMarching, AbstractRandomAccess, is_key
from ..._problem import Problem
from ..._times import require_end
from ...dynamics import AbstractFlow
from ...observe import Observable
from ...until import AbstractCondition
from ..grid._axes import Group
from ._builder import Builder, Devices, Dynamics, read_devices
from ._marches import Lockstep, Looped
from ._runner import AbstractRunner, Fused, Origin


AHEAD = 2  # programs compiled at once, while an earlier one runs: XLA compiles one of them on one core
LOOPED, FUSED = 64, 65536  # lanes of a batch, where nobody chooses: results come often enough, and fit into memory


class Program(NamedTuple):
    """A group, traced: what is left is to compile and run it."""

    group: Group  # any lanes of the one that was traced
    runner: AbstractRunner
    caption: str  # what the lanes do, in a line
    chosen: bool  # whether the batch size was chosen here

    @property
    def size(self) -> int:
        """Lanes of a batch."""
        return self.runner.size

    @property
    def origin(self) -> Origin:
        """Where and how its lanes run in this process."""
        device = self.runner.devices.all[0].device_kind
        return Origin(socket.gethostname(), device, self.caption, self.group.name, self.size)

    def resized(self, lanes: int) -> "Program":
        """Traces it for another batch size."""
        return self._replace(runner=self.runner.resized(lanes))

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
    size = default_batch(chosen, total) if batch_size is None else min(batch_size, total)
    alike = isinstance(dynamics, AbstractDynamics)
    said = caption(builder.dynamics, chosen, builder.shape) if alike else chosen.name
    return Program(group, kind(builder, observables, ts, devices, size), said, batch_size is None)


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


def caption(given: AbstractDynamics, chosen: AbstractDynamics, problem: Problem) -> str:
    """A dynamics with its settings, such as `GradientFlow(integrator=Tsit5, rtol=1e-06, atol=1e-09)`.

    What is left to its defaults is left out, but for the integrator and tolerances that the problem (of which shapes
    will do) chooses.
    """
    if type(chosen) is not type(given):  # users do not know what stands in for it
        return _with_settings(given, {})
    return _with_settings(chosen, chosen.tolerances(problem) if isinstance(chosen, AbstractFlow) else {})


def _with_settings(thing: Any, known: dict[str, Any]) -> str:
    """A thing as it would be made again, but for what its defaults say."""
    defaults = {name: p.default for name, p in inspect.signature(type(thing)).parameters.items()}
    fields = [field.name for field in dataclasses.fields(thing)]
    values = {name: known.get(name, getattr(thing, name)) for name in sorted(fields, key=[*defaults, *fields].index)}
    said = {name: _value(value) for name, value in values.items() if not _is_left_out(value, defaults.get(name))}
    name = type(thing).__name__.removeprefix("_")
    return f"{name}({', '.join(f'{key}={text}' for key, text in said.items())})" if said else name


def _is_left_out(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | tuple)
    return value is None or is_key(value) or (plain and value == default)


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
