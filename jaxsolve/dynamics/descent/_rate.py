"""The gradient-flow time of an optimizer's step, from its response to known gradients.

An optax transformation exposes only `init` and `update`. Two kinds of optimizers reveal their rate r in these.

| kind | response | optimizers |
|---|---|---|
| linear | to one gradient g, then none: -h_0 g, -h_1 g, ..., where h_j = h_1 beta^(j-1) for j >= 1 | SGD, momentum |
| sign | to a gradient that has always been the same: -r sign(g) | Adam, AdamW, Lion, vectors of Muon |

For the first kind a gradient eventually moves the parameters by -g sum_j h_j, so this sum is the time of a step,
r/(1 - beta). Weight decay and clipping may be added. For any other optimizer or a schedule the user gives the times.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, DTypeLike, Float

from ..._checks import attempt, see
from ._optimizer import Optimizer


# The states of the known optimizers; another may count steps and change its rate with them.
MEMORIES = optax.TraceState, optax.ScaleByAdamState, optax.ScaleByLionState, optax.contrib.MuonState
# Below the norms at which gradients are usually clipped, and far above the eps of adaptive optimizers. Powers of two
# preserve the digits of a rate.
SMALL = 2.0**-10
# Far above any eps; float32 can hold its square.
LARGE = 2.0**40
# Below any clipping threshold: above it clipped descent responds by sign, but not here.
TINY = 2.0**-16
STEPS = 4  # the fewest that distinguish one momentum from two
MANY = 10**6  # steps after which the bias correction of averages is negligible
# In float64 rounding is 1e-10, but Adam's eps of 1e-8 appears as 2e-6 if gradients are first clipped at 0.05.
TOLERANCE, TOLERANCE_OF_TINY = 1e-5, 0.02

# Entries of a vector and a matrix, because some optimizers treat these differently.
_FIRST, _SECOND = np.array([1.0, -0.5, 1.5, -2.0, 0.25, 0.75]), np.array([-1.0, 2.0, 0.5, 1.0, -1.25, 3.0])
_HERE, _ELSEWHERE = np.zeros(6), np.array([0.7, -1.1, 0.4, 0.9, -0.3, 1.3])


def require_visible(optimizer: Optimizer) -> None:
    """Raises ValueError if an optimizer's state implies that no probe reveals its rate. Compiles nothing."""
    if optimizer.by_loss:
        raise _unseen(optimizer, "whose steps depend on the loss")
    shape = jax.ShapeDtypeStruct((2,), jnp.result_type(float))
    state, error = attempt(jax.eval_shape, optimizer.init, [shape])
    if error is not None:  # it needs parameters of a certain structure
        raise _unseen(optimizer, "which does not take two arrays as parameters") from error
    known = lambda node: isinstance(node, MEMORIES)
    if not all(map(known, jax.tree.leaves(state, is_leaf=known))):
        raise _unseen(optimizer, "which remembers more than past gradients, such as a count of steps")


def _unseen(optimizer: Optimizer, why: str) -> ValueError:
    return ValueError(
        "the rate can be read from plain SGD, momentum, Adam, AdamW, Lion and Muon, but not from this optimizer "
        f"({optimizer.name}), {why}: give rate=, the gradient-flow time of a step, as a number, such as "
        "Descent(optax.rmsprop(1e-3), rate=1e-3), or as the optimizer's schedule" + see("the-rate-is-unknown")
    )


def time_of_step(optimizer: Optimizer) -> Float[Array, ""]:
    """The time of a step. Raises ValueError if the optimizer is of neither kind."""
    dtype = jnp.result_type(float)
    with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):  # an optimizer may compute anything
        known = optimizer.known()
        with jax.enable_x64(True):
            row, time = _look(known.astype(jnp.float64))
        if not optimizer.is_traced:
            if not (np.isfinite(time) and time > 0):
                raise _unseen(optimizer, "whose steps go up the gradient, or nowhere")
            return jnp.asarray(time, dtype)
        # In float32 Adam's first response is off by 2e-5, as 1 - 0.999 rounds, but by the same factor for every rate.
        factor = jnp.asarray(time / float(_time(known.astype(dtype), row, dtype)), dtype)
    return factor * _time(optimizer.astype(dtype), row, dtype)


def _time(optimizer: Optimizer, row: int | None, dtype: DTypeLike) -> Float[Array, ""]:
    """The time of a step for a known kind: `row` is None for linear, else the row of `_same_again` to use."""
    first, here = _FIRST.astype(dtype), _HERE.astype(dtype)
    if row is not None:
        # The first entry is positive, so the response by sign is -r.
        return jnp.asarray(-_same_again(optimizer, LARGE * first, here)[row][0])
    return jnp.asarray(_in_the_end([-answer[0] / SMALL for answer in _answers(optimizer, SMALL * first, 0, here)]))


def _in_the_end(h: Any) -> Any:
    """The sum of all responses to one gradient."""
    none = (h[1] == 0).astype(h[1].dtype)  # traced momentum may be 0
    # h_0 + h_1 (1 + beta + beta^2 + ...) with beta = h_2/h_1.
    return h[0] + h[1] / (1 - h[2] / (h[1] + none))


def _look(optimizer: Optimizer) -> tuple[int | None, float]:
    """The kind of an untraced optimizer, as `_time` takes it, and the time of its step. Raises ValueError if none."""
    one = np.stack(_answers(optimizer, SMALL * _FIRST, 0, _HERE))
    # Another gradient of another size, one step later, at other parameters: the responses must be the same, shifted.
    other, nothing = (np.stack(_answers(optimizer, size * _SECOND, 1, _ELSEWHERE)) for size in (SMALL / 4, 0.0))
    if np.any(np.isnan(one)):
        raise _unseen(optimizer, "whose steps hold NaN")
    h = -one[:, 0] / SMALL  # since the first entry of the gradient is 1
    near = lambda found, expected, size: np.all(np.abs(found - expected) <= TOLERANCE * size * np.max(np.abs(h)))
    if (
        near(one, -SMALL * np.outer(h, _FIRST), SMALL)
        # Minus the motion without a gradient, such as weight decay.
        and near(other - nothing, -SMALL / 4 * np.outer(np.append(0, h[:-1]), _SECOND), SMALL)
        and near(h[1] * h[3], h[2] ** 2, np.max(np.abs(h)))  # the response decays by the same factor at each step
        and (h[1] == 0 or 0 <= h[2] / h[1] < 1)
    ):
        return None, float(np.asarray(_in_the_end(h)))

    large = np.stack(_same_again(optimizer, LARGE * _FIRST, _HERE))
    tiny, nothing = (np.stack(_same_again(optimizer, size * _SECOND, _ELSEWHERE)) for size in (TINY, 0.0))
    row = 0 if np.allclose(large[0], large[1], rtol=TOLERANCE, atol=0) else 2
    r = -large[row, 0]
    by_sign = np.abs(large[2] + r * np.sign(_FIRST)) <= TOLERANCE * abs(r)
    by_sign &= np.abs(tiny[2] - nothing[2] + r * np.sign(_SECOND)) <= TOLERANCE_OF_TINY * abs(r)
    if not np.all(by_sign):
        raise _unseen(optimizer, "whose steps are neither in proportion to the gradient nor to its sign")
    return row, float(r)


def _answers(
    optimizer: Optimizer, gradient: Float[np.ndarray, " 6"], at: int, where: Float[np.ndarray, " 6"]
) -> list[Float[Array | np.ndarray, " 6"]]:
    """The updates for a gradient at step `at` and zero gradients at the others, at fixed parameters."""
    arrays, plain, found = _arrays(optimizer), _plain(optimizer), []
    params = arrays(where)
    state = plain(optimizer.init(params))
    for step in range(STEPS):
        update, state = plain(optimizer.update(arrays(gradient * (step == at)), state, params))
        found.append(_flat(update))
    return found


def _same_again(
    optimizer: Optimizer, gradient: Float[np.ndarray, " 6"], where: Float[np.ndarray, " 6"]
) -> list[Float[Array | np.ndarray, " 6"]]:
    """The updates for a repeated gradient at the first, the second and the infinite step.

    Adam's are all the same; with Nesterov momentum, as in Muon, they only converge to that. Averages approach their
    limit by a constant factor per step, so three values in a row determine it (Aitken).
    """
    arrays, plain = _arrays(optimizer), _plain(optimizer)
    given, params = arrays(gradient), arrays(where)
    start = plain(optimizer.init(params))
    first, one = plain(optimizer.update(given, start, params))
    second, two = plain(optimizer.update(given, one, params))

    def end(a: Any, b: Any, c: Any) -> Any:
        if not jnp.issubdtype(c.dtype, jnp.floating):
            return 0 * c + MANY
        slower = (b - a) - (c - b)
        # Aitken's a + (b - a)^2/((b - a) - (c - b)); where the denominator is 0 the average is at rest.
        still = (slower == 0).astype(c.dtype)
        return a + (b - a) * ((b - a) / (slower + still)) + (c - a) * still  # avoids a square, which may overflow

    last, _ = plain(optimizer.update(given, jax.tree.map(end, start, one, two), params))
    return [_flat(update) for update in (first, second, last)]


def _plain(optimizer: Optimizer) -> Callable[[Any], Any]:
    """A function that converts an optimizer's responses to NumPy arrays unless traced, so that less is compiled."""
    return (lambda tree: tree) if optimizer.is_traced else lambda tree: jax.tree.map(np.asarray, tree)


def _flat(update: list[Any]) -> Any:
    first, second = (leaf.ravel() for leaf in update)
    return np.append(first, second) if isinstance(first, np.ndarray) else jnp.append(first, second)


def _arrays(optimizer: Optimizer) -> Callable[[Float[np.ndarray, " 6"]], list[np.ndarray]]:
    """A function that shapes six numbers into parameters: a vector and a matrix, or two vectors.

    Muon does not move matrices by sign, but it moves vectors by Adam at the same rate.
    """
    state = jax.eval_shape(optimizer.init, [jax.ShapeDtypeStruct((2,), jnp.result_type(float))])
    is_muon = lambda node: isinstance(node, optax.contrib.MuonState)
    shape = (4,) if any(map(is_muon, jax.tree.leaves(state, is_leaf=is_muon))) else (2, 2)
    return lambda vector: [vector[:2], vector[2:].reshape(shape)]
