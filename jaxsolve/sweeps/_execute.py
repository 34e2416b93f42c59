"""Running the lanes of a group, batch by batch, in one compilation."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import describe
from .._dynamics import AbstractChoice, AbstractDynamics, AbstractMarching, AbstractRandomAccess, resolve
from .._problem import Problem
from .._results import result_code
from .._solve import check_applies, observe_march, observe_random_access, random_access_result, read_times
from ..observe import Observable
from ._axes import Group


class Lanes(NamedTuple):
    """What came out of a batch, one row per lane."""

    observed: dict[str, Array]
    times: Array
    t_end: Array
    result: Array  # codes
    steps: Array


class Timed(NamedTuple):
    """A batch on the host: the grid's indices of its lanes, its rows, its wall time in seconds."""

    lanes: np.ndarray
    rows: Lanes
    wall: float


def default_batch(dynamics: AbstractDynamics, lanes: int) -> int:
    """Lanes run together. A marching batch waits for its slowest lane, a closed form waits for nothing."""
    return min(lanes, 64 if isinstance(dynamics, AbstractMarching) else 65536)


class Program(NamedTuple):
    """A group, traced: what is left is to compile and run it."""

    group: Group
    size: int  # lanes per batch
    lowered: jax.stages.Lowered

    def cells(self, lanes: np.ndarray) -> dict[str, Array]:
        """The traced arguments of these lanes of the group."""
        return {name: values[lanes] for name, values in self.group.cells.items()}


def trace_group(
    problem_fn: Callable[..., Problem],
    group: Group,
    dynamics: AbstractDynamics,
    observables: tuple[Observable, ...],
    ts: Float[Array, " times"],
    batch_size: int | None,
) -> Program:
    """Traces the program that runs a batch of a group."""
    total = len(group.lanes)
    dynamics = _chosen(problem_fn, group, dynamics, ts)
    size = default_batch(dynamics, total) if batch_size is None else min(batch_size, total)
    run = _batch_function(problem_fn, group, dynamics, observables, ts)
    example = {name: values[np.zeros(size, int)] for name, values in group.cells.items()}
    return Program(group, size, run.lower(example))


def run_group(program: Program, compiled: Callable[..., Lanes], report: Callable[[int], Any]) -> list[Timed]:
    """Runs every lane of a group and reports how many have finished after each batch."""
    total, size = len(program.group.lanes), program.size
    done = []
    for start in range(0, total, size):
        chosen = np.arange(start, min(start + size, total))
        # The last batch is padded, so that a lane's bits do not depend on how many lanes are left.
        padded = np.concatenate([chosen, np.full(size - len(chosen), chosen[-1])])
        begin = time.perf_counter()
        rows = jax.block_until_ready(compiled(program.cells(padded)))
        wall = time.perf_counter() - begin
        done.append(Timed(program.group.lanes[chosen], _first(rows, len(chosen)), wall))
        report(len(chosen))
    return done


def _first(rows: Lanes, count: int) -> Lanes:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], rows)


def _chosen(problem_fn: Callable[..., Problem], group: Group, dynamics: AbstractDynamics, ts) -> AbstractDynamics:
    """The dynamics to run on a group, whose problems are of one kind."""
    if not isinstance(dynamics, AbstractChoice):
        return dynamics
    first = {name: values[0] for name, values in group.cells.items()}
    problem = eqx.filter_eval_shape(lambda cell: problem_fn(**group.static, **cell), first)
    chosen = resolve(dynamics, _require_problem(problem))
    read_times(ts, chosen, ts.dtype)
    return chosen


def _require_problem(problem: Any) -> Problem:
    if not isinstance(problem, Problem):
        raise TypeError(f"problem_fn must return a jaxsolve.Problem, got {describe(problem)}")
    return problem


def _batch_function(problem_fn, group: Group, dynamics, observables, ts) -> Any:
    """The jitted function of a batch of cells."""
    parts: list[Any] = []  # the problem's structure and what is no array in it, filled while tracing

    def build(cell: dict[str, Array]) -> list[Array]:
        problem = _require_problem(problem_fn(**group.static, **cell))
        arrays, static = eqx.partition(problem, eqx.is_array)
        parts[:] = [jax.tree.structure(arrays), static]
        return jax.tree.leaves(arrays)

    first = {name: values[0] for name, values in group.cells.items()}
    depends = _depends_on_input(build, first)
    # What is the same in all lanes, such as the data, stays one array.
    axes = [0 if dependent else None for dependent in depends]

    def join(leaves: list[Array]) -> Problem:
        structure, static = parts
        return eqx.combine(jax.tree.unflatten(structure, leaves), static)

    if isinstance(dynamics, AbstractRandomAccess):
        # Built in a trace, where bad numbers do not raise: only the kind of problem matters here.
        check_applies(join(jax.jit(build)(first)), dynamics, throw=False)
        batch = _random_access(dynamics, observables, ts)
    elif isinstance(dynamics, AbstractMarching):
        batch = _marching(dynamics, observables, ts)
    else:
        raise TypeError(f"dynamics must be marching or random access, got {describe(dynamics)}")

    @jax.jit
    def run(cells: dict[str, Array]) -> Lanes:
        if not cells:  # nothing is traced: a single lane
            problem = join(build({}))
            return jax.tree.map(lambda leaf: leaf[None], batch(lambda fn: functools.partial(fn, problem)))
        size = next(iter(cells.values())).shape[0]  # for problems that depend on no axis
        leaves = jax.vmap(build, out_axes=axes)(cells)

        def over(fn: Callable[..., Any]) -> Callable[..., Any]:
            lane = lambda problem, *states: fn(join(problem), *states)
            over_lanes = lambda states: jax.vmap(lane, in_axes=(axes, *(0 for _ in states)), axis_size=size)
            return lambda *states: over_lanes(states)(leaves, *states)

        return batch(over)

    return run


# A batch is run by functions of one lane's problem (and state), lifted by `over` to functions of all lanes' states.
_Over = Callable[[Callable[..., Any]], Callable[..., Any]]


def _random_access(dynamics: AbstractRandomAccess, observables, ts) -> Callable[[_Over], Lanes]:
    def lane(problem: Problem) -> Lanes:
        observed = observe_random_access(problem, dynamics, observables, ts.astype(problem.x.dtype))
        code = result_code(random_access_result(problem, dynamics))
        return Lanes(observed, ts, ts[-1], code, jnp.zeros((), int))

    return lambda over: over(lane)()


def _marching(dynamics: AbstractMarching, observables, ts) -> Callable[[_Over], Lanes]:
    def lane(problem: Problem, state: Any) -> Lanes:
        run = dynamics.finish(problem, state)
        observed = observe_march(problem, observables, run, at_once=1)
        return Lanes(observed, run.times, run.t_end, result_code(run.result), run.steps)

    def batch(over: _Over) -> Lanes:
        state = over(lambda problem: dynamics.init(problem, ts))()
        advance = over(lambda problem, state: dynamics.advance(problem, state, jnp.asarray(dynamics.chunk)))
        state = jax.lax.while_loop(lambda s: jnp.any(~s.done), advance, state)
        return over(lane)(state)

    return batch


def _depends_on_input(fn: Callable[[Any], list[Array]], example: Any) -> list[bool]:
    """Which outputs of a function depend on its input."""
    jaxpr = jax.make_jaxpr(fn)(example).jaxpr
    dependent = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(variable in dependent for variable in equation.invars if not hasattr(variable, "val")):
            dependent.update(equation.outvars)
    return [not hasattr(variable, "val") and variable in dependent for variable in jaxpr.outvars]
