"""The cheapest setting of a rival that is accurate enough: the loosest tolerance, or the largest step."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import jaxsolve as js

from ._flow_rivals import MAX_STEPS, Rival, Run


class Choice(NamedTuple):
    """A setting that was tried, seconds without compilation, and whether both errors are at most the goal (`met`)."""

    setting: float
    displacement_error: float
    test_error: float
    steps: int
    evaluations: int
    seconds: float
    met: bool


def errors(run: Run, reference: Run) -> tuple[float, float]:
    """Relative errors of displacement and of test outputs, in 2-norms over all parameters and all samples."""
    gap = lambda a, b: float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
    flat = [[ravel_pytree(part)[0] for part in one[:2]] for one in (run, reference)]
    return gap(flat[0][0], flat[1][0]), gap(flat[0][1], flat[1][1])


def cheapest(
    rival: Rival,
    problem: js.Problem,
    T: float,
    reference: Run,
    goal: float = 1e-3,
    *,
    max_steps: int = MAX_STEPS,
    patience: float = math.inf,
    halvings: int = 0,
) -> Choice:
    """The loosest setting of a rival whose errors of displacement and of test outputs are at most `goal`.

    Goes down the ladder, past rungs on which errors would still be far too large, and from the first good one up again
    until the next looser has failed. If none was good enough, the last that was tried is returned, with `met` False.

    Arguments:
        rival, problem, T: what integrates what, and until when.
        reference: a much more accurate run of the same.
        goal: the largest relative error that is good enough.
        max_steps: of one run; a run that needs more fails.
        patience: seconds after which no other setting is tried.
        halvings: how often the last two rungs are halved between, to come nearer to `goal`.
    """
    settings = rival.ladder(problem, reference)
    rival.run(problem, 1e-9 * T, settings[0], max_steps=max_steps)  # compiles
    end = time.perf_counter() + patience

    def attempt(setting: float) -> Choice:
        start = time.perf_counter()
        run = rival.run(problem, T, setting, max_steps=max_steps)
        seconds = time.perf_counter() - start
        found = errors(run, reference)
        met = all(error <= goal for error in found)
        return Choice(setting, *found, int(run.steps), int(run.evaluations), seconds, met)

    index, failed, choice = 0, -1, attempt(settings[0])
    while not choice.met and index + 1 < len(settings) and time.perf_counter() < end:
        failed, index = index, _next_rung(settings, index, choice, goal, rival.order)
        choice = attempt(settings[index])
    while choice.met and index - 1 > failed and time.perf_counter() < end:
        looser = attempt(settings[index - 1])
        if not looser.met:
            break
        choice, index = looser, index - 1
    if choice.met and index > 0 and time.perf_counter() < end:
        choice = refine(attempt, choice, settings[index - 1], halvings)
    return choice


def refine(attempt: Callable[[float], Choice], choice: Choice, looser: float, halvings: int) -> Choice:
    """The loosest good setting found by halving, in logarithms, between a good one and a looser one that failed."""
    for _ in range(halvings):
        middle = math.sqrt(choice.setting * looser)
        found = attempt(middle)
        choice, looser = (found, looser) if found.met else (choice, middle)
    return choice


def _next_rung(settings: Sequence[float], index: int, choice: Choice, goal: float, order: float) -> int:
    """One rung looser than that on which the errors are expected to be small enough, but below this one."""
    error = max(choice.displacement_error, choice.test_error)
    error = min(error, 1.0) if math.isfinite(error) else goal  # beyond 100 % they say nothing
    enough = settings[index] * (goal / error) ** (1 / order)
    good = next((rung for rung, setting in enumerate(settings) if setting <= enough), len(settings))
    return min(max(good - 1, index + 1), len(settings) - 1)
