"""The choice of an integrator: the one with the lowest predicted cost, by the same rule wherever a flow runs.

The prediction counts floating-point operations. It depends on sizes, stiffness and the last time. It never depends on
the machine, its memory or the caller, because a different integrator has a different error. Compile time is left out: a
sweep compiles once for all lanes, a notebook once for all calls.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int

from ... import losses
from ..._checks import concrete
from ..._core import flat_rates, Problem
from ..._numerics import memory_for, norm, samples_in, unit
from ..._programs import channels_last, flop
from ...integrators import FunctionSpace, ParameterSpace, RungeKuttaChebyshev
from ...integrators._internal import first_direction
from ...kernels._internal import LayeredJacobian
from ._kinks import kinked


INTEGRATORS = (diffrax.Tsit5, RungeKuttaChebyshev, ParameterSpace, FunctionSpace)
"""The candidates of `GradientFlow()`."""

# For unknown stiffness: up to this many outputs on the training set a flow is hardly stiff; up to this many parameters,
# and no more than outputs, eigenvectors of the Hessian are cheapest.
FEW_OUTPUTS = 16
FEW_PARAMETERS = 500
# Stages of a stabilized explicit method for a flow so stiff that eigenvectors may be worth their cost.
_MANY_STAGES = 2000
# Bytes above which `FunctionSpace` is not chosen: half the memory of a small machine, but the same everywhere.
_MOST_HELD = 4_000_000_000

# In units of one operation of a gradient, which is mainly matrix products. Proportions were measured.
_CALL = 3e5  # fixed cost of a gradient, however small
_CUBE = 7  # cost of the eigenvectors of an N x N matrix, over N^3
_DEARER_WITH_INERTIA = 2.0  # cost factor of `FunctionSpace` with momentum

_SMOOTH_STEPS = 30  # of an explicit method, where error rather than stability limits them
_STABLE = 3.507  # largest Tsit5 step size times stiffness: |R(-x)| = 1 there, R from diffrax's tableau
_EXACT_STEPS, _EXACT_GRADIENTS = 40, 15  # of a method with eigenvectors; gradients per step besides these
_STIFFER = 1.5  # along the way, relative to the start: measured 0.3 to 10
# Per kink that a sample meets, at the default tolerances: steps of Tsit5, and evaluations of `RungeKuttaChebyshev`. The
# tolerance of `FunctionSpace` is looser with kinks; its steps are multiplied by the third number.
_BENT_STEPS, _BENT_EVALUATIONS, _BENT_EXACT = 0.5, 0.2, 2
_PRODUCTS = 7  # of the power method: gave the stiffness of seventeen problems to 20 %

Number = float | Float[Array, ""] | np.ndarray


class _ProblemSizes(NamedTuple):
    """The sizes of a problem, from its shapes.

    Attributes:
        outputs, parameters: their numbers; outputs are those on the training set.
        gradient: operations of one gradient.
        held: bytes that `FunctionSpace` needs; inf where it does not apply.
        samples: number of samples if they may meet kinks, else 0.
        jumps: whether the loss itself has kinks, and no curvature from which to estimate the stiffness.
    """

    outputs: int
    parameters: int
    gradient: float
    held: float
    samples: int
    jumps: bool


def place(problem: Problem, ts: Float[Array, "..."] | None, rtol: float | None) -> Int[ArrayLike, ""]:
    """The index in `INTEGRATORS` for a gradient flow up to the last of `ts`; for None and inf sizes decide."""
    if is_endless(ts):
        return in_shapes(lambda problem: _by_size(_sizes(problem)), problem)
    with _memory():
        return _place(_fixed(problem), jax.lax.stop_gradient(ts), rtol)  # pyright: ignore[reportArgumentType]


def possible(problem: Problem, rtol: float | None) -> tuple[int, ...]:
    """The indices in `INTEGRATORS` that `place` may return for problems of these shapes."""

    def found(problem: Problem) -> tuple[int, ...]:
        sizes = _sizes(problem)
        # The stiffness is not known yet, so anything that is cheapest somewhere in this range is possible.
        stiffness = np.concatenate([[0.0], np.logspace(-3, 15, 400)])
        cheapest = () if sizes.jumps else np.argmin(_costs(sizes, stiffness, rtol, np), axis=0)
        return tuple(sorted({_by_size(sizes), *map(int, cheapest)}))

    return in_shapes(found, problem)


def place_with_inertia(
    problem: Problem, tau: Float[Array, ""], ts: Float[Array, "..."] | None, rtol: float | None
) -> Int[ArrayLike, ""]:
    """Like `place`, for tau w'' + w' = -gradient: 0 for Tsit5, 1 for `FunctionSpace`.

    The fastest motion of a mode of rate lambda is given by the larger root of tau s^2 + s + lambda = 0.
    """
    if is_endless(ts):
        return int(in_shapes(lambda problem: INTEGRATORS[_by_size(_sizes(problem))] is FunctionSpace, problem))
    with _memory():
        return _place_with_inertia(_fixed(problem), *jax.lax.stop_gradient((tau, ts)), rtol)  # pyright: ignore[reportArgumentType]


def is_endless(ts: Float[Array, "..."] | None) -> bool:
    """True if times are known to end in inf, or are None."""
    known = None if ts is None else concrete(ts)
    return ts is None or (known is not None and bool(np.isinf(np.max(known))))


def in_shapes(function: Callable[[Problem], Any], problem: Problem) -> Any:
    """The value of a function for a problem that is traced, or whose shapes alone are known."""
    # The trace runs the function once; the side effect keeps a Python value, which a traced function could not return.
    found: list[Any] = []
    eqx.filter_eval_shape(lambda problem: found.append(function(problem)), problem)
    return found[0]


def _fixed(problem: Problem) -> Problem:
    """The problem without derivatives, because a choice is not differentiated."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, problem)


def _memory() -> Any:
    return memory_for("choosing an integrator", "take fewer samples, or name one: GradientFlow(diffrax.Tsit5())")


@eqx.filter_jit
def _place(problem: Problem, ts: Float[Array, "..."], rtol: float | None) -> Int[Array, ""]:
    sizes, last = _sizes(problem), jnp.max(ts)
    if sizes.jumps:
        return jnp.asarray(_by_size(sizes))
    stiffness = _rate_until(problem, last) * last
    cheapest = jnp.argmin(_costs(sizes, stiffness, rtol, jnp))
    # The stiffness is not finite for a start at rest, or where time ends in inf.
    return jnp.where(jnp.isfinite(stiffness), cheapest, _by_size(sizes))


@eqx.filter_jit
def _place_with_inertia(
    problem: Problem, tau: Float[Array, ""], ts: Float[Array, "..."], rtol: float | None
) -> Int[Array, ""]:
    sizes, last = _sizes(problem), jnp.max(ts)
    rate = _rate_until(problem, last)
    # The larger of two real roots, or a conjugate pair of modulus sqrt(rate/tau).
    apart = 1 - 4 * rate * tau
    root = jnp.where(apart > 0, (1 + jnp.sqrt(jnp.maximum(apart, 0))) / (2 * tau), jnp.sqrt(rate / tau))
    exact = _DEARER_WITH_INERTIA * _by_kernel(sizes, rtol)
    cheaper = (exact < _by_explicit(sizes, root * last)) & (sizes.held < _MOST_HELD)
    stiff = INTEGRATORS[_by_size(sizes)] is FunctionSpace
    return jnp.where(jnp.isfinite(root * last), cheaper, stiff).astype(int)


def _by_size(sizes: _ProblemSizes) -> int:
    """The index for a flow of unknown stiffness: a method for stiff flows, unless it has few outputs."""
    # Along the margins of plain hinge an error per parameter is sensitive to every jump of the velocity.
    if sizes.outputs <= FEW_OUTPUTS and not sizes.jumps:
        return INTEGRATORS.index(diffrax.Tsit5)
    if _has_few_parameters(sizes):
        return INTEGRATORS.index(ParameterSpace)
    exact, stages = _EXACT_STEPS * _CUBE * sizes.outputs**3, _MANY_STAGES * sizes.gradient
    return INTEGRATORS.index(FunctionSpace if exact < stages and sizes.held < _MOST_HELD else RungeKuttaChebyshev)


def _has_few_parameters(sizes: _ProblemSizes) -> bool:
    return sizes.parameters <= min(sizes.outputs, FEW_PARAMETERS)


def _costs(sizes: _ProblemSizes, stiffness: Any, rtol: float | None, of: Any) -> Any:
    """The cost of each of `INTEGRATORS`, in operations; inf for those unavailable at these sizes.

    Stiffness is the rate times the last time; `of` is the module of its arrays, NumPy or `jax.numpy`.
    """
    grown = _STIFFER * stiffness
    # 60 steps at rtol 1e-4, with sqrt(1.54 grown/60) stages each. At 1e-5 there are 2.5 times as many, because the
    # error falls like rtol^(2/3).
    stages = 2.5 * (150 + of.sqrt(1.54 * 60 * grown)) + _BENT_EVALUATIONS * sizes.samples * grown
    by_hessian = _CUBE * sizes.parameters**3 + (5 + sizes.parameters) * sizes.gradient
    run = {
        diffrax.Tsit5: _by_explicit(sizes, stiffness),
        RungeKuttaChebyshev: _finer(rtol, 1e-5) * sizes.gradient * stages,
        ParameterSpace: _finer(rtol, 1e-4) * _EXACT_STEPS * by_hessian if _has_few_parameters(sizes) else math.inf,
        FunctionSpace: _by_kernel(sizes, rtol) if sizes.held < _MOST_HELD else math.inf,
    }
    # Broadcast to the shape of the stiffness, on which some of them do not depend.
    return of.stack([run[kind] + 0 * stiffness for kind in INTEGRATORS])


def _by_kernel(sizes: _ProblemSizes, rtol: float | None) -> float:
    """The cost of `FunctionSpace`, in operations."""
    steps = _finer(rtol, 1e-4) * _EXACT_STEPS * (_BENT_EXACT if sizes.samples else 1)
    return steps * (_CUBE * sizes.outputs**3 + _EXACT_GRADIENTS * sizes.gradient)


def _finer(rtol: float | None, default: float) -> float:
    """The extra cost of a finer tolerance than the default for methods of order 2 and 3, relative to order 5."""
    return 1.0 if rtol is None else max(1.0, default / rtol) ** (1 / 3)


def _by_explicit(sizes: _ProblemSizes, stiffness: Number) -> Number:
    """The cost of Tsit5, in operations."""
    grown = _STIFFER * stiffness
    return 6 * sizes.gradient * (_SMOOTH_STEPS + grown / _STABLE + _BENT_STEPS * sizes.samples * grown)


def _rate_until(problem: Problem, last: Float[Array, ""]) -> Float[Array, ""]:
    """The stiffness per time; NaN for an infinite time, where it is not needed."""
    return jax.lax.cond(jnp.isfinite(last), lambda: _rate(problem), lambda: jnp.full((), jnp.nan, problem.dtype))


def _rate(problem: Problem) -> Float[Array, ""]:
    """The stiffness per time: the spectral radius of the Jacobian of the flow.

    A network from a small start becomes stiffer while its outputs grow. The Jacobian is therefore taken where they are
    comparable to the targets, on the ray through the start.
    """
    start, unravel = ravel_pytree(problem.params)
    rates = flat_rates(problem)
    velocity = lambda w: -rates * jax.grad(lambda w: problem.objective(unravel(w)))(w)
    # One linearization for all products of the power method, in a loop so that it is compiled once.
    moving, push = jax.linearize(velocity, _grown(problem, start, unravel))
    # At rest the result is NaN: the cost of a flow that stays there is unknown.
    first = first_direction(unit(moving))
    push = channels_last(push)
    return norm(jax.lax.fori_loop(0, _PRODUCTS, lambda _, v: push(unit(v)), first))


def _grown(problem: Problem, start: Float[Array, " params"], unravel: Any) -> Float[Array, " params"]:
    """The start, scaled until the outputs are a tenth of the targets; unchanged if no factor below 2^20 suffices."""
    # For a centered problem the network's own outputs count: after centering they are 0 at any start.
    before = 0 if problem.initial is None else problem.initial
    outputs = channels_last(lambda w: problem.outputs(unravel(w)))
    small = lambda w: jnp.linalg.norm(outputs(w) + before) < jnp.linalg.norm(problem.target_rows) / 10
    factor = jax.lax.while_loop(
        lambda a: small(a * start) & (a < 2.0**20), lambda a: 1.25 * a, jnp.ones((), start.dtype)
    )
    return jnp.where(factor < 2.0**20, factor, 1) * start


def _sizes(problem: Problem) -> _ProblemSizes:
    """The sizes of a problem, which may be traced."""
    outputs, item = len(problem.y) * problem.out_size, problem.dtype.itemsize
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    if problem.state is None:
        records = eqx.filter_eval_shape(lambda p: LayeredJacobian(p.net, p.x).records, problem)
        held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(records) if hasattr(leaf, "shape"))
    else:
        held = outputs * parameters  # a whole Jacobian
    # The step and its dense output hold activations; of the kernel there are also eigenvectors and work space. With
    # weight decay it does not apply.
    held = item * (3 * held + 8 * outputs**2) if problem.weight_decay is None else math.inf
    operations = flop(lambda p: jax.grad(p.objective)(p.params), problem)
    return _ProblemSizes(
        outputs=outputs,
        parameters=parameters,
        # If XLA gives no count: a product and a sum per sample and parameter forward, and twice that backward.
        gradient=_CALL + (operations if np.isfinite(operations) else 6 * samples_in(problem.x) * parameters),
        held=held,
        samples=samples_in(problem.x) if kinked(problem) else 0,
        jumps=isinstance(problem.loss, losses.Hinge),
    )
