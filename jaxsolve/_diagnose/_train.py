"""The short training run: a manual descent, which keeps the optimizer's state at the checkpoints."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from .._core import Problem
from .._numerics import samples_in
from .._results import RESULTS
from ..dynamics import Descent
from ..observe._internal import outputs_at, slope_at
from ._rescaled import Rescaled, suited, with_inside, without_rescaling


# Largest full batch, and the batch size beyond it.
FULL_BATCH, BATCH = 1024, 256


class Checkpoint(NamedTuple):
    """The state of training after some steps.

    Attributes:
        step: steps made.
        params: the parameters.
        state: state of the optimizer; None if unknown.
    """

    step: int
    params: PyTree
    state: Any


class ShortTraining(NamedTuple):
    """A short training run.

    Attributes:
        checkpoints: the first is the start.
        diverged: whether training diverged; the last checkpoint then precedes the step that diverged.
    """

    checkpoints: list[Checkpoint]
    diverged: bool


def batch_size_for(problem: Problem, given: int | None) -> int | None:
    """The batch size as given, else BATCH for a stream or many samples; None for a full batch."""
    if problem.sampler is not None:
        return BATCH if given is None else given
    if given is not None:
        return given if given < samples_in(problem.x) else None
    return None if samples_in(problem.x) <= FULL_BATCH else BATCH


def checkpoint_steps(steps: int, count: int) -> list[int]:
    """0 and about `count` steps, evenly spaced in the logarithm, the last one `steps`."""
    return sorted({0, *(max(1, round(steps ** (k / count))) for k in range(1, count + 1))})


def train(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    at: list[int],
    batch_size: int | None,
    key: Any,
    say: Callable[[str], None] = lambda words: None,
    noise: Any = None,
    value: Callable[[PyTree], float] | None = None,
) -> ShortTraining:
    """Trains with stops at the steps `at`, the first of which is 0; calls `say` before each training segment.

    `value`, the training loss if None, shows at every stop whether the last step before it diverged.
    """
    key = None if batch_size is None and noise is None else key
    # Time is not needed here. Counting every step as 1 also serves optimizers that do not expose their rates.
    by = lambda optimizer: Descent(optimizer, rate=1.0, batch_size=batch_size, key=key, noise=noise)
    state = begin(by(optimizer), without_rescaling(problem), jax.device_put(np.asarray([at[-1]], problem.dtype)))
    if isinstance(problem.net, Rescaled):  # which has the same start
        places = lambda state: (state.params, state.saves.saved)
        state = eqx.tree_at(places, state, [with_inside(problem.params, tree) for tree in places(state)])
    descent = by(suited(optimizer, problem.net))
    value = functools.partial(objective, problem) if value is None else value
    found, diverged = [Checkpoint(0, state.params, state.optimizer_state)], False
    for step in at[1:]:
        say(f"training from step {int(state.steps)} of {at[-1]}")
        before, (state, failed) = state, advance(descent, problem, state, _count(step - int(state.steps)))
        loss = value(state.params)
        lost = not (np.isfinite(loss) and loss <= float(state.limit))
        diverged = lost or bool(failed)
        if lost:  # at the last step: stop before it instead
            state, _ = advance(descent, problem, before, _count(int(state.steps) - 1 - int(before.steps)))
        made = int(state.steps)
        if made > found[-1].step:
            found.append(Checkpoint(made, state.params, state.optimizer_state))
        if diverged or made < step:
            break
    return ShortTraining(found, diverged)


@eqx.filter_jit
def begin(descent: Descent, problem: Problem, ts: Array) -> Any:
    return descent.init(problem, ts)


@eqx.filter_jit
def advance(descent: Descent, problem: Problem, state: Any, n: Array) -> tuple[Any, Bool[Array, ""]]:
    """The state after n more steps, and whether they diverged."""
    state = descent.advance(problem, state, n)
    return state, state.result == RESULTS.diverged


def _count(steps: int) -> Array:
    return jax.device_put(np.asarray(steps))  # compiles nothing


def objective(problem: Problem, params: PyTree) -> float:
    """The training loss."""
    if problem.held:
        return loss_of(problem, outputs_at(problem, params))
    return float(slope_at(problem, params).value)  # by the compiled program, a few samples at a time


def loss_of(problem: Problem, f: Float[Array, "n out"]) -> float:
    """The training loss of outputs."""
    return float(_loss_of(problem, f))


@eqx.filter_jit
def _loss_of(problem: Problem, f: Float[Array, "n out"]) -> Float[Array, ""]:
    return problem.loss.value(f, problem.y)
