"""The choice of an integrator: the one that is predicted to cost least, by one rule wherever a flow runs.

The prediction counts floating-point operations. It asks for sizes, for how stiff the flow is, and for its last time:
never for the machine, its memory or who asks, since another integrator has another error. What it takes to compile is
left out: a sweep compiles once for all lanes, a notebook for all its calls.
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
from ..._programs import flop
from ...integrators import FunctionSpace, ParameterSpace, RungeKuttaChebyshev
from ...integrators._internal import first_direction
from ...kernels._internal import LayeredJacobian
from ._kinks import kinked


INTEGRATORS = (diffrax.Tsit5, RungeKuttaChebyshev, ParameterSpace, FunctionSpace)
"""Those of `GradientFlow()`."""

# Where stiffness is not known: up to so many outputs on the training set a flow is hardly stiff; up to so many
# parameters, if they are no more than the outputs, the eigenvectors of the Hessian are the cheapest.
FEW_OUTPUTS = 16
FEW_PARAMETERS = 500
# Of a flow so stiff that eigenvectors may be worth their cost: the stages of a stabilized explicit method.
_MANY_STAGES = 2000
# Bytes beyond which `FunctionSpace` is not chosen: half the memory of a small machine, on every machine.
_MOST_HELD = 4_000_000_000

# In operations like those of a gradient, which is a product of matrices in the main. Proportions were measured.
_CALL = 3e5  # what a gradient costs however small it is
_CUBE = 7  # the eigenvectors of an N x N matrix, over N^3
_DEARER_WITH_INERTIA = 2.0  # `FunctionSpace`: times its run

_SMOOTH_STEPS = 30  # of an explicit method, where its error and not its stability bounds them
_STABLE = 3.507  # a step of Tsit5 times the stiffness, at most: where |R(-x)| = 1, R by the tableau of diffrax
_EXACT_STEPS, _EXACT_GRADIENTS = 40, 15  # of a method with eigenvectors, and what each takes besides these
_STIFFER = 1.5  # than at the start, on the way: measured 0.3 to 10
# Steps of Tsit5, and evaluations of `RungeKuttaChebyshev`, per kink that a sample meets: at their tolerances. That of
# `FunctionSpace` is looser with kinks; it takes this many times its steps.
_BENT_STEPS, _BENT_EVALUATIONS, _BENT_EXACT = 0.5, 0.2, 2
_PRODUCTS = 7  # of the power method: found the stiffness of seventeen problems to 20 %

Number = float | Float[Array, ""] | np.ndarray


class _ProblemSizes(NamedTuple):
    """The sizes of a problem, as its shapes tell them.

    Attributes:
        outputs, parameters: how many, the outputs on the training set.
        gradient: the operations of one.
        held: bytes that `FunctionSpace` takes.
        samples: if they may meet kinks, else 0.
        jumps: whether its loss has them, and no curvature by which its stiffness could be seen.
    """

    outputs: int
    parameters: int
    gradient: float
    held: int
    samples: int
    jumps: bool


def place(problem: Problem, ts: Float[Array, "..."] | None, rtol: float | None) -> Int[ArrayLike, ""]:
    """The index in `INTEGRATORS` for a gradient flow until the last of `ts`; None and inf leave it to sizes."""
    if is_endless(ts):
        return in_shapes(lambda problem: _by_size(_sizes(problem)), problem)
    with _memory():
        return _place(_fixed(problem), jax.lax.stop_gradient(ts), rtol)  # pyright: ignore[reportArgumentType]


def possible(problem: Problem, rtol: float | None) -> tuple[int, ...]:
    """The places in `INTEGRATORS` that `place` may give for problems of these shapes."""

    def found(problem: Problem) -> tuple[int, ...]:
        sizes = _sizes(problem)
        # Any stiffness may turn up once there are numbers: what is cheapest somewhere in this range is possible.
        stiffness = np.concatenate([[0.0], np.logspace(-3, 15, 400)])
        cheapest = () if sizes.jumps else np.argmin(_costs(sizes, stiffness, rtol, np), axis=0)
        return tuple(sorted({_by_size(sizes), *map(int, cheapest)}))

    return in_shapes(found, problem)


def place_with_inertia(
    problem: Problem, tau: Float[Array, ""], ts: Float[Array, "..."] | None, rtol: float | None
) -> Int[ArrayLike, ""]:
    """For tau w'' + w' = -gradient 0 where Tsit5 integrates, 1 where `FunctionSpace` does; as `place`.

    The fastest motion of a mode of rate lambda is that of the larger root of tau s^2 + s + lambda = 0.
    """
    if is_endless(ts):
        return int(in_shapes(lambda problem: INTEGRATORS[_by_size(_sizes(problem))] is FunctionSpace, problem))
    with _memory():
        return _place_with_inertia(_fixed(problem), *jax.lax.stop_gradient((tau, ts)), rtol)  # pyright: ignore[reportArgumentType]


def is_endless(ts: Float[Array, "..."] | None) -> bool:
    """True if times are known to end in inf, or nothing is known of them."""
    known = None if ts is None else concrete(ts)
    return ts is None or (known is not None and bool(np.isinf(np.max(known))))


def in_shapes(function: Callable[[Problem], Any], problem: Problem) -> Any:
    """The value of a function for a problem that is traced, or of which shapes are all that is known."""
    # The trace runs the function once, and its side effect keeps a value of Python's, which a program could not return.
    found: list[Any] = []
    eqx.filter_eval_shape(lambda problem: found.append(function(problem)), problem)
    return found[0]


def _fixed(problem: Problem) -> Problem:
    """Derivatives do not go through a choice."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, problem)


def _memory() -> Any:
    return memory_for("what chooses an integrator", "take fewer samples, or name one: GradientFlow(diffrax.Tsit5())")


@eqx.filter_jit
def _place(problem: Problem, ts: Float[Array, "..."], rtol: float | None) -> Int[Array, ""]:
    sizes, last = _sizes(problem), jnp.max(ts)
    if sizes.jumps:
        return jnp.asarray(_by_size(sizes))
    stiffness = _rate_until(problem, last) * last
    cheapest = jnp.argmin(_costs(sizes, stiffness, rtol, jnp))
    # It is not finite at rest, and where time ends in inf.
    return jnp.where(jnp.isfinite(stiffness), cheapest, _by_size(sizes))


@eqx.filter_jit
def _place_with_inertia(
    problem: Problem, tau: Float[Array, ""], ts: Float[Array, "..."], rtol: float | None
) -> Int[Array, ""]:
    sizes, last = _sizes(problem), jnp.max(ts)
    rate = _rate_until(problem, last)
    # Two real roots, of which the larger counts, or a conjugate pair of modulus sqrt(rate/tau).
    apart = 1 - 4 * rate * tau
    root = jnp.where(apart > 0, (1 + jnp.sqrt(jnp.maximum(apart, 0))) / (2 * tau), jnp.sqrt(rate / tau))
    exact = _DEARER_WITH_INERTIA * _by_kernel(sizes, rtol)
    cheaper = (exact < _by_explicit(sizes, root * last)) & (sizes.held < _MOST_HELD)
    stiff = INTEGRATORS[_by_size(sizes)] is FunctionSpace
    return jnp.where(jnp.isfinite(root * last), cheaper, stiff).astype(int)


def _by_size(sizes: _ProblemSizes) -> int:
    """The index for a flow of unknown stiffness: what serves if it is stiff, unless its outputs are few."""
    # Along the margins of plain hinge an error per parameter sees every jump of the velocity.
    if sizes.outputs <= FEW_OUTPUTS and not sizes.jumps:
        return INTEGRATORS.index(diffrax.Tsit5)
    if _has_few_parameters(sizes):
        return INTEGRATORS.index(ParameterSpace)
    exact, stages = _EXACT_STEPS * _CUBE * sizes.outputs**3, _MANY_STAGES * sizes.gradient
    return INTEGRATORS.index(FunctionSpace if exact < stages and sizes.held < _MOST_HELD else RungeKuttaChebyshev)


def _has_few_parameters(sizes: _ProblemSizes) -> bool:
    return sizes.parameters <= min(sizes.outputs, FEW_PARAMETERS)


def _costs(sizes: _ProblemSizes, stiffness: Any, rtol: float | None, of: Any) -> Any:
    """The cost of each of `INTEGRATORS`, in operations; inf for those that are not available at these sizes.

    Stiffness is per time, times the last time; `of` is the NumPy of its kind.
    """
    grown = _STIFFER * stiffness
    # Stages of 60 steps at rtol 1e-4; at 1e-5 2.5 times as many: the error falls like rtol^(2/3).
    # In each of 60 steps sqrt(1.54 grown/60).
    stages = 2.5 * (150 + of.sqrt(1.54 * 60 * grown)) + _BENT_EVALUATIONS * sizes.samples * grown
    by_hessian = _CUBE * sizes.parameters**3 + (5 + sizes.parameters) * sizes.gradient
    run = {
        diffrax.Tsit5: _by_explicit(sizes, stiffness),
        RungeKuttaChebyshev: _finer(rtol, 1e-5) * sizes.gradient * stages,
        ParameterSpace: _finer(rtol, 1e-4) * _EXACT_STEPS * by_hessian if _has_few_parameters(sizes) else math.inf,
        FunctionSpace: _by_kernel(sizes, rtol) if sizes.held < _MOST_HELD else math.inf,
    }
    # All in the shape of the stiffness: some of them do not depend on it.
    return of.stack([run[kind] + 0 * stiffness for kind in INTEGRATORS])


def _by_kernel(sizes: _ProblemSizes, rtol: float | None) -> float:
    """The cost of `FunctionSpace`, in operations."""
    steps = _finer(rtol, 1e-4) * _EXACT_STEPS * (_BENT_EXACT if sizes.samples else 1)
    return steps * (_CUBE * sizes.outputs**3 + _EXACT_GRADIENTS * sizes.gradient)


def _finer(rtol: float | None, default: float) -> float:
    """The factor that a tolerance finer than the default costs methods of order 2 and 3, beside one of order 5."""
    return 1.0 if rtol is None else max(1.0, default / rtol) ** (1 / 3)


def _by_explicit(sizes: _ProblemSizes, stiffness: Number) -> Number:
    """The cost of Tsit5, in operations."""
    grown = _STIFFER * stiffness
    return 6 * sizes.gradient * (_SMOOTH_STEPS + grown / _STABLE + _BENT_STEPS * sizes.samples * grown)


def _rate_until(problem: Problem, last: Float[Array, ""]) -> Float[Array, ""]:
    """The stiffness per time; NaN for an infinite time, where nobody asks for it."""
    return jax.lax.cond(jnp.isfinite(last), lambda: _rate(problem), lambda: jnp.full((), jnp.nan, problem.dtype))


def _rate(problem: Problem) -> Float[Array, ""]:
    """The stiffness per time: the spectral radius of the Jacobian of the flow.

    A network from a small start grows stiffer while its outputs grow. So the Jacobian is taken where they are of the
    size of the targets, on the ray through the start.
    """
    start, unravel = ravel_pytree(problem.params)
    rates = flat_rates(problem)
    velocity = lambda w: -rates * jax.grad(lambda w: problem.objective(unravel(w)))(w)
    # One linearization for all products of the power method, in a loop, where it is compiled once.
    moving, push = jax.linearize(velocity, _grown(problem, start, unravel))
    # At rest it is NaN: nobody knows what a flow that stays there costs.
    first = first_direction(unit(moving))
    return norm(jax.lax.fori_loop(0, _PRODUCTS, lambda _, v: push(unit(v)), first))


def _grown(problem: Problem, start: Float[Array, " params"], unravel: Any) -> Float[Array, " params"]:
    """The start, multiplied until the outputs are a tenth of the targets; as it is, if no factor below 2^20 will do."""
    # Of a centered problem the network's own outputs count: less the first ones they are 0 at any start.
    before = 0 if problem.initial is None else problem.initial
    small = lambda w: jnp.linalg.norm(problem.outputs(unravel(w)) + before) < jnp.linalg.norm(problem.target_rows) / 10
    factor = jax.lax.while_loop(
        lambda a: small(a * start) & (a < 2.0**20), lambda a: 1.25 * a, jnp.ones((), start.dtype)
    )
    return jnp.where(factor < 2.0**20, factor, 1) * start


def _sizes(problem: Problem) -> _ProblemSizes:
    """The sizes of a traced problem."""
    outputs, item = len(problem.y) * problem.out_size, problem.dtype.itemsize
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    if problem.state is None:
        records = eqx.filter_eval_shape(lambda p: LayeredJacobian(p.net, p.x).records, problem)
        held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(records) if hasattr(leaf, "shape"))
    else:
        held = outputs * parameters  # a whole Jacobian
    operations = flop(lambda p: jax.grad(p.objective)(p.params), problem)
    return _ProblemSizes(
        outputs=outputs,
        parameters=parameters,
        # Where XLA does not say: a product and a sum per sample and parameter forward, and twice that backward.
        gradient=_CALL + (operations if np.isfinite(operations) else 6 * samples_in(problem.x) * parameters),
        # Signals are held by the step and its dense output; of the kernel there are also eigenvectors and work space.
        held=item * (3 * held + 8 * outputs**2),
        samples=samples_in(problem.x) if kinked(problem) else 0,
        jumps=isinstance(problem.loss, losses.Hinge),
    )
