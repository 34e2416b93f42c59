"""Flows: marches along a differential equation from the start through the requested times.

diffrax makes the steps; the loop around them is written here. `diffrax.diffeqsolve` does not suffice: a sweep stops,
refills and resumes its lanes at any step, bit for bit, and a run resumed by `diffeqsolve` has lost the size of its next
step. diffrax documents manual stepping (`solver.step`, `controller.adapt_step_size`) for such cases. With this loop,
memory holds only the requested times, and each run of a batch ends with its own result instead of an error for the
whole batch.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, cast, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..._checks import require_flag, require_number, require_steps
from ..._core import (
    AbstractDescending,
    AbstractMarching,
    AbstractSavingState,
    AbstractStoppable,
    March,
    Problem,
    Quantity,
)
from ..._numerics import all_finite
from ..._results import RESULTS
from ...integrators import AbstractExponential, RungeKuttaChebyshev
from ...until import AbstractCondition
from ...until._internal import fits
from .._marching import at_last_time, check_until, chosen, empty_saves, hold, is_met, PER_STEP, Saves
from ._system import AbstractExponentialSystem, AbstractSystem


# Measured: with this many steps the true error of an explicit solver is up to twice its estimate, and with fewer it can
# be much larger. Exponential solvers overestimate their error.
FEW = 12


class FlowState(AbstractSavingState):
    """The state of a gradient flow."""

    t: Float[Array, ""]
    t_next: Float[Array, ""]  # end of the next step to try, before it is cut to a save time
    y: PyTree
    solver_state: PyTree
    controller_state: PyTree
    made_jump: Bool[Array, ""]
    t_before: Float[Array, ""]  # the last accepted step went from here to t
    dense: PyTree  # interpolates that step if a condition may have to be located in it
    saves: Saves
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    step_error: Float[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class FlowOptions(NamedTuple):
    """The options that all flows take, checked."""

    rtol: float | None
    atol: float | None
    until: AbstractCondition | None
    max_steps: int
    land_on_ts: bool


def read_options(rtol: Any, atol: Any, until: Any, max_steps: Any, land_on_ts: Any) -> FlowOptions:
    """Checks the options of all flows; raises their ValueError or TypeError."""
    number = lambda value, name: None if value is None else require_number(value, name, "> 0 or None")
    steps, land = require_steps(max_steps), require_flag(land_on_ts, "land_on_ts")
    return FlowOptions(number(rtol, "rtol"), number(atol, "atol"), check_until(until), steps, land)


class AbstractFlow(AbstractStoppable, AbstractDescending, AbstractMarching):
    """A march with steps by diffrax, which ends where a condition is met.

    Attributes:
        integrator: makes the steps; None if the problem decides.
        until: stops the run when met, located within the step.
        max_steps: maximum number of steps, accepted and rejected.
        land_on_ts: whether it steps exactly on every requested time instead of interpolating.

    Example:
        The tolerances that a flow chooses for a problem:

        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> sorted(js.GradientFlow(rtol=1e-5).tolerances(problem))
        ['atol', 'rtol']
    """

    integrator: eqx.AbstractVar[diffrax.AbstractSolver | None]
    until: eqx.AbstractVar[AbstractCondition | None]
    max_steps: eqx.AbstractVar[int]
    land_on_ts: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def system(self, problem: Problem) -> AbstractSystem:
        """The system of a problem: its state, and the tools that move it."""

    def tolerances(self, problem: Problem) -> dict[str, Any]:
        """The tolerances of a step, by name: as given, or the defaults for this problem, whose shapes suffice."""
        found: list[dict[str, Any]] = []
        eqx.filter_eval_shape(lambda p: found.append(self.system(p).tolerances), problem)
        return found[0]

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts

    @property
    def chunk(self) -> int:
        return 1 if isinstance(self.integrator, AbstractExponential) else 16  # its steps are few and long

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> FlowState:
        system, dtype = self.system(problem), problem.dtype
        terms, controller, solver, y = system.terms, system.controller, system.solver, system.start
        zero, ts = jnp.zeros((), dtype), ts.astype(dtype)
        # None as the first step lets diffrax choose it.
        t_next, controller_state = controller.init(
            terms, zero, ts[-1], y, system.first_step(), None, solver.func, solver.error_order(terms)
        )
        solver_state = solver.init(terms, zero, t_next, y, None)
        dense: PyTree = ()
        if self.until is not None:
            # A loop carries arrays of fixed shapes, so the dense output must exist before the first step.
            dense = eqx.filter_eval_shape(solver.step, terms, zero, t_next, y, None, solver_state, jnp.array(False))[2]
        alive = jnp.isfinite(system.view(zero, y).loss) & all_finite(terms.vf(zero, y, None))
        result = RESULTS.where(alive, RESULTS.successful, RESULTS.diverged)
        lost = system.lost(y)
        result = RESULTS.where(alive & lost, RESULTS.unstable, result)
        alive = alive & ~lost
        valid = system.valid & fits(self.until, problem)
        result = RESULTS.where(valid, result, RESULTS.invalid)
        ok = alive & valid
        # Steps begin at 0 and save only times after their start, so requested times of 0 are all saved here.
        saves = empty_saves(ts, system.position(y)).write(zero, lambda _: system.position(y), ts.shape[0])
        result = RESULTS.where(ok & saves.complete, at_last_time(self.until), result)
        met = ok & is_met(self.until, lambda: system.view(zero, y))
        state = FlowState(
            t=zero,
            t_next=jnp.asarray(t_next),
            y=y,
            solver_state=solver_state,
            controller_state=controller_state,
            made_jump=jnp.array(False),
            t_before=zero,
            dense=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), dense),
            saves=saves,
            steps=jnp.zeros((), int),
            rejected=jnp.zeros((), int),
            step_error=zero,
            done=~ok | met | saves.complete,
            result=RESULTS.where(met, RESULTS.event, result),
        )
        return jax.tree.map(jnp.asarray, state)

    def advance(self, problem: Problem, state: FlowState, n: Int[Array, ""]) -> FlowState:
        return jax.lax.fori_loop(0, n, lambda _, s: self._step(problem, s), state)

    def _step(self, problem: Problem, state: FlowState) -> FlowState:
        t, system = state.t, self.system(problem)
        terms, controller, solver = system.terms, system.controller, system.solver
        # A step passes at most as many requested times as it can save; with `land_on_ts` it ends at the next one.
        limit = state.saves.limit(1 if self.land_on_ts else PER_STEP)
        # A run to infinity ends where squares of times would overflow, unless the condition is met before.
        limit = jnp.where(jnp.isinf(limit), jnp.maximum(_horizon(t.dtype), t), limit)
        cut = state.t_next > limit
        t1 = jnp.where(cut, limit, state.t_next)
        attempt = solver.step(terms, t, t1, state.y, None, state.solver_state, state.made_jump)
        y1, y_error, dense, solver_state = (cast(Any, part) for part in attempt[:4])  # adaptive: error is not None
        # A step to a nonfinite state gets an infinite error, so the controller tries a shorter one.
        finite = all_finite(y1) & all_finite(y_error)
        # The state is kept finite, so only the error reports the failure.
        y1 = chosen(finite, y1, state.y)
        y_error = jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.inf), y_error)
        order = cast(float, solver.error_order(terms))  # always known for ordinary differential equations
        *times, controller_state, _ = controller.adapt_step_size(
            t, t1, state.y, y1, None, y_error, order, state.controller_state
        )
        accept, t_now, t_next, made_jump = (jnp.asarray(value) for value in times)
        # A step that was cut to a requested time says little about a longer one, so the intended step is tried next.
        t_next = jnp.where(accept & cut, jnp.maximum(t_next, state.t_next), t_next)
        y = chosen(accept, y1, state.y)
        interpolation = solver.interpolation_cls(t0=t, t1=t1, **dense)
        evaluate = lambda time: system.position(y1 if self.land_on_ts else interpolation.evaluate(time))
        active = ~state.done
        # No requested time is at or before -1, so nothing is saved for a rejected step or for a lane that has ended.
        reached = jnp.where(active & accept, t_now, -1)
        saves = state.saves.write(reached, evaluate, PER_STEP, one_by_one=isinstance(solver, AbstractExponential))

        # Also true for NaN.
        stuck = ~(t_next > t_now)
        far = (t_now >= _horizon(t.dtype)) & jnp.isinf(saves.limit(1))
        steps, rejected = state.steps + accept.astype(int), state.rejected + (~accept).astype(int)
        met = accept & is_met(self.until, lambda: system.view(t_now, y))
        exhausted = steps + rejected >= self.max_steps
        lost = accept & system.lost(y)
        kept_solver = chosen(accept, solver_state, state.solver_state)
        if isinstance(solver, RungeKuttaChebyshev):  # rejected steps count too
            kept_solver = kept_solver._replace(evaluations=solver_state.evaluations)
        result = state.result
        # Later entries win: a run that arrives with its last permitted step has arrived.
        for ended, how in (
            (exhausted, RESULTS.max_steps),
            (stuck, RESULTS.where(finite, RESULTS.tolerance, RESULTS.diverged)),
            (saves.complete | far, at_last_time(self.until)),
            (met, RESULTS.event),
            (lost, RESULTS.unstable),
        ):
            result = RESULTS.where(ended, how, result)
        new = FlowState(
            t=t_now,
            t_next=t_next,
            y=y,
            solver_state=kept_solver,
            controller_state=controller_state,
            made_jump=made_jump,
            t_before=jnp.where(accept, t, state.t_before),
            # Kept only if needed: it may be as large as a kernel.
            dense=() if self.until is None else chosen(accept, dense, state.dense),
            saves=state.saves,
            steps=steps,
            rejected=rejected,
            step_error=jnp.where(
                accept,
                jnp.maximum(state.step_error, system.scaled_error(state.t, t1, state.y, y1, y_error)),
                state.step_error,
            ),
            done=exhausted | stuck | saves.complete | far | met | lost,
            result=result,
        )
        kept = chosen(active, new, state)
        # The buffer masks its own writes; selecting it as a whole would copy it at every step.
        return eqx.tree_at(lambda s: s.saves, kept, saves)

    def finish(self, problem: Problem, state: FlowState) -> March:
        system = self.system(problem)
        t_end, y = self._locate(system, state)
        # A run to infinity that never met its condition reports its state at the horizon for t = inf.
        far = (state.result == RESULTS.max_time) & (state.t >= _horizon(state.t.dtype))
        ended = (state.result == RESULTS.event) | far
        position = system.position(y)
        rows = hold(state.saves, position, ended & (state.saves.times > t_end))
        gradients, kernels = system.evaluations(state.solver_state, state.steps + state.rejected)
        # An implicit solver solves its equations only to the step tolerance, which its error estimate does not include.
        implicit = isinstance(system.solver, diffrax.AbstractImplicitSolver)
        step_error = jnp.maximum(state.step_error, 1) if implicit else state.step_error
        certificate = system.certificate(state.t, state.y, step_error)
        if not isinstance(system, AbstractExponentialSystem):
            doubt = 1 + FEW / jnp.maximum(state.steps, 1).astype(certificate.step_error.dtype)
            certificate = dataclasses.replace(certificate, doubt=doubt)
        return March(
            times=state.saves.times,
            saved=jax.vmap(system.params)(rows),
            params=system.params(position),
            t_end=t_end,
            result=state.result,
            steps=state.steps,
            rejected=state.rejected,
            evaluations=gradients,
            kernels=kernels,
            integrators=(type(system.solver).__name__,),
            certificate=certificate,
        )

    def _locate(self, system: AbstractSystem, state: FlowState) -> tuple[Array, PyTree]:
        """The time and state at which the last step's interpolant met the condition; otherwise the end of the step."""
        if self.until is None:
            return state.t, state.y
        found = _crossing(self.until, system, state)
        # A condition met at the start has no step to search in.
        inside = (state.result == RESULTS.event) & (state.steps > 0) & (found < state.t)
        y = chosen(inside, _inside_step(system, state, found), state.y)
        return jnp.where(inside, found, state.t), y


def _inside_step(system: AbstractSystem, state: FlowState, time: Float[Array, ""]) -> PyTree:
    """The state at a time within the last step."""
    return system.solver.interpolation_cls(t0=state.t_before, t1=state.t, **state.dense).evaluate(time)


def _condition(until: AbstractCondition, system: AbstractSystem, state: FlowState, time: Float[Array, ""]) -> Array:
    return until.value(system.view(time, _inside_step(system, state, time)))


@eqx.filter_custom_jvp
def _crossing(until: AbstractCondition, system: AbstractSystem, state: FlowState) -> Float[Array, ""]:
    """The time at which the condition was met in the last step."""
    return _first_root(lambda time: _condition(until, system, state, time), state.t_before, state.t)


@_crossing.def_jvp
def _crossing_jvp(primals, tangents):
    # The search has no derivative; the root of value(time) has the derivative -value'/slope.
    until, system, state = primals
    time = _crossing(until, system, state)
    _, moved = eqx.filter_jvp(_condition, (*primals, time), (*tangents, jnp.zeros_like(time)))
    _, slope = jax.jvp(lambda time: _condition(until, system, state, time), (time,), (jnp.ones_like(time),))
    return time, jnp.where(slope == 0, 0, -moved / jnp.where(slope == 0, 1, slope))


def _horizon(dtype: Any) -> float:
    """The time at which a flow to infinity ends."""
    return float(jnp.finfo(dtype).max) ** 0.5


def _first_root(value: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The root of a function that is positive at `low` and not at `high`, from the side where it is not positive.

    The Illinois method: secants, with the value of an end halved when it stays twice in a row (Dowell & Jarratt 1971).
    """

    def narrow(bracket):
        low, high, at_low, at_high, before, count = bracket
        middle = high - at_high * (high - low) / (at_high - at_low)
        # Bisection where the secant leaves the bracket, or is NaN: comparisons with NaN are false.
        middle = jnp.where((middle > low) & (middle < high), middle, low + (high - low) / 2)
        # Both ends are evaluated first, inside the loop, so that `value` is compiled once. Evaluating an end replaces
        # it by itself, which leaves the bracket unchanged.
        ends = count < 2
        here = jnp.where(ends, jnp.where(count == 0, low, high), middle)
        now = value(here)
        met = jnp.where(ends, count == 1, now <= 0)
        moved = jnp.where(ends, 0, jnp.where(met, 1, -1))  # which end moved: 1 the upper, -1 the lower
        less = jnp.where(~ends & (moved == before), 0.5, 1.0)
        return (
            jnp.where(met, low, here),
            jnp.where(met, here, high),
            jnp.where(met, less * at_low, now),
            jnp.where(met, now, less * at_high),
            moved,
            count + 1,
        )

    def searching(bracket):
        low, high, _, at_high, _, count = bracket
        middle = low + (high - low) / 2
        return (count < 2) | (count < 102) & (at_high < 0) & (middle > low) & (middle < high)

    nothing = jnp.zeros((), jax.eval_shape(value, low).dtype)
    return jax.lax.while_loop(searching, narrow, (low, high, nothing, nothing, 0, 0))[1]
