"""What the lanes of a plan hold and cost, found without compiling or running anything."""

from typing import Any, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._checks import concrete
from ..._dynamics import AbstractRandomAccess, Quantity, View
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


class Outline:
    """One lane of a group, in shapes.

    Attributes:
        dynamics: the one that runs, where the problem chooses.
        observed: by observable, shape and dtype of what is seen at all times.
    """

    def __init__(self, plan: "Plan", group: Group):
        builder = Builder(plan.problem_fn, plan.dynamics, group)
        require_end(plan.times, builder.chosen)
        self._plan, self._shape, self.dynamics = plan, builder.shape, builder.chosen
        self._any_kind: Any = self.dynamics
        self._closed = isinstance(self.dynamics, AbstractRandomAccess)
        self.observed = eqx.filter_eval_shape(lambda p: _seen(plan, p, self.dynamics), self._shape)

    def state_bytes(self) -> int:
        """Of the parameters and of the state that marches, with all that it saves."""
        state = lambda p: (p.params, None if self._closed else self._any_kind.init(p, self._plan.times))
        return _bytes(eqx.filter_eval_shape(state, self._shape))

    def memory(self, size: int) -> int:
        """Bytes that the lanes of a batch hold at the same time."""
        devices = read_devices(None)
        # On processors lanes march one after another, in as many loops as there are cores.
        together = size if self._closed or not devices.on_cpu else min(size, devices.streams * len(devices))
        return together * self.state_bytes() + size * _bytes(self.observed)

    def flop(self) -> float:
        """Of one gradient of the loss, or of a closed form, without eigenvectors and the like; NaN if unknown."""
        seen = lambda p: observe_random_access(p, self._any_kind, self._plan.observables, self._plan.times)
        return flop(seen if self._closed else lambda p: jax.grad(p.objective)(p.params), self._shape)

    def times(self) -> int | None:
        """How often a lane computes that; None if only its run shows."""
        if not isinstance(self.dynamics, Descent):
            return 1 if self._closed else None
        steps = concrete(self.dynamics.steps(jnp.max(self._plan.times)[None]))
        return None if steps is None else min(int(steps[0]), self.dynamics.max_steps)

    def cost(self, lanes: int) -> str:
        """Of so many lanes, in words."""
        once, times = self.flop(), self.times()
        if not np.isfinite(once):
            return "cost unknown"
        more = " for one gradient of every lane (only a run shows how many)" if times is None else ""
        return f"{lanes * (1 if times is None else times) * once:.1e} flop{more}"


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
    largest, observed, devices = 0, 0, read_devices(None)
    for index, group in enumerate(plan.groups):
        found, lanes = Outline(plan, group), len(group.lanes)
        size = default_batch(found.dynamics, lanes, devices) if plan.batch_size is None else min(plan.batch_size, lanes)
        needed = found.memory(size)
        largest, observed = max(largest, needed), observed + lanes * _bytes(found.observed)
        if index < SHOWN:
            name = ", ".join(f"{key} = {label(value)}" for key, value in group.static.items()) or "all"
            chosen = "" if found.dynamics.name == plan.name else f", {found.dynamics.name}"
            batches = f"{count(lanes, 'lane')} in batches of {size}"
            lines.append(f"  {name}: {batches}, {_in_words(needed)}, {found.cost(lanes)}{chosen}")
    more = [f"  and {len(plan.groups) - SHOWN} more"] if len(plan.groups) > SHOWN else []
    memory = f"memory: {_in_words(largest)} in the largest batch, and what a step works with"
    return "\n".join([*lines, *more, memory, f"results: {_in_words(observed)}"])


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
