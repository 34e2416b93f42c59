"""A sweep before it runs: its arguments are checked, its lanes counted, and their memory and cost estimated."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._checks import concrete, describe, require_settings, require_size
from ..._core import AbstractDynamics, AbstractRandomAccess, Problem, Quantity, read_times, require_end, View
from ..._numerics import readable
from ..._programs import flop
from ..._solve import observe_march, observe_random_access, require_kind
from ...dynamics import Descent
from ...observe import loss, Observable
from ...observe._internal import check_observables
from ..grid._axes import Group, groups, label, read_axes, Zip
from ..running._builder import Builder, Devices, Dynamics, dynamics_of, read_devices, require_arguments, taken
from ..running._execute import default_batch, trace_group, TracedGroup
from ..running._variables import require_dataset, require_own_names
from ..running._ways import Ways


SHOWN = 12  # groups in a description


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A sweep that has not run yet, made by `plan`.

    Attributes:
        problem_fn: returns the problem of a cell.
        axes: the axes of the grid.
        dynamics, observables, batch_size: as given to the sweep.
        ts: the times to save at, in the default float dtype.
        sizes: the batch size that a store has recorded for each group, by the group's name; None chooses.
    """

    problem_fn: Callable[..., Problem]
    axes: tuple[Zip, ...]
    dynamics: Dynamics
    observables: tuple[Observable, ...]
    ts: Float[Array, " times"]
    batch_size: int | None
    sizes: Mapping[str, int | None] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Plan({_count(self.lanes, 'lane')}, {_count(len(self.groups), 'compilation')}: {self.grid})"

    @property
    def grid(self) -> str:
        """The axes and their lengths, as text."""
        return " x ".join(f"{axis.dim} {len(axis)}" for axis in self.axes)

    @property
    def lanes(self) -> int:
        """The number of cells of the grid."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def name(self) -> str:
        """The name of the dynamics in messages; a function of axes is named after the axes that it takes."""
        if isinstance(self.dynamics, AbstractDynamics):
            return self.dynamics.name
        names = [item.name for axis in self.axes for item in axis.arguments]
        return f"dynamics of {', '.join(taken(self.dynamics, names))}"

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of lanes with equal static arguments, which share a compilation."""
        return tuple(groups(self.axes))

    def size_of(self, group: Group) -> int | None:
        """The batch size of a group; None chooses."""
        return self.sizes.get(group.name) if self.batch_size is None else self.batch_size

    def trace(self, group: Group, devices: Devices | None = None, size: int | None = None) -> TracedGroup:
        """The traced program of a group, by default for the devices of this process and the plan's batch size.

        If lanes may choose among several integrators and the group has no `way`, it shows shapes but cannot run.
        """
        size = self.size_of(group) if size is None else size
        program = trace_group(self.problem_fn, group, self.dynamics, self.observables, self.ts, size, devices)
        require_dataset(self.observables, program.runner.out_info)
        return program

    def ways(self, group: Group, devices: Devices | None = None) -> Ways:
        """The splitter of a group into parts whose lanes share an integrator, by default on this process's devices."""
        devices = read_devices(None) if devices is None else devices
        return Ways(Builder(self.problem_fn, self.dynamics, group), group, self.ts, devices)

    def check(self) -> None:
        """Raises TypeError if axes are not arguments of problem_fn, ValueError if observed shapes differ by group."""
        names = [item.name for axis in self.axes for item in axis.arguments]
        if not isinstance(self.dynamics, AbstractDynamics):  # problem_fn does not get axes of the dynamics alone
            mine, others = taken(self.problem_fn, names), taken(self.dynamics, names)
            names = [name for name in names if name in mine or name not in others]
        require_arguments(self.problem_fn, names, "problem_fn")
        if len(self.groups) < 2:
            return
        found = [LaneOutline(self, group).observed for group in self.groups]
        for name in found[0]:
            infos = [shapes[name] for shapes in found]
            for what, kinds in ("shape", [i.shape for i in infos]), ("dtype", [str(i.dtype) for i in infos]):
                if len(set(kinds)) > 1:
                    raise ValueError(
                        f"observable {name!r} has {what}s {sorted(set(kinds))} along the axes "
                        f"{_guilty(self.groups, kinds)}; observe something whose {what} does not depend on them, or "
                        "sweep them one at a time"
                    )

    def describe(self) -> str:
        """Lanes, compilations, and estimates of memory and cost, as text. Compiles and runs nothing.

        The memory is for a batch on the devices of this process: parameters and states of the lanes that march at the
        same time (one per core on CPUs, all on accelerators), and the observed values of all lanes. The working memory
        of a step (for `FunctionSpace`, some matrices of n c by n c) comes on top.

        The cost is in floating-point operations: of all steps of a `Descent`, of a closed form as a whole, or of one
        gradient of the loss if only the run shows how many steps there are. XLA counts them, except for eigenvectors
        and the like.
        """
        arguments, ts = [argument for axis in self.axes for argument in axis.arguments], np.asarray(self.ts)
        traced, static = (", ".join(item.name for item in arguments if item.traced == which) for which in (True, False))
        lines = [
            f"{_count(self.lanes, 'lane')}: {self.grid}",
            f"traced: {traced or 'none'}; static: {static or 'none'}",
            f"{self.name} at {_count(len(ts), 'time')} from {ts[0]:g} to {ts[-1]:g}, "
            f"observing {', '.join(item.name for item in self.observables)}",
            _count(len(self.groups), "compilation"),
        ]
        largest, observed, devices = 0, 0, read_devices(None)
        for index, group in enumerate(self.groups):
            found, lanes = LaneOutline(self, group), len(group.lanes)
            size = min(self.batch_size, lanes) if self.batch_size else default_batch(found.dynamics, lanes, devices)
            needed = found.memory(size)
            largest, observed = max(largest, needed), observed + lanes * _bytes(found.observed)
            if index < SHOWN:
                name = ", ".join(f"{key} = {label(value)}" for key, value in group.static.items()) or "all"
                chosen = "" if found.name == self.name else f", {found.name}"
                batches = f"{_count(lanes, 'lane')} in batches of {size}"
                lines.append(f"  {name}: {batches}, {readable(needed, '.1f')}, {found.cost(lanes)}{chosen}")
        more = [f"  and {len(self.groups) - SHOWN} more"] if len(self.groups) > SHOWN else []
        memory = f"memory: {readable(largest, '.1f')} in the largest batch, plus the working memory of a step"
        return "\n".join([*lines, *more, memory, f"results: {readable(observed, '.1f')}"])


def plan(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    dynamics: AbstractDynamics | Callable[..., AbstractDynamics],
    ts: Any,
    *,
    observe: Observable | Sequence[Observable] = (loss(),),
    batch_size: int | None = None,
) -> Plan:
    """A plan of a sweep, checked before anything is compiled or run.

    `print(plan(...).describe())` shows lanes, compilations, memory and cost.

    Arguments:
        problem_fn, axes, dynamics, ts, observe, batch_size: as for `sweep`.

    Raises:
        ValueError, TypeError: as for `sweep`, if these arguments are wrong, or the shapes that problem_fn and the
            observables return for any combination of static arguments.
        NotApplicable: the dynamics is a closed form for another kind of problem.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = lambda target: js.Problem(net, jnp.eye(2), target * jnp.ones((2, 1)))
        >>> js.plan(problem, {"target": [0.5, 1.0, 2.0]}, js.FrozenKernel(), [0.0, 1.0])
        Plan(3 lanes, 1 compilation: target 3)
    """
    made = read_plan(problem_fn, axes, dynamics, ts, observe=observe, batch_size=batch_size)
    made.check()
    if len(made.groups) == 1:
        LaneOutline(made, made.groups[0])
    return made


def read_plan(
    problem_fn: Callable[..., Problem], axes: Any, dynamics: Dynamics, ts: Any, *, observe: Any, batch_size: Any = None
) -> Plan:
    """The plan that `plan` returns, made without calling problem_fn."""
    require_settings((), "a sweep")
    if not callable(problem_fn):
        raise TypeError(f"problem_fn must return the problem of a cell, got {describe(problem_fn)}")
    fixed = isinstance(dynamics, AbstractDynamics)
    if not fixed and (isinstance(dynamics, type) or not callable(dynamics)):
        raise TypeError(
            f"dynamics must be such as GradientFlow(), or a function of axes that returns one, got {describe(dynamics)}"
        )
    grid = read_axes(axes)
    observables, times = (), jnp.atleast_1d(read_times(ts, jnp.result_type(float)))
    # A function of axes may return another kind of dynamics for each group, so all are checked.
    for first in [dynamics] if fixed else [dynamics_of(dynamics, group) for group in groups(grid)]:
        observables = check_observables(observe, first)
        if isinstance(first, Descent) and first.batches is not None:
            raise ValueError(
                "batches= is for js.solve: the lanes of a sweep would share them; give batch_size= and key="
            )
        require_end(times, first)
    require_own_names(grid, observables)
    if batch_size is not None:
        batch_size = require_size(batch_size, "batch_size")
    return Plan(problem_fn, grid, dynamics, observables, times, batch_size)


def _guilty(among: Sequence[Group], kinds: Sequence[Any]) -> list[str]:
    """The static arguments that decide a kind: each is the only difference between two groups of different kinds."""
    found = set[str]()
    for i, first in enumerate(among):
        for j, second in enumerate(among[:i]):
            if kinds[i] != kinds[j]:
                differ = [name for name, value in first.static.items() if value != second.static[name]]
                found |= set(differ) if len(differ) == 1 else set()
    return [name for name in among[0].static if name in found or not found]


class LaneOutline:
    """One lane of a group, in shapes.

    Attributes:
        dynamics: the dynamics that runs; if the problem chooses it by its values, one of the possible choices.
        name: the names of all possible choices.
        observed: shape and dtype of each observable at all times, by its name.
    """

    def __init__(self, plan: Plan, group: Group):
        builder = Builder(plan.problem_fn, plan.dynamics, group)
        require_end(plan.ts, builder.chosen)
        self._plan, self._shape = plan, builder.shape
        self.dynamics: Any = builder.chosen
        self.name = builder.name
        self._closed = isinstance(self.dynamics, AbstractRandomAccess)
        self.observed = eqx.filter_eval_shape(lambda p: _seen(plan, p, self.dynamics), self._shape)
        require_dataset(plan.observables, self.observed)

    def state_bytes(self) -> int:
        """The bytes of the parameters and of the marching state, including everything it saves."""
        state = lambda p: (p.params, None if self._closed else self.dynamics.init(p, self._plan.ts))
        return _bytes(eqx.filter_eval_shape(state, self._shape))

    def memory(self, size: int) -> int:
        """Bytes that the lanes of a batch hold at the same time."""
        devices = read_devices(None)
        # On CPUs, lanes march one after another, in one loop per core.
        together = size if self._closed or not devices.on_cpu else min(size, devices.streams * len(devices))
        return together * self.state_bytes() + size * _bytes(self.observed)

    def flop(self) -> float:
        """The flop of a gradient of the loss or of a closed form, without eigenvectors and the like; NaN if unknown."""
        seen = lambda p: observe_random_access(p, self.dynamics, self._plan.observables, self._plan.ts)
        return flop(seen if self._closed else lambda p: jax.grad(p.objective)(p.params), self._shape)

    def times(self) -> int | None:
        """How many times a lane performs what `flop` counts; None if only its run shows."""
        if not isinstance(self.dynamics, Descent):
            return 1 if self._closed else None
        steps = concrete(self.dynamics.steps(jnp.max(self._plan.ts)[None]))
        return None if steps is None else min(int(steps[0]), self.dynamics.max_steps)

    def cost(self, lanes: int) -> str:
        """The cost of a number of lanes, in words."""
        once, times = self.flop(), self.times()
        if not np.isfinite(once):
            return "cost unknown"
        more = " for one gradient of every lane (only a run shows how many)" if times is None else ""
        return f"{lanes * (1 if times is None else times) * once:.1e} flop{more}"


def _seen(plan: Plan, problem: Problem, dynamics: Any) -> dict[str, Array]:
    """The observed values of a lane, or arrays of the same shapes."""
    if isinstance(dynamics, AbstractRandomAccess):
        require_kind(problem, dynamics)
        return observe_random_access(problem, dynamics, plan.observables, plan.ts.astype(problem.dtype))
    if Quantity.PARAMS in dynamics.provides:  # shapes are the same at all times, and the start needs no state
        read = lambda view: {item.name: item(view) for item in plan.observables}
        times = jnp.zeros((len(plan.ts), 1), problem.dtype)
        return jax.lax.map(lambda t: read(View(problem, t[0], problem.params)), times)
    return observe_march(problem, plan.observables, dynamics.finish(problem, dynamics.init(problem, plan.ts)))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def _count(number: int, noun: str) -> str:
    """A number and its noun, such as `2 lanes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
