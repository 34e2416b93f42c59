"""Stability of the optimizer's steps at the checkpoints: critical rate and sharpness."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._core import Problem
from ..observe._internal import critical_multiple, Response, response, sharpness_ratio, Slope
from . import _thresholds
from ._diagnosis import about, Finding
from ._stability import is_finite, size
from ._train import Checkpoint
from ._verdict import side


NO_STEP = "the optimizer's next step is 0"
LOST_STEP = "the optimizer's next step is NaN or infinite"
FLAT = "the loss and its slope along the next step are 0 here, or too small for the dtype"
CURVED = "the loss's curvature is NaN or infinite here"
FAR = 1e3  # times the step: beyond practical steps


class StepStability(NamedTuple):
    """The stability of the steps.

    Attributes:
        findings: numbers by name.
        history: `critical_rate` and `stability` along the checkpoints.
        words: sentences for the paragraph.
        notes: what could not be measured.
        uphill: whether every step goes uphill.
    """

    findings: dict[str, Finding]
    history: dict[str, np.ndarray]
    words: list[str]
    notes: list[str]
    uphill: bool

    @staticmethod
    def of_descent(probe: Problem, eta: PyTree, checkpoints: list[PyTree], products: int) -> "StepStability":
        """Stability of gradient descent with rates eta, up to the rate 2/sharpness, for an unknown optimizer."""
        # `sharpness_ratio` is in units of the limit 2.
        ratio = lambda params: float(sharpness_ratio(probe, params, _every(eta, params), products))
        sharp = np.array([2 * ratio(params) for params in checkpoints])
        last = float(sharp[-1])
        if last > 0:
            words = f"gradient descent is stable below the rate {about(2 / last)}, 2/sharpness"
        else:
            words = "the loss is flat here: it limits no rate"
        if not np.isfinite(last):
            last, words = float("nan"), CURVED
        return StepStability({"sharpness": Finding(last, None, words)}, {"sharpness": sharp}, [], [], False)


def step_stability(
    probe: Problem,
    optimizer: Any,
    checkpoints: list[Checkpoint],
    slopes: list[Slope],
    updates: list[PyTree],
    products: int,
    say: Callable[[str], None],
) -> StepStability:
    """The critical multiple of the next step at every checkpoint, and the sharpness over the largest stable one.

    Arguments:
        probe: the problem on the probe samples.
        optimizer: the optimizer of a `Descent`.
        checkpoints: checkpoints of the training, with the optimizer's state.
        slopes: gradients of the loss at the checkpoints.
        updates: the optimizer's next steps at the checkpoints.
        products: maximum number of products per largest eigenvalue.
        say: called with a message at every checkpoint.
    """
    critical, ratios = [], []
    why, lost, adaptive = "", "", False
    sizes = [size(update) for update in updates]
    # Schedules compute in float32: the last rate of one that ends at 0 may be its first times -1e-8.
    rounding = float(jnp.finfo(jnp.float32).eps) * max((one for one in sizes if np.isfinite(one)), default=0.0)
    for point, slope, update, largest in zip(checkpoints, slopes, updates, sizes, strict=True):
        say(f"looking at the optimizer's next step at step {point.step}")
        found = response(probe.eta, optimizer, point.params, point.state, slope)
        # No step: a schedule that begins or ends at 0, steps that accumulate gradients, or no gradient.
        lost = NO_STEP if largest == 0 else "" if is_finite(update) else LOST_STEP
        multiple = np.nan if lost else float(critical_multiple(probe, point.params, update, slope))
        if multiple == 0 and largest <= rounding:
            lost, multiple = NO_STEP, np.nan
        critical.append(multiple)
        if lost and found.rates is None:  # without a step, that is the reason, whatever `response` says about the state
            found = Response(None, False, lost)
        rates = found.rates
        ratio = np.nan if rates is None else float(sharpness_ratio(probe, point.params, rates, products))
        ratios.append(ratio if np.isfinite(ratio) else np.nan)
        if point is checkpoints[-1]:
            why, adaptive = found.why, found.adaptive
    last = ratios[-1]
    findings = {
        "critical_rate": side(critical[-1], _thresholds.CRITICAL, "the step raises the loss: too large"),
        "stability": side(last, _thresholds.STABILITY, "the steps are stable"),
    }
    notes = []
    if critical[-1] == 0:
        findings["critical_rate"] = Finding(
            0.0, _thresholds.CRITICAL, "the step goes uphill: no part of it lowers the loss"
        )
    elif np.isnan(critical[-1]):
        findings["critical_rate"] = Finding(critical[-1], _thresholds.CRITICAL, f"not known: {lost or FLAT}")
    if not why and np.isnan(last):
        findings["stability"] = Finding(last, _thresholds.STABILITY, f"not known: {CURVED}")
    if why:
        findings["stability"] = Finding(float("nan"), _thresholds.STABILITY, f"not known: {why}")
        known = (
            f"No limit of the sharpness is known for this optimizer: {why}. The critical rate works for any optimizer."
        )
        notes.append(f"Nothing is known of larger steps: {why}." if why in (NO_STEP, LOST_STEP) else known)
    elif last >= _thresholds.EDGE:
        findings["stability"] = Finding(last, _thresholds.STABILITY, "at the edge of stability or beyond")
    history = {"critical_rate": np.array(critical), "stability": np.array(ratios)}
    known = history["critical_rate"][~np.isnan(history["critical_rate"])]
    # The critical rate of an uphill step is 0.
    uphill = known.size > 1 and not np.any(known)
    words = [_words(critical[-1], lost or FLAT, last, adaptive=adaptive, uphill=uphill)]
    return StepStability(findings, history, words, notes, uphill)


def _words(critical: float, unknown: str, ratio: float, *, adaptive: bool, uphill: bool) -> str:
    if np.isnan(critical):
        return f"The critical rate is not known: {unknown}."
    if uphill:
        step = "All steps of the optimizer go uphill: check the sign of its rate"
    elif critical == 0:
        step = (
            "The optimizer's next step goes uphill, as those of momentum or of signs may: no part of it lowers the loss"
        )
    elif critical >= 1:
        times = f"{about(critical)}" if critical < FAR else f"more than {FAR:g}"
        step = f"The optimizer's next step could be {times} times as large before it raised the loss"
    else:
        step = f"The optimizer's next step raises the loss: more than {about(critical)} of it is too large"
    if np.isnan(ratio):
        return step + "."
    if ratio <= 0:
        return f"{step}; the loss curves upward in no direction here, so sharpness limits no step."
    kind = "preconditioned sharpness" if adaptive else "sharpness"
    trains = "trains at" if ratio <= _thresholds.BEYOND else "is beyond"
    where = f"it {trains if ratio >= _thresholds.EDGE else 'is off'} the edge of stability"
    return f"{step}; its {kind} is {about(ratio)} of the largest stable one: {where}."


@eqx.filter_jit
def _every(eta: PyTree, params: PyTree) -> PyTree:
    return jax.tree.map(lambda rate, p: rate * jnp.ones_like(p), eta, params)
