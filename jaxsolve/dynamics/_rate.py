"""The learning rate of an optax transformation, seen from outside: by how it answers gradients that are known.

All that a transformation shows of itself is `init` and `update`. Two kinds show their rate r in these.

| kind | answer | optimisers |
|---|---|---|
| linear | to one gradient g, then none: -h_0 g, -h_1 g, ..., where h_j = h_1 beta^(j-1) for j >= 1 | SGD, momentum |
| sign | to one large gradient, again and again: -r sign(g) each time | Adam, Lion, sign descent |

A gradient moves the parameters of the first kind by -g sum_j h_j in the end: that is the time of a step, r/(1 - beta).
An optimiser is not assumed to be of a kind, it is checked, in float64: with gradients of several sizes and directions,
at several steps, at several parameters (less what happens without a gradient, such as weight decay). A schedule is
read by setting its count of steps.
"""

import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from .._checks import concrete
from .._counts import at_count, COUNTS
from .._dynamics import is_key
from .._safe import nonzero
from ._held import Held
from ._schedule import AbstractSchedule


# Below the norms at which gradients are usually clipped, and far above the eps of adaptive optimisers. Powers of two
# leave a rate its digits.
SMALL = 2.0**-10
# Far above any eps; float32 holds its square.
LARGE = 2.0**40
# Below what anybody clips at: plain descent with clipped gradients answers as by sign above that, but not here.
TINY = 2.0**-16
STEPS = 6  # of each test
# In float64 rounding leaves 1e-10; but Adam shows its eps of 1e-8, by 1e-6 where gradients are clipped at 0.01 before.
TOLERANCE = 1e-6
TOLERANCE_OF_TINY = 0.02
LATER = 3, 100, 1000, 10_000  # counts at which the momentum of an optimiser with a schedule is looked at again
STAND_IN = 0.5  # for numbers that are being traced: the kind of an optimiser does not depend on them

# A vector and a matrix, as some optimisers treat them differently.
_LIKE = (np.zeros(2), np.zeros((2, 2)))
_FIRST, _SECOND = np.array([1.0, -0.5, 1.5, -2.0, 0.25, 0.75]), np.array([-1.0, 2.0, 0.5, 1.0, -1.25, 3.0])
_ELSEWHERE = np.array([0.7, -1.1, 0.4, 0.9, -0.3, 1.3])


class Kind(enum.Enum):
    """How an optimiser answers gradients."""

    LINEAR = "linear"
    SIGN = "sign"


class Unseen(ValueError):
    """An optimiser does not show its rate. The message says why."""


class Seen(eqx.Module):
    """What an optimiser shows: its rate, and its momentum if it has any; or its schedule."""

    rate: Float[Array, ""] | None
    momentum: Float[Array, ""] | None
    schedule: AbstractSchedule | None


class SeenSchedule(AbstractSchedule):
    """The schedule in an optimiser.

    Arguments:
        optimizer: the optax transformation, held as a pytree.
        factor: the time of a step over the first answer in it.
        kind: how the optimiser answers.
    """

    optimizer: Held
    factor: Float[Array, ""]
    kind: Kind = eqx.field(static=True)  # chooses the gradient to be answered

    def rate(self, step: Int[Array, ""], dtype: Any) -> Float[Array, ""]:
        return self.factor.astype(dtype) * _first_answer(self.optimizer.astype(dtype), self.kind, step, dtype)


def see(optimizer: Held) -> Seen:
    """What an optimiser shows of its rate. Raises Unseen if that is nothing."""
    dtype = jnp.result_type(float)
    known = stand_in(optimizer)
    traced = any(map(_is_traced, jax.tree.leaves(optimizer)))
    with jax.ensure_compile_time_eval():
        with jax.enable_x64(True):
            kind, count, time, momentum = _look(known)
        if count is None and not traced:
            if time < 0:
                raise Unseen("its steps go up the gradient")
            beta = None if momentum == 0 else jnp.asarray(momentum, dtype)
            return Seen(jnp.asarray(time * (1 - momentum), dtype), beta, None)
        start = jnp.asarray(0 if count is None else count, int)
        # In float32 the first answer of Adam is off by 2e-5, as 1 - 0.999 rounds; but by the same factor for each rate.
        factor = jnp.asarray(time / float(_first_answer(known.astype(dtype), kind, start, dtype)), dtype)
    if not traced or kind is Kind.SIGN or momentum == 0:
        if count is not None:
            return Seen(None, None, SeenSchedule(optimizer, factor, kind))
        return Seen(factor * _first_answer(optimizer.astype(dtype), kind, start, dtype), None, None)
    once = jnp.eye(1, STEPS, dtype=dtype) * SMALL
    at = None if count is None else start
    h = -_answers(optimizer.astype(dtype), once, _rows(_FIRST, dtype), _rows(0, dtype), at)[0, :, 0] / SMALL
    beta = jnp.where(h[1] == 0, 0, h[2] / nonzero(h[1]))  # traced, it may be 0
    if count is not None:
        return Seen(None, None, SeenSchedule(optimizer, 1 + h[1] / (1 - beta) / nonzero(h[0]), kind))
    return Seen(h[0] * (1 - beta) + h[1], beta, None)


def _rows(values: Any, dtype: Any) -> Float[Array, "1 6"]:
    return jnp.broadcast_to(jnp.asarray(values, dtype), (1, 6))


def stand_in(optimizer: Held) -> Held:
    """The optimiser with known numbers in place of traced ones."""
    replace = lambda leaf: np.full(leaf.shape, STAND_IN).astype(leaf.dtype) if _is_traced(leaf) else leaf
    return jax.tree.map(replace, optimizer)


def _is_traced(leaf: Array) -> bool:
    return not is_key(leaf) and concrete(leaf) is None


def _look(optimizer: Held) -> tuple[Kind, int | None, float, float]:
    """Kind, the count of steps at which a schedule was read, the time of a step, and momentum."""
    again = lambda leaf: leaf if is_key(leaf) else jnp.asarray(np.asarray(leaf))
    optimizer = jax.tree.map(again, optimizer).astype(jnp.float64)
    try:
        with jax.numpy_dtype_promotion("standard"):
            scheduled = _has_schedule(optimizer.value.init(_params(jnp.zeros(6))))
        try:  # as a program for all rates
            return _look_at(Held(optimizer.value, floats=True), scheduled)
        except jax.errors.ConcretizationTypeError:
            return _look_at(optimizer, scheduled)
    except Unseen:
        raise
    except Exception as error:  # whatever an optimiser raises that wants parameters or arguments of its own
        text = " ".join(str(error).split())
        raise Unseen(f"it does not take two arrays as parameters ({type(error).__name__}: {text[:150]})") from error


def _look_at(optimizer: Held, scheduled: bool) -> tuple[Kind, int | None, float, float]:
    for count in COUNTS if scheduled else (None,):
        found = _kind_at(optimizer, count)
        if found is None:
            continue
        if scheduled and found[0] is Kind.LINEAR:
            if any(abs(_momentum_at(optimizer, other, found[2]) - found[2]) > TOLERANCE for other in LATER):
                raise Unseen("its momentum changes with the steps")
        return found[0], count, *found[1:]
    raise Unseen("its first steps are zero")


def _momentum_at(optimizer: Held, count: int, unknown: float) -> float:
    """Momentum at a later count; what is given where that says nothing, as beyond the end of a schedule."""
    try:
        found = _kind_at(optimizer, count)
    except Unseen:
        return unknown
    return unknown if found is None else found[2]


def _kind_at(optimizer: Held, count: int | None) -> tuple[Kind, float, float] | None:
    once = lambda size, at=0: size * np.eye(STEPS)[at]
    always = lambda size: np.full(STEPS, size)
    linear = [
        (once(SMALL), _FIRST),
        (once(SMALL / 2), _FIRST),
        (once(SMALL / 4), _SECOND),
        (once(SMALL, 1), _FIRST),
        (once(SMALL, 2), _SECOND),
    ]
    sign = [(always(LARGE), _FIRST), (always(LARGE / 4), _SECOND), (always(TINY), _FIRST)]
    cases = [(np.zeros(STEPS), _FIRST), *linear, *sign]
    sizes, directions = (jnp.asarray(np.stack([case[i] for case in cases] * 2)) for i in (0, 1))
    where = jnp.asarray(np.repeat([np.zeros(6), _ELSEWHERE], len(cases), axis=0))
    answers = concrete(_answers(optimizer, sizes, directions, where, None if count is None else jnp.asarray(count)))
    if answers is None:
        raise Unseen("it holds traced values where they cannot be replaced by others")
    if np.any(np.isnan(answers)):
        raise Unseen("its steps hold NaN")
    answers = answers.reshape(2, len(cases), STEPS, 6)
    answers = answers[:, 1:] - answers[:, :1]  # less what happens without a gradient
    split = len(linear)
    h = -answers[0, 0, :, 0] / SMALL
    if _is_linear(answers[:, :split], linear, h):
        return None if not np.any(h) else (Kind.LINEAR, *_time_and_momentum(h))
    r = -answers[0, split, 0, 0]
    expected = -r * np.stack([np.sign(direction) for _, direction in sign])[:, None, :]
    tolerance = np.array([TOLERANCE, TOLERANCE, TOLERANCE_OF_TINY])[:, None, None] * abs(r)
    if r != 0 and np.all(np.abs(answers[:, split:] - expected) <= tolerance):
        return Kind.SIGN, float(r), 0.0
    raise Unseen("its steps are neither in proportion to the gradient nor to the gradient's sign")


def _is_linear(answers: np.ndarray, cases: list[tuple[np.ndarray, np.ndarray]], h: np.ndarray) -> bool:
    """Whether every case is answered by h, from the step of its gradient on."""
    for index, (sizes, direction) in enumerate(cases):
        at = int(np.argmax(sizes))
        expected = -sizes[at] * np.concatenate([np.zeros(at), h[: STEPS - at]])[:, None] * direction
        size = sizes[at] * np.max(np.abs(h)) * np.max(np.abs(direction))
        if not np.all(np.abs(answers[:, index] - expected) <= TOLERANCE * size):
            return False
    return True


def _time_and_momentum(h: np.ndarray) -> tuple[float, float]:
    first, later = h[0], h[1:]
    near = TOLERANCE * np.max(np.abs(h))
    beta = 0.0 if np.max(np.abs(later)) <= near else later[1] / later[0] if abs(later[0]) > near else np.nan
    time = first + later[0] / (1 - beta)
    if not (0 <= beta < 1 and time != 0 and np.all(np.abs(later[1:] - beta * later[:-1]) <= near)):
        raise Unseen("what a gradient leaves behind does not fall by the same factor each step, as with momentum")
    return float(time), float(beta)


def _params(vector: Float[Array, " 6"]) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(vector.dtype), ravel_pytree(_LIKE)[1](vector.astype(float)))


@eqx.filter_jit
def _answers(
    optimizer: Held,
    sizes: Float[Array, "cases steps"],
    directions: Float[Array, "cases 6"],
    where: Float[Array, "cases 6"],
    count: Int[Array, ""] | None,
) -> Float[Array, "cases steps 6"]:
    """The updates that an optimiser makes of gradients size * direction, at parameters that stay where they are.

    A schedule is held at `count`.
    """
    init, update = optimizer.value.init, optimizer.value.update

    def case(sizes, direction, vector):
        params = _params(vector)

        def step(state, size):
            updates, state = update(_params(size * direction), state, params)
            return at_count(state, count), ravel_pytree(updates)[0]

        return jax.lax.scan(step, at_count(init(params), count), sizes)[1]

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        return jax.vmap(case)(sizes, directions, where)


def _first_answer(optimizer: Held, kind: Kind, count: Int[Array, ""], dtype: Any) -> Float[Array, ""]:
    size = SMALL if kind is Kind.LINEAR else LARGE
    answer = _answers(optimizer, jnp.full((1, 1), size, dtype), _rows(_FIRST, dtype), _rows(0, dtype), count)[0, 0, 0]
    return -answer / (SMALL if kind is Kind.LINEAR else 1)


def _has_schedule(state: Any) -> bool:
    """Whether a schedule of optax counts steps. Raises Unseen if something else might."""
    if isinstance(state, optax.ScaleByScheduleState):
        return True
    if isinstance(state, optax.InjectStatefulHyperparamsState):
        counts = jax.tree.leaves(state.hyperparams_states)
        if not all(jnp.issubdtype(jnp.result_type(count), jnp.integer) for count in counts):
            raise Unseen("a schedule of its hyperparameters has a state that is not a count of steps")
        return bool(counts) or _has_schedule(state.inner_state)
    name, of_optax = type(state).__name__, hasattr(state, "_fields") and type(state).__module__.split(".")[0] == "optax"
    if name.startswith("Conditionally"):
        raise Unseen("it does other things after some steps")
    opaque = not isinstance(state, dict | list | tuple)
    for part in jax.tree.leaves(state) if opaque else state.values() if isinstance(state, dict) else state:
        if _is_count(part) and not of_optax:
            raise Unseen(f"{name} counts something, which may change its rate")
        if not (opaque or _is_count(part)) and _has_schedule(part):
            return True
    return False


def _is_count(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.integer)
