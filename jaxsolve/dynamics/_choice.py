"""Which integrator serves which problem: the one that costs least."""

import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .. import kernels, losses
from .._brief import brief_jit, traced
from .._flop import flop
from .._memory import LARGE, memory_for
from .._problem import flat_rates, Problem
from ..integrators import FunctionSpace, ParameterSpace, RungeKuttaChebyshev
from ._kinks import kinked


# Where stiffness is not known: up to so many outputs on the training set a flow is hardly stiff; up to so many
# parameters, if they are no more than the outputs, the eigenvectors of the Hessian are the cheapest.
FEW_OUTPUTS = 16
FEW_PARAMETERS = 500
# Of a flow so stiff that eigenvectors may be worth their cost: the stages of a stabilised explicit method.
_MANY_STAGES = 2000

# Measured on two cores, in seconds and float64. Proportions are all that counts; on a GPU they were not measured.
_CALL, _FLOP = 1e-5, 3e-11  # of a gradient
_CUBE = 2e-10  # of the eigenvectors of an N x N matrix, over N^3
_LONGER = {diffrax.Tsit5: 0.0, RungeKuttaChebyshev: 0.7, ParameterSpace: 1.0, FunctionSpace: 2.3}  # compilation
_LONGER_WITH_INERTIA, _DEARER_WITH_INERTIA = 5.0, 2.0  # `FunctionSpace`: seconds to compile, and times its run
RUNS = 10  # that compilation is held against: most problems are solved once, or a few times

_SMOOTH_STEPS = 30  # of an explicit method, where its error and not its stability bounds them
_STABLE = 3.507  # a step of Tsit5 times the stiffness, at most: where |R(-x)| = 1, R by the tableau of diffrax
_EXACT_STEPS, _EXACT_GRADIENTS = 40, 15  # of a method with eigenvectors, and what each takes besides these
_STIFFER = 1.5  # than at the start, on the way: measured 0.3 to 10
# Steps of Tsit5, and evaluations of `RungeKuttaChebyshev`, per kink that a sample meets: at their tolerances. That of
# `FunctionSpace` is looser with kinks; it takes this many times its steps.
_BENT_STEPS, _BENT_EVALUATIONS, _BENT_EXACT = 0.5, 0.2, 2
_ITERATIONS = 6  # of the power method: found the stiffness of seventeen problems to 20 %


class _Measured(NamedTuple):
    """What the choice needs of a problem: two numbers, and what is known while tracing.

    Attributes:
        rate: the stiffness per time: the spectral radius of the Jacobian of the flow.
        flop: of a gradient.
        parameters: how many.
        held: bytes that `FunctionSpace` takes.
        samples: if they may meet kinks, else 0.
    """

    rate: float | int
    flop: float | int
    parameters: float | int
    held: float | int
    samples: float | int


def choose_integrator(
    problem: Problem, ts: Float[Array, "..."] | None = None, rtol: float | None = None
) -> diffrax.AbstractSolver:
    """The integrator of `GradientFlow()`: by the time it will take until the last of `ts`, its compilation included.

    Where numbers are traced, in a sweep, or where time may end in inf, how stiff the flow will be is not known: then by
    the kind and size of the problem.
    """
    last = None if ts is None else _known_end(problem, ts)
    if last is None or isinstance(problem.loss, losses.Hinge):
        return _by_size(problem)
    found = _measure(problem)
    return _by_size(problem) if found is None else _cheapest(found, problem.y.size, last, rtol)


def stiff_with_inertia(
    problem: Problem, tau: Float[Array, ""], ts: Float[Array, "..."] | None = None, rtol: float | None = None
) -> bool:
    """Whether `FunctionSpace` is the one for tau w'' + w' = -gradient, beside Tsit5; as `choose_integrator` sees it.

    The fastest motion of a mode of rate lambda is that of the larger root of tau s^2 + s + lambda = 0.
    """
    last = None if ts is None or traced((), tau) else _known_end(problem, ts)
    found = None if last is None else _measure(problem)
    if last is None or found is None:
        return isinstance(_by_size(problem), FunctionSpace)
    delay = float(tau)
    root = 0.5 * (1 + np.emath.sqrt(1 - 4 * found.rate * delay)) / delay
    explicit = _by_explicit(found._replace(rate=float(abs(root))), last)
    exact = _DEARER_WITH_INERTIA * _by_kernel(found, problem.y.size, rtol)
    return _fits(found.held) and RUNS * explicit > _LONGER_WITH_INERTIA + RUNS * exact


def _known_end(problem: Problem, ts: Float[Array, "..."]) -> float | None:
    """The last time, if it is finite and the numbers of the problem are known, too."""
    last = np.inf if traced(problem, ts) else float(np.max(np.asarray(ts)))
    return last if np.isfinite(last) else None


def _measure(problem: Problem) -> _Measured | None:
    """None where it is not finite, as at rest."""
    with memory_for("what chooses an integrator", "take fewer samples, or name one: GradientFlow(diffrax.Tsit5())"):
        found = _Measured(*np.asarray(brief_jit(_measured, optimise=False)(problem)).tolist())
    return found if np.isfinite(found).all() else None


def _by_size(problem: Problem) -> diffrax.AbstractSolver:
    """Of a flow of unknown stiffness: what serves if it is stiff, unless its outputs are few."""
    outputs, parameters = problem.y.size, _parameters(problem)
    # Along the margins of plain hinge an error per parameter sees every jump of the velocity.
    if outputs <= FEW_OUTPUTS and not isinstance(problem.loss, losses.Hinge):
        return diffrax.Tsit5()
    if parameters <= min(outputs, FEW_PARAMETERS):
        return ParameterSpace()
    stages = _MANY_STAGES * (_CALL + _FLOP * 6 * problem.x.shape[0] * parameters)
    if _EXACT_STEPS * _CUBE * outputs**3 < stages and _fits(_held(problem)):
        return FunctionSpace()
    return RungeKuttaChebyshev()


def _cheapest(found: _Measured, outputs: int, T: float, rtol: float | None) -> diffrax.AbstractSolver:
    """By predicted seconds, those of compilation and of several runs."""
    gradient, stiffness = _gradient(found), _STIFFER * found.rate * T
    bends = found.samples * stiffness
    # Stages of 60 steps at rtol 1e-4; at 1e-5 2.5 times as many: the error falls like rtol^(2/3).
    stages = 2.5 * (150 + math.sqrt(1.54 * 60 * stiffness)) + _BENT_EVALUATIONS * bends
    run = {diffrax.Tsit5: _by_explicit(found, T), RungeKuttaChebyshev: _finer(rtol, 1e-5) * gradient * stages}
    if found.parameters <= min(outputs, FEW_PARAMETERS):
        run[ParameterSpace] = (
            _finer(rtol, 1e-4) * _EXACT_STEPS * (_CUBE * found.parameters**3 + (5 + found.parameters) * gradient)
        )
    if _fits(found.held):
        run[FunctionSpace] = _by_kernel(found, outputs, rtol)
    return min(run, key=lambda kind: _LONGER[kind] + RUNS * run[kind])()


def _by_kernel(found: _Measured, outputs: int, rtol: float | None) -> float:
    """Seconds of `FunctionSpace`."""
    steps = _finer(rtol, 1e-4) * _EXACT_STEPS * (_BENT_EXACT if found.samples else 1)
    return steps * (_CUBE * outputs**3 + _EXACT_GRADIENTS * _gradient(found))


def _finer(rtol: float | None, default: float) -> float:
    """What a finer tolerance than the default costs methods of order 2 and 3, beside one of order 5."""
    return 1.0 if rtol is None else max(1.0, default / rtol) ** (1 / 3)


def _by_explicit(found: _Measured, T: float) -> float:
    """Seconds of Tsit5."""
    stiffness = _STIFFER * found.rate * T
    return 6 * _gradient(found) * (_SMOOTH_STEPS + stiffness / _STABLE + _BENT_STEPS * found.samples * stiffness)


def _gradient(found: _Measured) -> float:
    """Seconds of one."""
    return _CALL + _FLOP * found.flop


def _measured(problem: Problem) -> Float[Array, "5"]:
    """The fields of `_Measured`.

    A network from a small start grows stiffer while its outputs grow. So the Jacobian is taken where they are of the
    size of the targets, on the ray through the start.
    """
    start, unravel = ravel_pytree(problem.params)
    rates = flat_rates(problem)
    velocity = lambda w: -rates * jax.grad(lambda w: problem.objective(unravel(w)))(w)
    _, push = jax.linearize(velocity, _grown(problem, start, unravel))
    unit = lambda v: v / jnp.linalg.norm(v)
    v = jax.lax.fori_loop(0, _ITERATIONS, lambda _, v: push(unit(v)), push(velocity(start)))
    operations = flop(lambda p: jax.grad(p.objective)(p.params), problem)
    samples = problem.x.shape[0] if kinked(problem) else 0
    return jnp.stack([jnp.linalg.norm(v), *jnp.asarray([operations, start.size, _held(problem), samples], v.dtype)])


def _grown(problem: Problem, start: Float[Array, " params"], unravel: Any) -> Float[Array, " params"]:
    """The start, multiplied until the outputs are a tenth of the targets; as it is, if no factor below 2^20 will do."""
    before = 0 if problem.initial is None else problem.initial
    small = lambda w: jnp.linalg.norm(problem.outputs(unravel(w)) + before) < jnp.linalg.norm(problem.y) / 10
    factor = jax.lax.while_loop(
        lambda a: small(a * start) & (a < 2.0**20), lambda a: 1.25 * a, jnp.ones((), start.dtype)
    )
    return jnp.where(factor < 2.0**20, factor, 1) * start


def _parameters(problem: Problem) -> int:
    """How many there are; of the problem, as in a sweep, the shapes may be all that is known."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter_eval_shape(lambda p: p.params, problem)))


def _held(problem: Problem) -> int:
    """Bytes that `FunctionSpace` takes."""
    outputs, item = problem.y.size, problem.x.dtype.itemsize
    if problem.state is None:
        signals = eqx.filter_eval_shape(lambda p: kernels.LayeredJacobian(p.net, p.x).passing, problem)
        held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(signals) if hasattr(leaf, "shape"))
    else:
        held = outputs * _parameters(problem)  # a whole Jacobian
    # Signals are held by the step and its dense output; of the kernel there are also the eigenvectors and work space.
    return item * (3 * held + 8 * outputs**2)


def _fits(held: float | int) -> bool:
    """Whether so many bytes are less than half of the free memory, as far as it is known."""
    return held < LARGE or (free := kernels.free_memory()) is None or held < free // 2
