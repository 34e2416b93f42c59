"""The gradient-flow time of an optimizer's step, by how it answers gradients that are known.

All that an optax transformation shows of itself is `init` and `update`. Two kinds show their rate r in these.

| kind | answer | optimizers |
|---|---|---|
| linear | to one gradient g, then none: -h_0 g, -h_1 g, ..., where h_j = h_1 beta^(j-1) for j >= 1 | SGD, momentum |
| sign | to a gradient that has been the same for ever: -r sign(g) | Adam, AdamW, Lion, vectors of Muon |

A gradient moves the parameters of the first kind by -g sum_j h_j in the end: that is the time of a step, r/(1 - beta).
Weight decay and clipping may be added. Of any other optimizer, and of a schedule, the user gives the times of steps.
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


# What the known optimizers remember; another may count steps, and change its rate by that.
MEMORIES = optax.TraceState, optax.ScaleByAdamState, optax.ScaleByLionState, optax.contrib.MuonState
# Below the norms at which gradients are usually clipped, and far above the eps of adaptive optimizers. Powers of two
# leave a rate its digits.
SMALL = 2.0**-10
# Far above any eps; float32 holds its square.
LARGE = 2.0**40
# Below what anybody clips at: plain descent with clipped gradients answers as by sign above that, but not here.
TINY = 2.0**-16
STEPS = 4  # the fewest that tell one momentum from two
MANY = 10**6  # steps after which no average corrects its bias any more
# In float64 rounding leaves 1e-10; but Adam shows its eps of 1e-8, by 2e-6 where gradients are clipped at 0.05 before.
TOLERANCE, TOLERANCE_OF_TINY = 1e-5, 0.02

# Numbers of a vector and a matrix, as some optimizers treat them differently.
_FIRST, _SECOND = np.array([1.0, -0.5, 1.5, -2.0, 0.25, 0.75]), np.array([-1.0, 2.0, 0.5, 1.0, -1.25, 3.0])
_HERE, _ELSEWHERE = np.zeros(6), np.array([0.7, -1.1, 0.4, 0.9, -0.3, 1.3])


def require_visible(optimizer: Optimizer) -> None:
    """Raises ValueError for an optimizer of which no probe would show the rate, as its state says. Compiles nothing."""
    if optimizer.by_loss:
        raise _unseen(optimizer, "whose steps depend on the loss")
    shape = jax.ShapeDtypeStruct((2,), jnp.result_type(float))
    state, error = attempt(jax.eval_shape, optimizer.init, [shape])
    if error is not None:  # it wants parameters of its own
        raise _unseen(optimizer, "which does not take two arrays as parameters") from error
    known = lambda node: isinstance(node, MEMORIES)
    if not all(map(known, jax.tree.leaves(state, is_leaf=known))):
        raise _unseen(optimizer, "which remembers more than their past gradients, such as a count of steps")


def _unseen(optimizer: Optimizer, why: str) -> ValueError:
    return ValueError(
        "the rate is seen of plain SGD, momentum, Adam, AdamW, Lion and Muon alone, not of this optimizer "
        f"({optimizer.name}), {why}: give rate=, the gradient-flow time of a step, as a number such as "
        "Descent(optax.rmsprop(1e-3), rate=1e-3) or as the schedule that the optimizer has"
        + see("the-rate-is-not-seen")
    )


def time_of_step(optimizer: Optimizer) -> Float[Array, ""]:
    """The time that a step stands for. Raises ValueError if the optimizer is of no kind that shows it."""
    dtype = jnp.result_type(float)
    with jax.ensure_compile_time_eval(), np.errstate(all="ignore"):  # an optimizer may do anything
        known = optimizer.known()
        with jax.enable_x64(True):
            row, time = _look(known.astype(jnp.float64))
        if not optimizer.is_traced:
            if not (np.isfinite(time) and time > 0):
                raise _unseen(optimizer, "whose steps go up the gradient, or nowhere")
            return jnp.asarray(time, dtype)
        # In float32 the first answer of Adam is off by 2e-5, as 1 - 0.999 rounds; but by the same factor for each rate.
        factor = jnp.asarray(time / float(_time(known.astype(dtype), row, dtype)), dtype)
    return factor * _time(optimizer.astype(dtype), row, dtype)


def _time(optimizer: Optimizer, row: int | None, dtype: DTypeLike) -> Float[Array, ""]:
    """The time of a step, as the answers of a known kind say it: None for the linear, or a row of those by sign."""
    first, here = _FIRST.astype(dtype), _HERE.astype(dtype)
    if row is not None:
        # The first number is positive, to which the answer by sign is -r.
        return jnp.asarray(-_same_again(optimizer, LARGE * first, here)[row][0])
    return jnp.asarray(_in_the_end([-answer[0] / SMALL for answer in _answers(optimizer, SMALL * first, 0, here)]))


def _in_the_end(h: Any) -> Any:
    """The sum of all that follows one gradient."""
    none = (h[1] == 0).astype(h[1].dtype)  # momentum that is traced may be 0
    # h_0 + h_1 (1 + beta + beta^2 + ...) with beta = h_2/h_1.
    return h[0] + h[1] / (1 - h[2] / (h[1] + none))


def _look(optimizer: Optimizer) -> tuple[int | None, float]:
    """The kind of a known optimizer, as `_time` takes it, and the time of its step. Raises ValueError if of none."""
    one = np.stack(_answers(optimizer, SMALL * _FIRST, 0, _HERE))
    # Another gradient, of another size, a step later, at other parameters: its answers must be the same ones, shifted.
    other, nothing = (np.stack(_answers(optimizer, size * _SECOND, 1, _ELSEWHERE)) for size in (SMALL / 4, 0.0))
    if np.any(np.isnan(one)):
        raise _unseen(optimizer, "whose steps hold NaN")
    h = -one[:, 0] / SMALL  # as the first number of the gradient is 1
    near = lambda found, expected, size: np.all(np.abs(found - expected) <= TOLERANCE * size * np.max(np.abs(h)))
    if (
        near(one, -SMALL * np.outer(h, _FIRST), SMALL)
        # Less what moves without a gradient, such as weight decay.
        and near(other - nothing, -SMALL / 4 * np.outer(np.append(0, h[:-1]), _SECOND), SMALL)
        and near(h[1] * h[3], h[2] ** 2, np.max(np.abs(h)))  # what a gradient leaves falls by the same factor each step
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
    """The updates by a gradient in one step, and none in the others, at parameters that stay where they are."""
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
    """The updates by one gradient for the first, for the second, and for the infinite time.

    Adam's are the same. Where it looks ahead, as within Muon, they only become so. Averages come to their end by a
    factor a step, so that three values in a row tell it (Aitken).
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
        # Aitken's a + (b - a)^2/((b - a) - (c - b)); where the denominator is 0 it is taken to be at rest.
        still = (slower == 0).astype(c.dtype)
        return a + (b - a) * ((b - a) / (slower + still)) + (c - a) * still  # a square might overflow

    last, _ = plain(optimizer.update(given, jax.tree.map(end, start, one, two), params))
    return [_flat(update) for update in (first, second, last)]


def _plain(optimizer: Optimizer) -> Callable[[Any], Any]:
    """A function that turns an optimizer's answers, unless traced, into NumPy arrays, so that less is compiled."""
    return (lambda tree: tree) if optimizer.is_traced else lambda tree: jax.tree.map(np.asarray, tree)


def _flat(update: list[Any]) -> Any:
    first, second = (leaf.ravel() for leaf in update)
    return np.append(first, second) if isinstance(first, np.ndarray) else jnp.append(first, second)


def _arrays(optimizer: Optimizer) -> Callable[[Float[np.ndarray, " 6"]], list[np.ndarray]]:
    """A function that makes parameters of six numbers: a vector and a matrix, or two vectors.

    Matrices of Muon move by no sign; its vectors do, by Adam at the rate that both have.
    """
    state = jax.eval_shape(optimizer.init, [jax.ShapeDtypeStruct((2,), jnp.result_type(float))])
    is_muon = lambda node: isinstance(node, optax.contrib.MuonState)
    shape = (4,) if any(map(is_muon, jax.tree.leaves(state, is_leaf=is_muon))) else (2, 2)
    return lambda vector: [vector[:2], vector[2:].reshape(shape)]
