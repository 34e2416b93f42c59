"""A sweep before it runs: its arguments read and checked, its lanes counted, its cost estimated."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._checks import describe, require_size
from ..._dynamics import AbstractDynamics
from ..._problem import Problem
from ..._times import read_times, require_end
from ...observe import check_observables, loss, Observable
from ..grid._axes import Group, groups, read_axes, Zip
from ..running._builder import Devices, Dynamics, dynamics_of, require_arguments, taken
from ..running._execute import Program, trace_group
from ..running._variables import LANE_VARIABLES, require_dataset
from . import _outline


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A sweep of which nothing has run. Made by `plan`.

    Attributes:
        problem_fn: makes the problem of a cell.
        axes: of the grid.
        dynamics, observables, batch_size: as given to the sweep.
        ts: the times to save at.
        sizes: by name of a group, the lanes of a batch that a store has noted; None chooses.
    """

    problem_fn: Callable[..., Problem]
    axes: tuple[Zip, ...]
    dynamics: Dynamics
    observables: tuple[Observable, ...]
    ts: np.ndarray
    batch_size: int | None
    sizes: Mapping[str, int | None] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        count = _outline.count
        return f"Plan({count(self.lanes, 'lane')}, {count(len(self.groups), 'compilation')}: {self.grid})"

    @property
    def grid(self) -> str:
        """The axes and their lengths, as text."""
        return " x ".join(f"{axis.dim} {len(axis)}" for axis in self.axes)

    @property
    def lanes(self) -> int:
        """Cells of the grid."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def name(self) -> str:
        """What messages call the dynamics; of a function of axes, its name."""
        if isinstance(self.dynamics, AbstractDynamics):
            return self.dynamics.name
        names = [item.name for axis in self.axes for item in axis.arguments]
        return f"dynamics of {', '.join(taken(self.dynamics, names))}"

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """The lanes of equal static arguments, which share a compilation."""
        return tuple(groups(self.axes))

    @functools.cached_property
    def times(self) -> Float[Array, " times"]:
        """The times to save at, as an array of the default float."""
        return jnp.asarray(self.ts, jnp.result_type(float))

    def size_of(self, group: Group) -> int | None:
        """The lanes of a group to run together; None chooses."""
        return self.sizes.get(group.name) if self.batch_size is None else self.batch_size

    def trace(self, group: Group, devices: Devices | None = None, size: int | None = None) -> Program:
        """Traces the program of a group: for the devices of this process and the plan's size, if none are given."""
        size = self.size_of(group) if size is None else size
        program = trace_group(self.problem_fn, group, self.dynamics, self.observables, self.times, size, devices)
        require_dataset(self.observables, program.runner.out_info)
        return program

    def check(self, among: Sequence[Group]) -> None:
        """Raises TypeError where axes are not the arguments of problem_fn, ValueError where groups see other shapes."""
        names = [item.name for axis in self.axes for item in axis.arguments]
        if not isinstance(self.dynamics, AbstractDynamics):  # axes of the dynamics alone are none of problem_fn
            mine, others = taken(self.problem_fn, names), taken(self.dynamics, names)
            names = [name for name in names if name in mine or name not in others]
        require_arguments(self.problem_fn, names, "problem_fn")
        if len(among) < 2:
            return
        found = [_outline.Outline(self, group).observed for group in among]
        for name in found[0]:
            infos = [shapes[name] for shapes in found]
            for what, kinds in ("shape", [i.shape for i in infos]), ("dtype", [str(i.dtype) for i in infos]):
                if len(set(kinds)) > 1:
                    raise ValueError(
                        f"observable {name!r} has {what}s {sorted(set(kinds))} along the axes {_guilty(among, kinds)}; "
                        f"observe something whose {what} does not depend on them, or sweep them one at a time"
                    )

    def describe(self) -> str:
        """Lanes, compilations, and estimates of memory and cost, as text. Compiles and runs nothing.

        The memory is that of a batch on the devices of this process: parameters and states of the lanes that march at
        the same time (on processors one per core, on accelerators all), and what is observed of all. What a step works
        with (for `FunctionSpace` some matrices of n c by n c) comes on top.

        The cost is in floating-point operations: of all steps of a `Descent` and of a closed form; of one gradient of
        the loss where only the run shows how many steps there are. XLA counts them, all but those of eigenvectors and
        the like.
        """
        return _outline.describe(self)


def plan(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    dynamics: AbstractDynamics | Callable[..., AbstractDynamics],
    ts: Any,
    *,
    observe: Observable | Sequence[Observable] = (loss(),),
    batch_size: int | None = None,
) -> Plan:
    """Checks a sweep and says what it will take, before anything is compiled or run.

    `print(plan(...).describe())` shows lanes, compilations, memory and cost.

    Arguments:
        problem_fn, axes, dynamics, ts, observe, batch_size: as for `sweep`.

    Raises:
        ValueError, TypeError: as `sweep`, for all that is wrong with these arguments, or with the shapes of what
            problem_fn and the observables return for any combination of static arguments.
        NotApplicable: the dynamics is a closed form for another kind of problem.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = lambda target: js.Problem(net, jnp.eye(2), target * jnp.ones((2, 1)))
        >>> js.plan(problem, {"target": [0.5, 1.0, 2.0]}, js.FrozenKernel(), [0.0, 1.0])
        Plan(3 lanes, 1 compilation: target 3)
    """
    made = read_plan(problem_fn, axes, dynamics, ts, observe=observe, batch_size=batch_size)
    made.check(made.groups)
    if len(made.groups) == 1:
        _outline.Outline(made, made.groups[0])
    return made


def read_plan(
    problem_fn: Any, axes: Any, dynamics: Any, ts: Any, *, observe: Any, batch_size: int | None = None
) -> Plan:
    """As `plan`, without looking at problem_fn."""
    if not callable(problem_fn):
        raise TypeError(f"problem_fn must return the problem of a cell, got {describe(problem_fn)}")
    if not isinstance(dynamics, AbstractDynamics) and (isinstance(dynamics, type) or not callable(dynamics)):
        raise TypeError(
            f"dynamics must be such as GradientFlow(), or a function of axes that returns one, got {describe(dynamics)}"
        )
    fn: Callable[..., Any] = problem_fn
    moves: Any = dynamics
    grid = read_axes(axes)
    observables, times = (), jnp.atleast_1d(read_times(ts, jnp.result_type(float)))
    for first in [moves] if isinstance(moves, AbstractDynamics) else [dynamics_of(moves, g) for g in groups(grid)]:
        observables = check_observables(observe, first)
        require_end(times, first)
    _check_names(grid, observables)
    if batch_size is not None:
        batch_size = require_size(batch_size, "batch_size")
    return Plan(fn, grid, moves, observables, np.asarray(times), batch_size)


def _check_names(grid: tuple[Zip, ...], observables: Sequence[Observable]) -> None:
    """Raises ValueError for names that would mean two things in the dataset."""
    names = {argument.name for axis in grid for argument in axis.arguments} | {axis.dim for axis in grid}
    observed, dims = {item.name for item in observables}, {d for item in observables for d in item.dims}
    taken = {"t", *LANE_VARIABLES} | observed | dims
    for item in observables:
        if item.name in {"t", *LANE_VARIABLES} or item.name in dims:
            raise ValueError(f"an observable may not be called {item.name!r}: the dataset has that; rename it")
    if names & taken:
        raise ValueError(
            f"axes may not be called {sorted(names & taken)}: the dataset has something else of that name; rename the "
            "arguments of problem_fn"
        )


def _guilty(among: Sequence[Group], kinds: Sequence[Any]) -> list[str]:
    """The static arguments that decide a kind: those that alone tell two groups of other kinds apart."""
    found = set[str]()
    for i, first in enumerate(among):
        for j, second in enumerate(among[:i]):
            if kinds[i] != kinds[j]:
                differ = [name for name, value in first.static.items() if value != second.static[name]]
                found |= set(differ) if len(differ) == 1 else set()
    return [name for name in among[0].static if name in found or not found]
