"""What a lane of a sweep holds, found without compiling or running anything."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._checks import concrete
from ..._dynamics import AbstractDynamics, AbstractRandomAccess, NotApplicable, Quantity, resolve, View
from ..._problem import Problem
from ..._solve import observe_march, observe_random_access, read_times
from ...dynamics import Descent
from ...observe import Observable
from ..grid._axes import Group
from ..running._builder import Builder
from ..running._execute import default_batch


@dataclasses.dataclass(frozen=True)
class Outline:
    """One lane of a group, in shapes.

    Attributes:
        observed: by observable, the shape of what is seen at all times.
        state_bytes: of the parameters and of the state that marches, with all that it saves.
        observed_bytes: of what is observed.
        dynamics: the one that runs, where the problem chooses.
        flop: floating-point operations of one gradient of the loss, or of a whole closed form; NaN if unknown. Those
            of eigenvectors and the like are not counted.
        times: how often a lane computes that; None if only its run shows.
    """

    observed: dict[str, tuple[int, ...]]
    state_bytes: int
    observed_bytes: int
    dynamics: AbstractDynamics
    flop: float
    times: int | None

    @property
    def marches(self) -> bool:
        """Whether a lane goes step by step."""
        return not isinstance(self.dynamics, AbstractRandomAccess)

    def batch_size(self, lanes: int) -> int:
        """The lanes of a batch that a sweep chooses, of so many in the group."""
        return default_batch(self.dynamics, lanes)


class Outliner:
    """Traces the lanes of a sweep for their shapes.

    Arguments:
        problem_fn, dynamics, observables, ts: of the sweep.
    """

    def __init__(
        self,
        problem_fn: Callable[..., Problem],
        dynamics: AbstractDynamics,
        observables: tuple[Observable, ...],
        ts: Float[Array, " times"],
    ):
        self._problem_fn = problem_fn
        self._dynamics = dynamics
        self._observables = observables
        self._ts = ts

    def shapes(self, group: Group) -> dict[str, jax.ShapeDtypeStruct]:
        """By observable, shape and dtype of what is seen at all times: the quicker part of an outline."""
        return self._trace(group, self._seen)

    def outline(self, group: Group) -> Outline:
        """All that can be said of a lane before it runs."""
        dynamics: list[AbstractDynamics] = []

        def lane(problem: Problem, chosen: Any) -> tuple[Problem, Any, dict[str, Array]]:
            dynamics.append(chosen)
            if isinstance(chosen, AbstractRandomAccess):
                return problem, problem.params, self._seen(problem, chosen)
            state = chosen.init(problem, self._ts)
            observed = observe_march(problem, self._observables, chosen.finish(problem, state), at_once=1)
            return problem, (problem.params, state), observed

        problem, held, observed = self._trace(group, lane)
        chosen = dynamics[-1]
        return Outline(
            observed={name: info.shape for name, info in observed.items()},
            state_bytes=_bytes(held),
            observed_bytes=_bytes(observed),
            dynamics=chosen,
            flop=self._flop(problem, chosen),
            times=_times(chosen, self._ts),
        )

    def _trace(self, group: Group, lane: Callable[[Problem, AbstractDynamics], Any]) -> Any:
        """The shapes of what a function returns for the problems of a group."""
        problem = Builder(self._problem_fn, group).shape
        chosen = resolve(self._dynamics, problem)
        read_times(self._ts, chosen, self._ts.dtype)
        return eqx.filter_eval_shape(lambda problem: lane(problem, chosen), problem)

    def _seen(self, problem: Problem, dynamics: Any) -> dict[str, Array]:
        """What is observed of a lane, or something of the same shape."""
        if isinstance(dynamics, AbstractRandomAccess):
            missed = [f"{a.name}: {a.detail}" for a in dynamics.check(problem).assumptions if a.structural]
            if missed:
                raise NotApplicable(f"{dynamics.name} does not solve this problem: it needs {'; '.join(missed)}")
            return observe_random_access(problem, dynamics, self._observables, self._ts.astype(problem.x.dtype))
        if Quantity.PARAMS in dynamics.provides:  # at all times as at the start, which needs no state
            times = jnp.zeros((len(self._ts), 1), problem.x.dtype)
            return jax.lax.map(lambda t: self._read(View(problem, t[0], problem.params)), times)
        return observe_march(problem, self._observables, dynamics.finish(problem, dynamics.init(problem, self._ts)))

    def _read(self, view: View) -> dict[str, Array]:
        return {item.name: item(view) for item in self._observables}

    def _flop(self, problem: Problem, dynamics: AbstractDynamics) -> float:
        if isinstance(dynamics, AbstractRandomAccess):
            return _flop(lambda p: observe_random_access(p, dynamics, self._observables, self._ts), problem)
        return _flop(lambda p: jax.grad(p.objective)(p.params), problem)


def _flop(function: Callable[[Problem], Any], problem: Problem) -> float:
    """The operations that XLA counts in a function, before it compiles it."""
    arrays, static = eqx.partition(problem, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    lowered = jax.jit(lambda leaves: function(eqx.combine(leaves, static))).lower(arrays)
    cost: Any = lowered.cost_analysis()
    return float(cost["flops"]) if isinstance(cost, dict) and "flops" in cost else np.nan


def _times(dynamics: AbstractDynamics, ts: Float[Array, " times"]) -> int | None:
    if not isinstance(dynamics, Descent):
        return 1 if isinstance(dynamics, AbstractRandomAccess) else None
    steps = concrete(dynamics.steps(jnp.max(ts)[None]))
    return None if steps is None else min(int(steps[0]), dynamics.max_steps)


def _bytes(tree: Any) -> int:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in leaves)
