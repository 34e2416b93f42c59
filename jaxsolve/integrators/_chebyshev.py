"""A stabilized explicit Runge-Kutta method for stiff flows with a real spectrum."""

from typing import Any, cast, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Inexact, Int, PyTree

from .._checks import require_size


Y = PyTree[Inexact[Array, "..."]]
Scalar = Float[Array, ""]
Time = Float[Array | np.ndarray, ""] | float

_DAMPING = 2 / 13  # keeps |R| below about 1 - _DAMPING/3 for stiff modes, and shortens the stable interval by 2 %
_STAGES = 1.54  # s stages are stable up to (s^2 - 1)/1.54
_TERMS = 8  # of the expansions about 1: the next is below the rounding error of float64
_SAFETY = 1.2  # power iteration approaches the radius from below
_SETTLED = 0.01  # relative change of the radius at which power iteration stops
_ITERATIONS = 50  # at most: close eigenvalues slow it down, but then any of their directions will do
_LAG = 5  # accepted steps per estimate; measured: 10 to 20 % cheaper than 1, while 10 leads to rejected steps
_SHORTER = 0.99  # shorter than the last accepted step by more than rounding: after a rejection, or cut to hit a time
_SHARE = 0.1  # weight of the field in the direction that the next estimate starts from


class ChebyshevState(NamedTuple):
    """The state that a step of `RungeKuttaChebyshev` passes to the next.

    Attributes:
        field: the vector field where the step ended.
        direction: close to the stiffest direction, of norm 1; 0 before the first estimate.
        radius: the spectral radius of the Jacobian, per time; inf before the first estimate.
        age: accepted steps since the radius was estimated.
        size: size of the last accepted step, in time.
        evaluations: evaluations of the vector field so far, excluding rejected steps; a Jacobian product counts as two.
    """

    field: PyTree
    direction: Y
    radius: Scalar
    age: Int[Array, ""]
    size: Scalar
    evaluations: Int[Array, ""]


class Stabilized(NamedTuple):
    """A step of `RungeKuttaChebyshev`.

    Attributes:
        y1, error: the state at the end, and its estimated error.
        k0, k1: step size times the field at the start and at the end.
        field: the field at the end.
        stages: number of stages.
        fits: whether `max_stages` suffices.
    """

    y1: Y
    error: Y
    k0: Y
    k1: Y
    field: PyTree
    stages: Int[Array, ""]
    fits: Bool[Array, ""]


class RungeKuttaChebyshev(diffrax.AbstractAdaptiveSolver[ChebyshevState]):
    r"""An explicit method of order 2 with as many stages as stability needs.

    Use it where the Jacobian has a large real negative spectrum: gradient flow on many samples, diffusion. A step of
    size h takes $s \approx \sqrt{1.54\, h \rho}$ stages, where $\rho$ is the spectral radius. Its cost grows like the
    square root of the stiffness; the cost of other explicit methods grows like the stiffness. It forms no matrix,
    solves no equations, and needs memory for a few copies of the state. Oscillations (momentum, large imaginary
    eigenvalues) lie outside its stability region.

    The error falls like rtol^(2/3): use an rtol of 1e-3 to 1e-5. Gradient flow of a small network on 100 digits up to t
    = 4200/$\rho$ took 1254 gradient evaluations for an error of 4e-4 of the displacement, and 8494 for 4e-6;
    `diffrax.Tsit5`, limited by stability, took 5448 for either. Up to t = 320/$\rho$ there was little to gain.

    The stability polynomial is the damped Chebyshev polynomial of second order,

    $R_s(z) = 1 + b_s (T_s(w_0 + w_1 z) - T_s(w_0))$, $w_0 = 1 + \epsilon/s^2$, $w_1 = T_s'(w_0)/T_s''(w_0)$,
    $b_j = T_j''(w_0)/T_j'(w_0)^2$, $\epsilon = 2/13$.

    $\rho$ is estimated by power iteration on products with the Jacobian, every fifth step and whenever a step is
    shorter than the last accepted one, starting from the last direction found. Differentiate through it in forward mode
    (`diffrax.ForwardMode()`): the number of stages is known only at run time, and JAX has no reverse mode for such
    loops.

    Source: Sommeijer, Shampine & Verwer 1998, "RKC: an explicit solver for parabolic PDEs", J. Comput. Appl. Math. 88,
    315-326. Stages are computed by differences here, which keeps rounding errors from growing like s^2.

    Arguments:
        max_stages: most stages per step, at least 2. A step that needs more is reported with infinite error, so a step
            size controller retries a shorter one; with constant steps the solve fails.

    Example:
        >>> flow = js.GradientFlow(js.integrators.RungeKuttaChebyshev(), rtol=1e-3)

    Raises:
        TypeError: max_stages is not an integer.
        ValueError: max_stages is below 2.
    """

    max_stages: int = eqx.field(static=True, default=250)  # a size, checked at construction

    term_structure: ClassVar = diffrax.AbstractTerm
    interpolation_cls: ClassVar = diffrax.ThirdOrderHermitePolynomialInterpolation

    def __check_init__(self):
        if require_size(self.max_stages, "max_stages") < 2:
            raise ValueError(f"max_stages must be >= 2, for a method of order 2, got {self.max_stages}")

    def order(self, terms: Any) -> int:
        del terms
        return 2

    def error_order(self, terms: Any) -> int:
        """The order of the error of one step, h^3 y'''/15."""
        del terms
        return 3

    def func(self, terms: diffrax.AbstractTerm, t0: Time, y0: Y, args: Any) -> PyTree:
        return terms.vf(t0, y0, args)

    def init(self, terms: diffrax.AbstractTerm, t0: Time, t1: Time, y0: Y, args: Any) -> ChebyshevState:
        del t1
        zeros = lambda tree: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)
        dtype = _real_dtype(y0)
        # Nothing is evaluated here: at this age the first step estimates the radius, which also yields the field.
        return ChebyshevState(
            field=zeros(eqx.filter_eval_shape(terms.vf, t0, y0, args)),
            direction=zeros(y0),
            radius=jnp.full((), jnp.inf, dtype),
            age=jnp.full((), _LAG, int),
            size=jnp.zeros((), dtype),
            evaluations=jnp.zeros((), int),
        )

    def step(
        self,
        terms: diffrax.AbstractTerm,
        t0: Time,
        t1: Time,
        y0: Y,
        args: Any,
        solver_state: ChebyshevState,
        made_jump: Bool[Array | np.ndarray, ""] | bool,
    ) -> tuple[Y, Y, dict[str, Y], ChebyshevState, diffrax.RESULTS]:
        state, control = solver_state, terms.contr(t0, t1)
        size = jax.lax.stop_gradient(jnp.abs(t1 - t0)).astype(_real_dtype(y0))
        due = jnp.asarray(made_jump) | (state.age >= _LAG) | (size < _SHORTER * state.size)
        estimate = _estimate(terms, t0, y0, args, control, state, size, due)

        made = self.stabilized(terms, t0, t1, y0, args, estimate.field, estimate.stiffness)
        k1, fits = made.k1, made.fits
        # A mode that has just become the stiffest may be missing from the last direction. Once unstable, it appears in
        # the field.
        blend = lambda v, k: v + _SHARE * k
        direction = _unit(jax.tree.map(blend, estimate.direction, _unit(jax.lax.stop_gradient(k1))))
        spent = made.stages + 2 * estimate.iterations
        moved = size > 0  # a step of length zero, as for repeated times, has no information on the stiffness
        new = ChebyshevState(
            field=made.field,
            direction=direction,
            radius=jnp.where(moved, estimate.stiffness / jnp.where(moved, size, 1), state.radius),
            age=jnp.where(moved, jnp.where(due, 1, state.age + 1), state.age),
            size=jnp.where(moved, size, state.size),
            evaluations=state.evaluations + spent,
        )
        names = cast(Any, diffrax.RESULTS)
        result = names.where(fits, names.successful, names.nonfinite)
        dense = {"y0": y0, "y1": made.y1, "k0": made.k0, "k1": k1}
        return made.y1, made.error, dense, new, result

    def stabilized(
        self, terms: diffrax.AbstractTerm, t0: Time, t1: Time, y0: Y, args: Any, field: PyTree, stiffness: Scalar
    ) -> "Stabilized":
        """A step of known stiffness.

        Arguments:
            terms, t0, t1, y0, args: as for `step`.
            field: the vector field at the start.
            stiffness: step size times spectral radius.
        """
        control = terms.contr(t0, t1)
        # The smallest s with (s^2 - 1)/1.54 above the stiffness times its safety factor; never below 2.
        stages = 1 + jnp.floor(jnp.sqrt(1 + _STAGES * _SAFETY * stiffness))
        fits = stages <= self.max_stages  # False for NaN
        # Otherwise no stage is computed, but the coefficients must stay finite.
        stages = jnp.where(fits, stages, 2)
        k0 = terms.prod(field, control)
        field, moved = _march(terms, t0, t1, y0, args, control, field, k0, stages, fits)
        k1 = terms.prod(field, control)
        y1 = jax.tree.map(jnp.add, y0, moved)
        # 12/15 (y_0 - y_1) + 6/15 h (f_0 + f_1), by Taylor expansion h^3 y'''/15 (Sommeijer et al. 1998). It costs no
        # extra evaluation, because the next step reuses f_1.
        error = jax.tree.map(lambda d, a, b: jnp.where(fits, 0.4 * (a + b) - 0.8 * d, jnp.inf), moved, k0, k1)
        return Stabilized(y1, error, k0, k1, field, jnp.where(fits, stages, 0).astype(int), fits)


class _PowerIteration(NamedTuple):
    field: PyTree
    direction: Y
    stiffness: Scalar  # step size times spectral radius
    iterations: Int[Array, ""]


def _estimate(terms, t, y, args, control, state: ChebyshevState, size: Scalar, due: Bool[Array, ""]) -> _PowerIteration:
    """Power iteration on h times the Jacobian, from the last direction; nothing is computed unless an estimate is due.

    Products are exact, not differences of the field: in float32 no perturbation is both small and above rounding.
    """

    def iterate(carry):
        now, _ = carry
        # The product also returns the field at y, so the first step needs no separate evaluation.
        field, change = jax.jvp(lambda y: terms.vf(t, y, args), (y,), (now.direction,))
        image = jax.lax.stop_gradient(terms.prod(change, control))
        stiffness = _norm(image)
        # Relative to 1 where it is smaller: two stages suffice there, however small it is. NaN would never settle.
        settled = jnp.isnan(stiffness) | (jnp.abs(stiffness - now.stiffness) <= _SETTLED * jnp.maximum(stiffness, 1))
        start = first_direction(jax.lax.stop_gradient(terms.prod(field, control)))
        direction = jax.tree.map(lambda a, b: jnp.where(stiffness > 0, a, b), _unit(image), start)
        # Without a first direction there is nothing to compare with.
        stiffness = jnp.where(_norm(now.direction) > 0, stiffness, jnp.inf)
        return _PowerIteration(field, direction, stiffness, now.iterations + 1), settled

    def unsettled(carry):
        now, settled = carry
        return due & ~settled & (now.iterations < _ITERATIONS)

    begin = _PowerIteration(state.field, state.direction, state.radius * size, jnp.zeros((), int))
    return jax.lax.while_loop(unsettled, iterate, (begin, jnp.array(False)))[0]


def first_direction(step: Y) -> Y:
    """The field plus fixed signs of equal norm; with balanced labels the field alone lacks the stiffest direction."""

    def signs(leaf):
        # A hash of the index, because a solver has no random key: every run uses the same signs. The factors are 2^32
        # over the golden ratio (Knuth) and a prime of xxHash; products wrap around at 2^32.
        index = jnp.arange(leaf.size, dtype=jnp.uint32)
        scrambled = (index * jnp.uint32(2654435769)) >> 7
        scrambled = (scrambled * scrambled * jnp.uint32(2246822519)) >> 16
        return jnp.where(scrambled % 2 == 0, 1, -1).astype(leaf.dtype).reshape(leaf.shape)

    return _unit(jax.tree.map(jnp.add, _unit(step), _unit(jax.tree.map(signs, step))))


def _march(terms, t0, t1, y0, args, control, field, k0: Y, stages: Scalar, fits: Bool[Array, ""]) -> tuple[PyTree, Y]:
    """All stages: the field at the end of the step, and the displacement over the step.

    Stage j is y_0 + b_j x_j. For a linear field x_j is (T_j(w_0 + w_1 z) - T_j(w_0)) y_0. The recurrence of the
    Chebyshev polynomials, written for the differences d_j = x_j - x_(j-1), has no terms that cancel.
    """
    span = t1 - t0
    # w_1, and 2 (w_0 - 1): the factor 2 w_0 of the recurrence minus the 2 that the differences absorb.
    slope = _chebyshev(1, stages, stages) / _chebyshev(2, stages, stages)
    twist = 2 * _DAMPING / stages**2

    def stage(index, carry):
        field, x, d = carry
        j = jnp.asarray(index, stages.dtype)  # a Python int when the loop is not compiled
        weight, before = _weight(j, stages), _weight(j - 1, stages)
        # The recurrence asks for 2 w_1 z (x_(j-1) + T_(j-1)(w_0) y_0). Since z b_(j-1) x_(j-1) is the change of the
        # field since y_0, and z y_0 is k0, only evaluations of the field are needed.
        pull, push = 2 * slope / before, 2 * slope * _chebyshev(0, j - 1, stages)
        d = _sum((1, d), (twist, x), (pull, jax.tree.map(jnp.subtract, terms.prod(field, control), k0)), (push, k0))
        x = jax.tree.map(jnp.add, x, d)
        # c_j = w_1 b_j T_j'(w_0): stage j lies at this fraction of the step.
        part = jnp.asarray(weight * slope * _chebyshev(1, j, stages), jnp.result_type(span))
        time = jnp.where(j == stages, t1, t0 + part * span)  # exactly t1 at the end
        return terms.vf(time, _sum((1, y0), (weight, x)), args), x, d

    last = jnp.where(fits, stages, 0).astype(int)
    # d_0 = x_0 - x_(-1) = -w_1 k0, because T_(-1) = T_1: the first stage follows the general rule.
    begin = field, jax.tree.map(jnp.zeros_like, k0), _sum((-slope, k0))
    field, x, _ = jax.lax.fori_loop(1, last + 1, stage, begin)
    return field, _sum((_weight(stages, stages), x))


def _chebyshev(m: int, j: Scalar, s: Scalar) -> Scalar:
    """The m-th derivative of T_j at w_0 = 1 + eps/s^2 to rounding accuracy, for 0 <= j <= s.

    It sums the Taylor series about 1, where the k-th derivative of T_j is prod_(i<k) (j^2 - i^2)/(2i + 1). No term is
    negative, and the ratio of term k to the one before is below eps/(k (2k - 1)).
    """
    total = jnp.ones_like(s)
    for k in range(_TERMS, 0, -1):
        i = k + m - 1
        # Horner's rule from the last term; (w_0 - 1)^k/k! contributes eps/(s^2 k) at each step.
        total = 1 + (j**2 - i**2) / s**2 * (_DAMPING / ((2 * i + 1) * k)) * total
    for i in range(m):
        total = total * (j**2 - i**2) / (2 * i + 1)
    return total


def _weight(j: Scalar, s: Scalar) -> Scalar:
    """b_j, with b_0 = b_1 = b_2."""
    j = jnp.maximum(j, 2)
    return _chebyshev(2, j, s) / _chebyshev(1, j, s) ** 2


def _sum(*terms: tuple[Any, Y]) -> Y:
    """The linear combination of pytrees."""
    factors, trees = zip(*terms, strict=True)
    add = lambda *leaves: sum(jnp.asarray(a, x.dtype) * x for a, x in zip(factors, leaves, strict=True))
    return jax.tree.map(add, *trees)


def _real_dtype(tree: PyTree) -> Any:
    return jnp.finfo(jnp.result_type(*jax.tree.leaves(tree))).dtype


def _norm(tree: Y) -> Scalar:
    dtype = _real_dtype(tree)
    return jnp.sqrt(sum(jnp.sum(jnp.abs(leaf) ** 2).astype(dtype) for leaf in jax.tree.leaves(tree)))


def _unit(tree: Y) -> Y:
    """The pytree scaled to norm 1; 0 stays 0."""
    norm = _norm(tree)
    scale = jnp.where(norm > 0, norm, 1)
    return jax.tree.map(lambda leaf: leaf / scale.astype(leaf.dtype), tree)
