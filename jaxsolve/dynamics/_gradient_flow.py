"""Gradient flow on diffrax."""

from typing import Any, cast

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._checks import describe, require_size
from .._dynamics import AbstractMarching, AbstractState, March, Quantity, View
from .._problem import Problem
from .._results import RESULTS
from ..until import AbstractCondition
from ._certificate import flow_certificate
from ._integrator import check_integrator, gradient_evaluations, prepare, tolerances
from ._saves import empty_saves, hold, PER_STEP, Saves


# The parameters in one vector, and behind them the energy dissipated so far. One array compiles faster than a pytree.
Flowing = Float[Array, " params_and_energy"]


class FlowState(AbstractState):
    """Where a gradient flow stands."""

    t: Float[Array, ""]
    t_next: Float[Array, ""]  # end of the step to try next, before it is cut to a save time
    y: Flowing
    solver_state: PyTree
    controller_state: PyTree
    made_jump: Bool[Array, ""]
    t_before: Float[Array, ""]  # the last accepted step went from here to t, and `dense` interpolates it
    dense: PyTree
    saves: Saves
    steps: Int[Array, ""]
    rejected: Int[Array, ""]
    step_error: Float[Array, ""]
    done: Bool[Array, ""]
    result: RESULTS


class GradientFlow(AbstractMarching):
    """theta_l' = -eta_l dL/dtheta_l, integrated adaptively by diffrax.

    Arguments:
        integrator: any adaptive diffrax solver of ordinary differential equations; None takes `diffrax.Tsit5()`.
        rtol, atol: tolerances of a step, per parameter; None takes 1e-6 and 1e-9 (float32: 1e-4 and 1e-7).
        until: stops the run when met, located within the step; with it `ts` may end in inf.
        max_steps: accepted and rejected steps before the run is given up.
        land_on_ts: step exactly on every requested time instead of interpolating. Reference runs do: an interpolant is
            often of lower order than its solver.

    Raises:
        ValueError: the integrator gives no error estimate or is not for ordinary differential equations, a tolerance
            is not positive.
        TypeError: the integrator is no diffrax solver, `until` no condition.

    Warns:
        UserWarning: rtol is finer than the problem's dtype serves.
    """

    integrator: diffrax.AbstractSolver
    rtol: float | None = eqx.field(static=True)  # decides nothing but numbers, yet is never swept
    atol: float | None = eqx.field(static=True)
    until: AbstractCondition | None
    max_steps: int = eqx.field(static=True)
    land_on_ts: bool = eqx.field(static=True)

    def __init__(
        self,
        integrator: diffrax.AbstractSolver | None = None,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        until: AbstractCondition | None = None,
        max_steps: int = 100_000,
        land_on_ts: bool = False,
    ):
        self.integrator = diffrax.Tsit5() if integrator is None else check_integrator(integrator)
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 or None, got {value}")
        self.rtol = None if rtol is None else float(rtol)
        self.atol = None if atol is None else float(atol)
        if until is not None and not isinstance(until, AbstractCondition):
            raise TypeError(f"until must be a condition such as until.loss_below(1e-5), or None, got {describe(until)}")
        self.until = until
        self.max_steps = require_size(max_steps, "max_steps")
        self.land_on_ts = bool(land_on_ts)

    @property
    def name(self) -> str:
        return f"GradientFlow({type(self.integrator).__name__})"

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts

    def _terms(self, problem: Problem) -> diffrax.ODETerm:
        params, unravel = ravel_pytree(problem.params)
        eta, _ = ravel_pytree(
            jax.tree.map(lambda rate, p: jnp.broadcast_to(rate, p.shape), problem.eta, problem.params)
        )

        def field(t, y: Flowing, args) -> Flowing:
            del t, args
            gradient = jax.grad(lambda vector: problem.objective(unravel(vector)))(y[: params.size])
            velocity = -eta * gradient
            return jnp.append(velocity, -velocity @ gradient)

        return diffrax.ODETerm(field)

    def _controller(self, dtype: Any) -> diffrax.PIDController:
        # The dissipated energy rides along but must not steer: the certificate relies on that.
        rtol, atol = tolerances(self.rtol, self.atol, dtype)
        return diffrax.PIDController(rtol=rtol, atol=atol, norm=_parameter_norm, pcoeff=0.3, icoeff=0.4)

    def _tools(self, problem: Problem) -> tuple[diffrax.ODETerm, diffrax.PIDController, diffrax.AbstractSolver]:
        controller = self._controller(problem.x.dtype)
        return self._terms(problem), controller, prepare(self.integrator, controller)

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> FlowState:
        params, dtype = problem.params, problem.x.dtype
        terms, controller, solver = self._tools(problem)
        zero, ts = jnp.zeros((), dtype), ts.astype(dtype)
        y = jnp.append(ravel_pytree(params)[0], zero)
        t_next, controller_state = controller.init(
            terms, zero, ts[-1], y, None, None, solver.func, solver.error_order(terms)
        )
        solver_state = solver.init(terms, zero, t_next, y, None)
        _, _, dense, _, _ = eqx.filter_eval_shape(
            solver.step, terms, zero, t_next, y, None, solver_state, jnp.array(False)
        )
        alive = jnp.isfinite(problem.objective(params)) & jnp.all(jnp.isfinite(terms.vf(zero, y, None)))
        result = RESULTS.where(alive, RESULTS.successful, RESULTS.diverged)
        result = RESULTS.where(problem.valid, result, RESULTS.invalid)
        ok = alive & problem.valid
        saves = empty_saves(ts, y).write(zero, lambda _: y, ts.shape[0])
        met = ok & self._condition_met(problem, zero, params)
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
            result=RESULTS.where(met, RESULTS.event, RESULTS.where(ok & saves.complete, self._in_time(), result)),
        )
        return jax.tree.map(jnp.asarray, state)

    def _in_time(self) -> RESULTS:
        """How a run that reached its last time has ended."""
        return RESULTS.successful if self.until is None else RESULTS.max_time

    def _condition_met(self, problem: Problem, t: Array, params: PyTree) -> Bool[Array, ""]:
        if self.until is None:
            return jnp.array(False)
        return self.until.value(View(problem, t, params)) <= 0

    def advance(self, problem: Problem, state: FlowState, n: Int[Array, ""]) -> FlowState:
        return jax.lax.fori_loop(0, n, lambda _, s: self._step(problem, s), state)

    def _step(self, problem: Problem, state: FlowState) -> FlowState:
        t = state.t
        terms, controller, solver = self._tools(problem)
        limit = state.saves.limit(1 if self.land_on_ts else PER_STEP)
        cut = state.t_next > limit
        t1 = jnp.where(cut, limit, state.t_next)
        attempt = solver.step(terms, t, t1, state.y, None, state.solver_state, state.made_jump)
        y1, y_error, dense, solver_state = (cast(Any, part) for part in attempt[:4])  # adaptive: there is an estimate
        # A step to infinity counts as a step of infinite error, which the controller answers by a shorter one.
        finite = jnp.all(jnp.isfinite(y1)) & jnp.all(jnp.isfinite(y_error))
        y1, y_error = jnp.where(finite, y1, state.y), jnp.where(finite, y_error, jnp.inf)
        order = cast(float, solver.error_order(terms))  # known for ordinary differential equations
        *times, controller_state, _ = controller.adapt_step_size(
            t, t1, state.y, y1, None, y_error, order, state.controller_state
        )
        accept, t_now, t_next, made_jump = (jnp.asarray(value) for value in times)
        t_next = jnp.where(accept & cut, jnp.maximum(t_next, state.t_next), t_next)
        y = _where(accept, y1, state.y)
        interpolation = solver.interpolation_cls(t0=t, t1=t1, **dense)
        evaluate = lambda time: y1 if self.land_on_ts else interpolation.evaluate(time)
        active = ~state.done
        reached = jnp.where(active & accept, t_now, -1)
        saves = state.saves.write(reached, evaluate, PER_STEP)

        stuck = ~(t_next > t_now)
        steps, rejected = state.steps + accept.astype(int), state.rejected + (~accept).astype(int)
        met = accept & self._condition_met(problem, t_now, _params(problem, y))
        exhausted = steps + rejected >= self.max_steps
        result = state.result
        for ended, how in (
            (exhausted, RESULTS.max_steps),
            (stuck, RESULTS.where(finite, RESULTS.tolerance, RESULTS.diverged)),
            (saves.complete, self._in_time()),
            (met, RESULTS.event),
        ):
            result = RESULTS.where(ended, how, result)
        new = FlowState(
            t=t_now,
            t_next=t_next,
            y=y,
            solver_state=_where(accept, solver_state, state.solver_state),
            controller_state=controller_state,
            made_jump=made_jump,
            t_before=jnp.where(accept, t, state.t_before),
            dense=_where(accept, dense, state.dense),
            saves=state.saves,
            steps=steps,
            rejected=rejected,
            step_error=jnp.where(
                accept,
                jnp.maximum(state.step_error, _scaled_error(controller, state.y, y1, y_error)),
                state.step_error,
            ),
            done=exhausted | stuck | saves.complete | met,
            result=result,
        )
        kept = _where(active, new, state)
        # The buffer has masked its own writes: selecting it whole would copy it at every step.
        return eqx.tree_at(lambda s: s.saves, kept, saves)

    def finish(self, problem: Problem, state: FlowState) -> March:
        t_end, y = self._locate(problem, state)
        ended = state.result == RESULTS.event
        rows = hold(state.saves, y, ended & (state.saves.times > t_end))
        return March(
            times=state.saves.times,
            saved=jax.vmap(lambda row: _params(problem, row))(rows),
            params=_params(problem, y),
            t_end=t_end,
            result=state.result,
            steps=state.steps,
            rejected=state.rejected,
            evaluations=gradient_evaluations(self.integrator, state.steps + state.rejected),
            certificate=flow_certificate(problem, _params(problem, state.y), state.y[-1], state.step_error),
        )

    def _locate(self, problem: Problem, state: FlowState) -> tuple[Array, Flowing]:
        """Where in the last step the condition was met, by bisection on the interpolant."""
        if self.until is None:
            return state.t, state.y
        interpolation = self.integrator.interpolation_cls(t0=state.t_before, t1=state.t, **state.dense)
        until = self.until

        def value(time):
            return until.value(View(problem, time, _params(problem, interpolation.evaluate(time))))

        def halve(_, bracket):
            low, high = bracket
            middle = low + (high - low) / 2
            met = value(middle) <= 0
            return jnp.where(met, low, middle), jnp.where(met, middle, high)

        located = (state.result == RESULTS.event) & (state.steps > 0)
        _, high = jax.lax.fori_loop(0, 50, halve, (state.t_before, state.t))
        inside = located & (high < state.t)
        # Bisection loses the derivative of the time found; it is that of the root, -value'/slope.
        high = jax.lax.stop_gradient(high)
        here, slope = jax.jvp(value, (high,), (jnp.ones_like(high),))
        slope = jax.lax.stop_gradient(jnp.where(inside & (slope != 0), slope, jnp.inf))
        high = high - (here - jax.lax.stop_gradient(here)) / slope
        return jnp.where(inside, high, state.t), _where(inside, interpolation.evaluate(high), state.y)


def _params(problem: Problem, y: Flowing) -> PyTree:
    return ravel_pytree(problem.params)[1](y[:-1])


def _parameter_norm(y: Flowing) -> Float[Array, ""]:
    return optx.rms_norm(y[:-1])


def _scaled_error(controller: diffrax.PIDController, before: Flowing, after: Flowing, error: Flowing):
    size = jnp.maximum(jnp.abs(before), jnp.abs(after))
    return _parameter_norm(error / (controller.atol + controller.rtol * size))


def _where(pred: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(pred, a, b), new, old)
