"""Statements made before a network trains: Chizat's ratio, and the multiplier at which its regime changes."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from .._core import Problem
from ..dynamics import Descent
from ..kernels._internal import Trace
from ..observe._internal import (
    curvature,
    linear_change,
    next_update,
    outputs_at,
    progress_between,
    pull_at,
    rate_exponent,
    slope_at,
)
from . import _thresholds
from ._crossover import Crossover, crossover
from ._diagnosis import about, Finding
from ._examine import test_loss
from ._movement import relative_change, whole_kernel
from ._rescaled import inside, rescaled, suited, with_inside
from ._stability import difference, moves
from ._train import loss_of, train
from ._verdict import side


# Below this progress, linearized training does not predict where full training ends.
LEAST = 1e-3
NO_KERNEL = "the kernel is 0 at the start"
FLAT, ZERO = "the loss has no gradient at the start", "the optimizer's first steps are zero"
BOTH_SIDES = 3.0
# Words and exponents for checkpoints, which do not say by what they were trained.
BY_OPTIMIZER = ((" for gradient descent", 1.0), (" for Adam", 0.0))


class Before(NamedTuple):
    """The numbers and sentences that are known before training.

    Attributes:
        findings: numbers by name.
        by_scale: as in `Diagnosis`.
        linear_loss, linear_test_loss: losses of the linearized network after the same training; None if not trained.
        words: sentences for the paragraph.
        notes: what could not be measured.
        stuck: why the first step is 0, if it is.
    """

    findings: dict[str, Finding]
    by_scale: dict[str, np.ndarray]
    linear_loss: float | None
    linear_test_loss: float | None
    words: list[str]
    notes: list[str]
    stuck: str = ""

    @property
    def linearized_change(self) -> float:
        """The kernel's change where linearized training ends; NaN if that is not known."""
        if not self.by_scale:
            return float("nan")
        return float(self.by_scale["kernel_change"][self.by_scale["multiplier"] == 1][0])

    @staticmethod
    def from_displacement(few: Problem, eta: PyTree, displacement: PyTree, progress: float, trace: Trace) -> "Before":
        """The crossover from the displacement of a finished training run."""
        if not progress > LEAST:
            return Before(
                {}, {}, None, None, [], ["The crossover multiplier is not known: the checkpoints have not learned."]
            )
        # Extrapolated to the end of training: in the kernel regime parameters move in proportion to the progress.
        displacement = jax.tree.map(lambda d: d / min(progress, 1.0), displacement)
        found = crossover(few, eta, displacement, _thresholds.KERNEL_CHANGE.value, trace)
        if found is None:
            return Before({}, {}, None, None, [], [f"Where features begin is not known: {NO_KERNEL}."])
        return Before(_multiplier(found), _by_scale(found), None, None, _advice(found, BY_OPTIMIZER), [])


def before(
    problem: Problem,
    probe: Problem,
    few: Problem,
    eta: PyTree,
    optimizer: optax.GradientTransformation,
    state: PyTree,
    steps: int,
    batch_size: int | None,
    key: Any,
    trace: Trace,
    *,
    verify: bool,
) -> Before:
    """Chizat's ratio along the first update, and the multiplier at which the regime changes.

    Arguments:
        problem: the problem at the start.
        probe, few: the problem on the probe samples, and on a few of them for kernels.
        eta: the learning rates that weight the kernels.
        optimizer, steps, batch_size, key: as for the training.
        state: state of the optimizer at the start.
        trace: how kernels are computed.
        verify: whether to train on both sides of the multiplier.
    """
    descent = Descent(suited(optimizer, problem.net), rate=1.0)
    slope = slope_at(few, few.params)
    next_of = lambda state: next_update(few.eta, descent.optimizer, few.params, state, slope)
    update = next_of(state)
    if not moves(update):  # for example, a schedule that begins at 0
        state = descent.optimizer.update(slope.gradient, state, few.params, slope.value)[1]
        update = next_of(state)
    curved = curvature(few, few.params, update)
    findings = {
        "chizat_ratio": side(float(curved.ratio), _thresholds.CURVATURE, "lazy, to second order along the gradient")
    }
    notes, stuck = [], ""
    if not moves(update):
        stuck = ZERO if moves(slope.gradient) else FLAT
    why = stuck
    if not why and not np.isfinite(float(curved.ratio)) and float(curved.second) != 0:
        finite = np.isfinite(float(curved.second))
        why = "the first update does not lower the loss" if finite else "the first update is NaN or infinite"
    if why:
        findings["chizat_ratio"] = Finding(float("nan"), _thresholds.CURVATURE, f"not known: {why}")
        notes.append(f"Chizat's ratio is not known: {why}.")
    elif float(curved.second) == 0:
        findings["chizat_ratio"] = Finding(
            float("nan"), _thresholds.CURVATURE, "not known: no second derivative along the first update"
        )
        notes.append(
            "Chizat's ratio is not known: the outputs have no second derivative along the first update. They are "
            "linear in the parameters that move, at least between kinks (relu); the multiplier is measured without "
            "them."
        )
    exponent = rate_exponent(descent.optimizer, few.params, state, slope)

    linear, start = rescaled(problem, scale=1.0, linear=True), outputs_at(problem, problem.params)
    run = train(
        linear, optimizer, [0, steps], batch_size, key, value=lambda end: loss_of(problem, _linear(start, problem, end))
    )
    end = run.checkpoints[-1].params
    now = pull_at(problem, problem.params, eta, _linear(start, problem, end))
    progress = float(progress_between(pull_at(problem, problem.params, eta, start), now))
    if run.diverged or not progress > LEAST:
        why = "diverges at this rate" if run.diverged else f"has made no progress in {steps} steps"
        notes.append(f"The crossover multiplier is not known: the linearized network {why}.")
        findings["crossover_multiplier"] = Finding(
            float("nan"), _thresholds.MULTIPLIER, f"not known: linearized training {why}"
        )
        return Before(findings, {}, None, None, [], notes, stuck)
    # Extrapolated to the end of linearized training: its displacement is proportional to its progress.
    made = difference(with_inside(problem.params, inside(end)), problem.params)
    displacement = jax.tree.map(lambda leaf: leaf / min(progress, 1.0), made)
    found = crossover(few, eta, displacement, _thresholds.KERNEL_CHANGE.value, trace)
    if found is None:
        findings["crossover_multiplier"] = Finding(float("nan"), _thresholds.MULTIPLIER, f"not known: {NO_KERNEL}")
        return Before(findings, {}, None, None, [], [*notes, f"Where features begin is not known: {NO_KERNEL}."], stuck)
    findings |= _multiplier(found)
    by_scale, words = _by_scale(found), _advice(found, None if exponent is None else (("", exponent),))
    linear_loss = loss_of(probe, _linear(outputs_at(probe, probe.params), probe, end))  # on the samples of `loss`
    if exponent is None:
        if verify:
            notes.append("The crossover was not verified by training: the rates that match a multiplier are not known.")
    elif verify and 0 < found.multiplier < np.inf:
        places = np.array([found.multiplier / BOTH_SIDES, found.multiplier * BOTH_SIDES])
        trained = functools.partial(_trained_at, problem, few, eta, optimizer, steps, batch_size, key, trace)
        changes = [trained(m, exponent) for m in places]
        by_scale |= {"verified_multiplier": places, "verified_change": np.array(changes)}
        words.append(_verified(places, changes))
    # With state, inputs beyond the batch use statistics of one set of parameters; the linearized network has two.
    untested = problem.x_test is None or problem.state is not None
    test = None if untested else float(test_loss(linear, end))
    return Before(findings, by_scale, linear_loss, test, words, notes, stuck)


def _linear(start: Array, problem: Problem, end: PyTree) -> Array:
    """The outputs of the linearized network at parameters `end`; `start` are those at the start."""
    change = linear_change(problem, with_inside(problem.params, inside(end)))
    return jax.device_put(np.asarray(start) + np.asarray(change))  # compiles nothing


def _trained_at(
    problem, few, eta, optimizer, steps, batch_size, key, trace, multiplier: float, exponent: float
) -> float:
    """The kernel's change by the end of training with an output multiplier, at the rate that matches it."""
    multiplied = rescaled(problem, scale=multiplier)
    # A multiplier m scales the gradient by m, the update by m^p and the change of f per step by m^(1 + p). The rate
    # undoes this.
    rate = jnp.asarray(multiplier ** -(1 + exponent), problem.dtype)
    run = train(multiplied, optax.chain(optimizer, optax.scale(rate)), [0, steps], batch_size, key)
    end = run.checkpoints[-1].params
    rates = with_inside(multiplied.params, eta)
    progress = float(progress_between(*(pull_at(multiplied, params, rates) for params in (multiplied.params, end))))
    if run.diverged or not progress > LEAST:
        return float("nan")
    kernels = [whole_kernel(few, params, eta, trace) for params in (few.params, with_inside(few.params, inside(end)))]
    return float(relative_change(kernels[1], kernels[0])) / min(progress, 1.0)


def _multiplier(found: Crossover) -> dict[str, Finding]:
    words = "learns features as it is" if found.multiplier > 1 else "lazy as it is"
    words += ", and at any multiplier that was tried" if found.multiplier in (0.0, np.inf) else ""
    return {"crossover_multiplier": Finding(found.multiplier, _thresholds.MULTIPLIER, words)}


def _by_scale(found: Crossover) -> dict[str, np.ndarray]:
    order = np.argsort(1 / found.scales)
    return {"multiplier": (1 / found.scales)[order], "kernel_change": found.changes[order]}


def _advice(found: Crossover, exponents: tuple[tuple[str, float], ...] | None) -> list[str]:
    """Advice on how to change the regime: the multiplier, and the rate that matches it for each exponent of the rate.

    Arguments:
        found: the crossover.
        exponents: pairs of words for the optimizer and the exponent of its rate; None if that is unknown.
    """
    multiplier = found.multiplier
    if multiplier in (0.0, np.inf):
        return ["No output multiplier that was tried changes its regime."]
    if 1 / _thresholds.NEAR < multiplier < _thresholds.NEAR:  # too close to call
        return [f"It is close to the crossover, which is where f - f_0 is multiplied by {about(multiplier)}."]
    rate = ""
    if exponents is not None:
        factors = [(multiplier ** (1 + exponent), of) for of, exponent in exponents]
        said = " or ".join(f"{about(max(factor, 1 / factor))}{of}" for factor, of in factors)
        rate = f" and {'divide' if factors[0][0] >= 1 else 'multiply'} the rate by {said}"
    to = "leave the kernel regime" if multiplier < 1 else "enter the kernel regime"
    return [f"To {to}, multiply f - f_0 by {about(multiplier)}{rate}: that is the crossover."]


def _verified(places: np.ndarray, changes: list[float]) -> str:
    if not np.all(np.isfinite(changes)):
        without = " and ".join(
            f"{about(p)}" for p, change in zip(places, changes, strict=True) if not np.isfinite(change)
        )
        return f"Training at the multiplier {without} diverged or learned nothing, so the crossover is not verified."
    said = [f"{about(change)} at {about(place)}" for place, change in zip(places, changes, strict=True)]
    limit = _thresholds.KERNEL_CHANGE.value
    # Parameters move further at a smaller multiplier: the first place should learn features, the second be lazy.
    agrees = changes[0] >= limit > changes[1]
    return (
        f"Trained on both sides, the kernel moves by {said[0]} and {said[1]}: {'as' if agrees else 'not as'} predicted."
    )
