"""What the lanes of a plan hold and cost, found without compiling or running anything."""

import dataclasses
from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._checks import concrete
from ..._dynamics import AbstractDynamics, AbstractRandomAccess, Quantity, View
from ..._flop import flop
from ..._problem import Problem
from ..._solve import observe_march, observe_random_access, require_kind
from ..._times import require_end
from ...dynamics import Descent
from ..grid._axes import Group, label
from ..running._builder import Builder, read_devices
from ..running._execute import default_batch


if TYPE_CHECKING:
    from ._plan import Plan

SHOWN = 12  # groups in a description


@dataclasses.dataclass(frozen=True)
class Outline:
    """One lane of a group, in shapes."""

    observed: dict[str, tuple[int, ...]]  # by observable, the shape of what is seen at all times
    state_bytes: int  # of the parameters and of the state that marches, with all that it saves
    observed_bytes: int
    dynamics: AbstractDynamics  # the one that runs, where the problem chooses
    flop: float  # of one gradient of the loss, or of a closed form, without eigenvectors and the like; NaN if unknown
    times: int | None  # how often a lane computes that; None if only its run shows

    def memory(self, size: int) -> int:
        """Bytes that the lanes of a batch hold at the same time."""
        devices, marches = read_devices(None), not isinstance(self.dynamics, AbstractRandomAccess)
        # On processors lanes march one after another, in as many loops as there are cores.
        marching = min(size, devices.streams * len(devices)) if marches and devices.on_cpu else size
        return marching * self.state_bytes + size * self.observed_bytes

    def cost(self, lanes: int) -> str:
        """Of so many lanes, in words."""
        if not np.isfinite(self.flop):
            return "cost unknown"
        more = " for one gradient of every lane (only a run shows how many)" if self.times is None else ""
        return f"{lanes * (1 if self.times is None else self.times) * self.flop:.1e} flop{more}"


def shapes(plan: "Plan", group: Group) -> dict[str, jax.ShapeDtypeStruct]:
    """By observable, shape and dtype of what is seen at all times: the quicker part of an outline."""
    problem, chosen = _lane(plan, group)
    return eqx.filter_eval_shape(lambda problem: _seen(plan, problem, chosen), problem)


def outline(plan: "Plan", group: Group) -> Outline:
    """All that can be said of a lane before it runs."""
    shape, chosen = _lane(plan, group)
    any_kind: Any = chosen
    closed = isinstance(chosen, AbstractRandomAccess)
    state = lambda p: None if closed else any_kind.init(p, plan.times)
    lane = lambda p: ((p.params, state(p)), _seen(plan, p, chosen))
    held, observed = eqx.filter_eval_shape(lane, shape)
    once = lambda p: (
        observe_random_access(p, any_kind, plan.observables, plan.times) if closed else jax.grad(p.objective)(p.params)
    )
    times = 1 if closed else None
    if isinstance(chosen, Descent):
        steps = concrete(chosen.steps(jnp.max(plan.times)[None]))
        times = None if steps is None else min(int(steps[0]), chosen.max_steps)
    sizes = {name: info.shape for name, info in observed.items()}
    return Outline(sizes, _bytes(held), _bytes(observed), chosen, flop(once, shape), times)


def describe(plan: "Plan") -> str:
    """Lanes, compilations, and estimates of memory and cost, as text."""
    arguments = [argument for axis in plan.axes for argument in axis.arguments]
    traced, static = (", ".join(item.name for item in arguments if item.traced == which) for which in (True, False))
    lines = [
        f"{count(plan.lanes, 'lane')}: {plan.grid}",
        f"traced: {traced or 'none'}; static: {static or 'none'}",
        f"{plan.name} at {count(len(plan.ts), 'time')} from {plan.ts[0]:g} to {plan.ts[-1]:g}, "
        f"observing {', '.join(item.name for item in plan.observables)}",
        count(len(plan.groups), "compilation"),
    ]
    largest, observed = 0, 0
    for index, group in enumerate(plan.groups):
        found, lanes = outline(plan, group), len(group.lanes)
        size = default_batch(found.dynamics, lanes) if plan.batch_size is None else min(plan.batch_size, lanes)
        needed = found.memory(size)
        largest, observed = max(largest, needed), observed + lanes * found.observed_bytes
        if index < SHOWN:
            name = ", ".join(f"{key} = {label(value)}" for key, value in group.static.items()) or "all"
            chosen = "" if found.dynamics.name == plan.name else f", {found.dynamics.name}"
            batches = f"{count(lanes, 'lane')} in batches of {size}"
            lines.append(f"  {name}: {batches}, {_in_words(needed)}, {found.cost(lanes)}{chosen}")
    more = [f"  and {len(plan.groups) - SHOWN} more"] if len(plan.groups) > SHOWN else []
    memory = f"memory: {_in_words(largest)} in the largest batch, and what a step works with"
    return "\n".join([*lines, *more, memory, f"results: {_in_words(observed)}"])


def _lane(plan: "Plan", group: Group) -> tuple[Problem, AbstractDynamics]:
    """The shapes of a lane's problem, and the dynamics that it chooses."""
    builder = Builder(plan.problem_fn, plan.dynamics, group)
    require_end(plan.times, builder.chosen)
    return builder.shape, builder.chosen


def _seen(plan: "Plan", problem: Problem, dynamics: Any) -> dict[str, Array]:
    """What is observed of a lane, or something of the same shape."""
    if isinstance(dynamics, AbstractRandomAccess):
        require_kind(problem, dynamics)
        return observe_random_access(problem, dynamics, plan.observables, plan.times.astype(problem.x.dtype))
    if Quantity.PARAMS in dynamics.provides:  # at all times as at the start, which needs no state
        read = lambda view: {item.name: item(view) for item in plan.observables}
        times = jnp.zeros((len(plan.times), 1), problem.x.dtype)
        return jax.lax.map(lambda t: read(View(problem, t[0], problem.params)), times)
    return observe_march(problem, plan.observables, dynamics.finish(problem, dynamics.init(problem, plan.times)))


def _bytes(tree: Any) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in leaves)


def _in_words(size: int) -> str:
    """Bytes with their unit."""
    unit = min(max(len(str(size)) - 1, 0) // 3, 4)
    return f"{size / 1000**unit:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
