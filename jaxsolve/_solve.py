"""Solves one problem with one dynamics."""

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._checks import concrete, describe, require_flag, require_settings, see, traced
from ._core import (
    AbstractDynamics,
    AbstractMarching,
    AbstractRandomAccess,
    AbstractStandIn,
    are_times,
    condition_of,
    Label,
    last_state,
    March,
    march,
    NotApplicable,
    Problem,
    Quantity,
    read_times,
    require_end,
    require_problem,
    resolve,
    shown,
    Stats,
    Trajectory,
    View,
)
from ._numerics import memory_for, one_thread, unwatched
from ._programs import forward_mode
from ._results import FIRST_FAILURE, result_code, RESULT_NAMES, result_names, RESULTS
from .kernels._internal import nonfinite_derivatives
from .observe import loss, Observable
from .observe._internal import check_observables
from .until._internal import fits


# A trajectory and its result code, from one program: a second program would cost as much as a closed form.
Ended = tuple[Trajectory, Int[Array, ""]]
# Advice for networks without forward-mode derivatives.
GRADIENTS = "; or use dynamics that need only gradients, js.GradientFlow(diffrax.Tsit5()) or js.Descent(...)"
SMALLER = (
    "take fewer samples or times, observables that need no kernel, or an integrator without one, such as "
    "js.GradientFlow(js.integrators.RungeKuttaChebyshev())"
)
# The number of times observed together, which bounds the memory of kernels.
TIMES_AT_ONCE = 8


class SolveError(RuntimeError):
    """A run ended with none of the first three `RESULTS`; the message says what happened and what to do.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> try:
        ...     js.solve(problem, js.GradientFlow(max_steps=1), 100.0)
        ... except js.SolveError as error:
        ...     print(error)
        GradientFlow(...) ended at t = ... after ... steps: max_steps. The run used `max_steps` steps ...
    """


def solve(
    problem: Problem,
    dynamics: AbstractDynamics,
    ts: Any,
    *,
    observe: Observable | Sequence[Observable] = (loss(),),
    throw: bool = True,
    progress: bool | None = None,
) -> Trajectory:
    """Follows a dynamics from the problem's start and observes it at the times `ts`.

    Arguments:
        problem: the problem.
        dynamics: how parameters or outputs move, such as `GradientFlow()` or `theory.TwoLayerLine()`.
        ts: gradient-flow times >= 0, one number or a sorted 1-D sequence. It may end in inf for closed forms, and for
            marching dynamics that have an `until`.
        observe: what to observe at every time.
        throw: whether to raise when the run fails. Inside a trace nothing raises: read `traj.result`.
        progress: whether to show a progress bar. None shows no bar, but writes a line to stderr once a march has taken
            10 s, and again whenever this time has doubled. Inside a trace nothing is shown.

    During the call, LAPACK is limited to one thread in the whole process; afterwards it has as many as before. Inside a
    trace, it has as many as in the program that runs.

    Raises:
        ValueError: ts is empty, unsorted, negative or NaN; ends in inf without `until`; an observable needs what the
            dynamics does not provide.
        TypeError: an argument has the wrong type.
        NotApplicable: the closed form does not solve this problem; or the problem is a `js.Stream` and the dynamics
            needs a training set.
        SolveError: the run failed and `throw` is true.
        MemoryError: the run does not fit into memory.
        FloatingPointError: with `jax_debug_nans` (or `jax_debug_infs`), the network, its gradient or its test outputs
            hold NaN (an infinity) at the last parameters; JAX names the operation. With these flags a run that diverged
            raises even if `throw` is false. A NaN that stands for a missing value in a trajectory does not raise.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> wanted = [js.observe.loss(), js.observe.kernel_change()]
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 1.0, 4.0], observe=wanted)
        >>> print(run["loss"][0], run["kernel_change"].shape)
        0.5 (3,)
    """
    require_problem(problem)
    if not isinstance(dynamics, AbstractDynamics):
        raise TypeError(f"dynamics must be such as GradientFlow(), got {describe(dynamics)}")
    throw, progress = require_flag(throw, "throw"), None if progress is None else require_flag(progress, "progress")
    require_settings(dynamics, "this dynamics")
    with unwatched() as watched:
        times = read_times(ts, problem.dtype)
        with forward_mode(GRADIENTS), one_thread():
            # A choice may look at numbers, and factorize matrices to do so.
            dynamics = resolve(dynamics, problem, times)
        require_end(times, dynamics)
        observables = check_observables(observe, dynamics)
        for item in observables:
            if item.require is not None:
                item.require(problem)
        if (until := condition_of(dynamics)) is not None:
            fits(until, problem)
        with memory_for("this run", SMALLER), forward_mode(GRADIENTS):
            inside = traced((problem, dynamics), times)
            # Inside a trace nothing is factorized yet.
            with contextlib.nullcontext() if inside else one_thread():
                if isinstance(dynamics, AbstractRandomAccess):
                    ended = _look_up(problem, dynamics, times, observables)
                elif inside:
                    ended = _march_inside(problem, dynamics, times, observables)
                else:
                    ended = _march(problem, dynamics, times, observables, progress)
                # JAX dispatches asynchronously: LAPACK must stay limited until the results are ready, and a lack of
                # memory shows only then.
                trajectory, code = ended if inside else jax.block_until_ready(ended)
            with watched() as any_flag:
                diverged = any_flag and _watch(problem, dynamics, trajectory, code)
            if throw or diverged:
                _raise_on_failure(problem, dynamics, trajectory, code)
        _warn(trajectory, code, times, marches=isinstance(dynamics, AbstractMarching))
        if isinstance(dynamics, AbstractStandIn) and not inside and int(code) < FIRST_FAILURE:
            if doubt := dynamics.doubt(problem, trajectory.final):
                warnings.warn(f"{trajectory.dynamics}: {doubt}", stacklevel=2)
    return trajectory


def _watch(problem: Problem, dynamics: AbstractDynamics, trajectory: Trajectory, code: Int[Array, ""]) -> bool:
    """Evaluates the network at the last parameters, one operation at a time, so that JAX's flags name a faulty one.

    Returns whether the run diverged even so, as when a step beyond these parameters fails; False if traced.
    """
    number = concrete(code)
    if number is None or number.ndim:
        return False
    params = trajectory.final.params if Quantity.PARAMS in dynamics.provides else problem.params
    jax.grad(problem.objective)(params)
    if problem.x_test is not None:
        problem.test_outputs(params)
    return RESULT_NAMES[int(number)] == "diverged"


def check_applies(problem: Problem, dynamics: Any, throw: bool) -> None:
    """Raises NotApplicable if the check of a dynamics fails; for a violation in numbers only if `throw`."""
    validity = dynamics.check(problem)
    if validity.structural or (throw and concrete(validity.applies) is not None and not bool(validity.applies)):
        raise validity.refusal(dynamics.name)


def require_kind(problem: Problem, dynamics: AbstractRandomAccess) -> None:
    """Raises NotApplicable if a closed form is for another kind of problem, which shapes alone decide."""
    missed = [f"{a.name}: {a.detail}" for a in dynamics.check(problem).assumptions if a.structural]
    if missed:
        raise NotApplicable(f"{dynamics.name} does not solve this problem: it needs {'; '.join(missed)}")


def observe_march(
    problem: Problem, observables: tuple[Observable, ...], run: March, *, at_once: int = TIMES_AT_ONCE
) -> dict[str, Array]:
    """Observes the saved parameters of a run, one row per time."""

    def read(row) -> dict[str, Array]:
        t, params = row
        return _read(observables, run.view(problem, t, params))

    rows = run.times, run.saved
    if run.times.size == 1:  # not as a batch of one, so that XLA merges equal computations
        return jax.tree.map(lambda leaf: leaf[None], read(jax.tree.map(lambda leaf: leaf[-1], rows)))
    return jax.lax.map(read, rows, batch_size=at_once)


def observe_random_access(
    problem: Problem, dynamics: AbstractRandomAccess, observables: tuple[Observable, ...], ts: Float[Array, " times"]
) -> dict[str, Array]:
    """Observes a closed form at every time, one row per time; NaN where it does not solve the problem."""
    observed = jax.vmap(lambda t: _read(observables, dynamics.at(problem, t)))(ts)
    solved = random_access_result(problem, dynamics) == RESULTS.successful
    return _nan_unless(solved, observed)


def _nan_unless(fine: Bool[Array, ""], observed: dict[str, Array]) -> dict[str, Array]:
    blank = lambda leaf: jnp.where(fine, leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
    return jax.tree.map(blank, observed)


def _read(observables: tuple[Observable, ...], view: View) -> dict[str, Array]:
    return {item.name: item(view) for item in observables}


def random_access_result(problem: Problem, dynamics: AbstractRandomAccess) -> RESULTS:
    """The result of a closed form."""
    result = RESULTS.where(dynamics.check(problem).applies, RESULTS.successful, RESULTS.not_applicable)
    return RESULTS.where(problem.valid, result, RESULTS.invalid)


def _look_up(problem, dynamics, ts, observables) -> Ended:
    """A closed form at all times. The same program decides whether it applies, since asking first would take longer."""
    try:
        return _closed_form(problem, dynamics, ts, observables)
    except Exception:
        if not traced((problem, dynamics), ts):
            check_applies(problem, dynamics, throw=False)  # a clearer error if the problem is of another kind
        raise


@eqx.filter_jit
def _closed_form(problem, dynamics, ts, observables) -> Ended:
    require_kind(problem, dynamics)
    row = jnp.atleast_1d(ts)
    fine, zero = are_times(row, dynamics), jnp.zeros((), int)
    result = RESULTS.where(fine, random_access_result(problem, dynamics), RESULTS.invalid)
    final = dynamics.at(problem, row[-1])
    found = _trajectory(
        dynamics,
        observables,
        ts,
        row,
        _nan_unless(fine, observe_random_access(problem, dynamics, observables, row)),
        row[-1],
        result,
        Stats(zero, zero, zero, zero),
        final.certificate,
        final,
    )
    return found, result_code(result)


@eqx.filter_jit
def _march_inside(problem, dynamics, ts, observables) -> Ended:
    """A march inside another program."""
    row = jnp.atleast_1d(ts)
    fine = are_times(row, dynamics)
    # Invalid times become 0, so that the march ends at once.
    run = march(problem, dynamics, jnp.where(fine, row, 0))
    found = _of_march(problem, dynamics, observables, ts, run)
    changed = (
        jnp.where(fine, found.ts, ts),
        _nan_unless(fine, found.observed),
        RESULTS.where(fine, found.result, RESULTS.invalid),
    )
    found = eqx.tree_at(lambda found: (found.ts, found.observed, found.result), found, changed)
    return found, result_code(found.result)


def _of_march(problem, dynamics, observables, ts, run: March) -> Trajectory:
    return _trajectory(
        dynamics,
        observables,
        ts,
        run.times,
        observe_march(problem, observables, run),
        run.t_end,
        run.result,
        _stats(run),
        run.certificate,
        run.view(problem, run.t_end, run.params),
    )


def _stats(run: March) -> Stats:
    kernels = jnp.zeros_like(run.steps) if run.kernels is None else run.kernels
    return Stats(run.steps, run.rejected, run.evaluations, kernels, run.integrators, run.way)


def _trajectory(dynamics, observables, ts, row, observed, t_end, result, stats, certificate, final) -> Trajectory:
    reshape = lambda array: array.reshape(ts.shape + array.shape[1:])
    return Trajectory(
        ts=reshape(row),
        observed=jax.tree.map(reshape, observed),
        t_end=t_end,
        result=result,
        stats=stats,
        certificate=certificate,
        final=final,
        labels=tuple(Label(item.name, item.dims, item.unit) for item in observables),
        dynamics=dynamics.name,
    )


@eqx.filter_jit
def _finish(problem, dynamics, observables, ts, state) -> Ended:
    found = _of_march(problem, dynamics, observables, ts, dynamics.finish(problem, state))
    return found, result_code(found.result)


def _march(problem, dynamics, ts, observables, progress: bool | None) -> Ended:
    """A march in three programs: new observables do not recompile the steps, and Python can show progress."""
    with shown(progress, dynamics.name, ts.size) as show:
        state = last_state(problem, dynamics, ts, show)
    return _finish(problem, dynamics, observables, ts, state)


# A run that is trusted to fewer digits than this warns.
LEAST_TRUST = 2.0


def _warn(trajectory: Trajectory, code: Int[Array, ""], times: Float[Array, "..."], *, marches: bool) -> None:
    """Warns of a march that took no step, and of a run that can hardly be trusted."""
    known, number = concrete(trajectory.stats.steps), concrete(code)
    if known is None or number is None or known.ndim or number >= FIRST_FAILURE or concrete(times) is None:
        return
    name, last = trajectory.dynamics, np.atleast_1d(np.asarray(times))[-1]
    if marches and known == 0 and last > 0 and RESULT_NAMES[int(number)] != "event":
        warnings.warn(
            f"{name} took no step: its first one ends farther from the last time, {last:.6g}, than the start does, so "
            "the trajectory holds the start only. Ask for later times, or lower the rate",
            stacklevel=3,
        )
    certificate = None if trajectory.certificate is None else trajectory.certificate.on_host()
    if certificate is not None and certificate.trust < LEAST_TRUST:
        warnings.warn(
            f"this run of {name} can be trusted to {certificate.trust:.1f} digits only: {certificate!r}. "
            f"{certificate.remedy}{see('low-trust')}",
            stacklevel=3,
        )


def _raise_on_failure(
    problem: Problem, dynamics: AbstractDynamics, trajectory: Trajectory, code: Int[Array, ""]
) -> None:
    number = concrete(code)
    if number is None or number.ndim or number < FIRST_FAILURE:
        return
    refused = RESULT_NAMES[int(number)] == "not_applicable" and isinstance(dynamics, AbstractStandIn)
    if isinstance(dynamics, AbstractRandomAccess) or refused:
        # The check says by how much each assumption is missed; if none is, the error below is raised.
        check_applies(problem, dynamics, throw=True)
    found = ""
    if RESULT_NAMES[int(number)] == "diverged" and int(trajectory.stats.steps) == 0 and problem.state is None:
        found = nonfinite_derivatives(problem.net, problem.x).words()
    section = RESULT_NAMES[int(number)].replace("_", "-")
    raise SolveError(
        f"{trajectory.dynamics} ended at t = {float(trajectory.t_end):.6g} after {int(trajectory.stats.steps)} "
        f"steps: {result_names(number)}. {RESULTS[trajectory.result]} (`throw=False` returns the trajectory up to "
        f"there.){' Found at the start: ' if found else ''}{found}{see(section)}"
    )
