"""From numbers to words: the regime, a sentence for every number, and one paragraph."""

from typing import NamedTuple

import numpy as np

from ..observe import Regime
from . import _thresholds
from ._diagnosis import about, Finding
from ._examine import Examined
from ._thresholds import Threshold


class RegimeVerdict(NamedTuple):
    """The regime.

    Attributes:
        regime: regime of the network.
        expected: the kernel's change by the end of full training, extrapolated from this run.
        near: whether that is within a factor 3 of its limit.
        diverged: whether training diverged.
    """

    regime: Regime
    expected: float
    near: bool
    diverged: bool = False


def decide(examined: Examined, diverged: bool, linearized: float) -> RegimeVerdict:
    """The regime from the kernel's change, extrapolated to the end of training in proportion to the progress.

    In the kernel regime parameters, kernel and outputs move in proportion: after a share q of training, the kernel has
    made a share q of its change. A change that already exceeds the limit is final. With little progress, the change at
    the end of linearized training is used, since a kernel that moves does so faster and faster.

    Arguments:
        examined: measurements at the checkpoints.
        diverged: whether training diverged.
        linearized: the kernel's change at the end of linearized training; NaN if unknown.
    """
    history = examined.history
    change, progress = float(history["kernel_change"][-1]), float(history["progress"][-1])
    limit, ahead = _thresholds.KERNEL_CHANGE.value, progress < _thresholds.ENOUGH_PROGRESS and np.isfinite(linearized)
    learnt = ahead or progress >= _thresholds.LEAST_PROGRESS
    expected = max(change, linearized) if ahead else change / min(progress, 1.0) if learnt else change
    if not examined.learnable:
        return RegimeVerdict(Regime.FROZEN, change, False, diverged)
    near = bool(limit / _thresholds.NEAR < expected < limit * _thresholds.NEAR)
    if diverged or (progress < _thresholds.LEAST_PROGRESS and has_grown(history)):
        return RegimeVerdict(Regime.UNSTABLE, expected, False, diverged)
    if examined.kernel == "NaN or infinite" or not examined.started:  # beyond any limit, unless it is 0 throughout
        return RegimeVerdict(Regime.FROZEN if examined.kernel == "0" else Regime.FEATURE_LEARNING, expected, False)
    if expected >= limit:
        return RegimeVerdict(Regime.FEATURE_LEARNING, expected, near)
    return RegimeVerdict(Regime.KERNEL if learnt else Regime.FROZEN, expected, near)


def _gone(progress: float) -> str:
    if progress == 1:
        return "all of the loss's gradient that the parameters see"
    return f"{progress:.0%} of the loss's gradient"


def _rises(progress: float) -> bool:
    """True if the gradient has grown by an amount that shows in whole percent."""
    return progress <= -0.005


def has_grown(history: dict[str, np.ndarray]) -> bool:
    """True if the loss is far above its value at the start."""
    first, last = history["loss"][[0, -1]]
    return bool(last > _thresholds.GROWN * abs(first) > 0)


def side(value: float, limit: Threshold, below: str) -> Finding:
    """A number with the words for its side of the limit."""
    if np.isnan(value):
        return Finding(value, limit, "not known")  # callers add the reason
    return Finding(value, limit, limit.beyond if value >= limit.value else below)


def regime_findings(examined: Examined, verdict: RegimeVerdict) -> dict[str, Finding]:
    """The findings on the regime from the last checkpoint, with their words."""
    history = examined.history
    last = {name: float(values[-1]) for name, values in history.items()}
    first = {name: float(values[0]) for name, values in history.items()}
    gone = f"{_gone(max(last['progress'], 0.0))} is gone"
    larger = f"the loss's gradient is {about(1 - last['progress'])} times as large as at the start"
    rank = f"directions of the kernel, from {first['effective_rank']:.3g} at the start"
    found = {
        "progress": Finding(last["progress"], None, larger if _rises(last["progress"]) else gone),
        "kernel_change": side(last["kernel_change"], _thresholds.KERNEL_CHANGE, "the kernel has hardly moved so far"),
        "expected_kernel_change": side(verdict.expected, _thresholds.KERNEL_CHANGE, "the kernel will hardly move"),
        "nonlinearity": side(last["nonlinearity"], _thresholds.NONLINEARITY, "the linearized network does the same"),
        "kernel_alignment": Finding(last["kernel_alignment"], None, _aligned(first, last, examined)),
        "residual_position": Finding(
            last["residual_position"], None, "1 where all that is left lies on the kernel's fastest direction"
        ),
        "effective_rank": Finding(
            last["effective_rank"], None, rank if examined.started else f"{RANK}; it is 0 at the start"
        ),
        "layer_alignment": _layer_alignment(examined),
        "switched_units": _switched_units(examined),
    }
    if verdict.expected > max(1.0, last["kernel_change"]):
        words = "the kernel will move by more than its size: how far, no extrapolation tells"
        found["expected_kernel_change"] = Finding(verdict.expected, _thresholds.KERNEL_CHANGE, words)
    if verdict.diverged:
        found["expected_kernel_change"] = Finding(np.nan, _thresholds.KERNEL_CHANGE, "not known: the training diverged")
    if not examined.moved:
        found["nonlinearity"] = Finding(last["nonlinearity"], _thresholds.NONLINEARITY, "the outputs have not changed")
    elif examined.hidden:
        found["nonlinearity"] = Finding(np.nan, _thresholds.NONLINEARITY, f"not known: {HIDDEN}")
    if len(history["step"]) == 1:
        limits = {name: found[name].limit for name in ("progress", "kernel_change", "nonlinearity")}
        found |= {name: Finding(np.nan, limit, "not known: no step was made") for name, limit in limits.items()}
    unknown = f"the kernel is {examined.kernel}" if examined.kernel else "numbers overflow"
    for name, one in found.items():
        # A value that is NaN without a stated reason is NaN because of the kernel.
        if np.isnan(one.value) and not one.words.startswith("not known: "):
            found[name] = Finding(one.value, one.limit, f"not known: {unknown}")
        elif np.isinf(one.value):
            found[name] = Finding(one.value, one.limit, "the kernel, 0 at the start, is not 0 now")
    return found


RANK, HIDDEN = "directions of the kernel", "the outputs have moved by little more than rounding"


def _aligned(first: dict[str, float], last: dict[str, float], examined: Examined) -> str:
    if np.isnan(last["kernel_alignment"]):
        return f"not known: {examined.unaligned}"
    if np.isnan(first["kernel_alignment"]):
        return "with the target"
    return f"with the target, from {about(first['kernel_alignment'])} at the start"


def _layer_alignment(examined: Examined) -> Finding:
    """The average alignment of successive layers."""
    both = np.stack([examined.by_pair[name] for name in ("alignment_start", "alignment")])
    both = both[:, np.all(np.isfinite(both), axis=0)]  # undefined for zero weights
    if both.size == 0:
        why = "weights are 0, NaN or infinite" if examined.pairs else "no two successive layers, or too many"
        return Finding(np.nan, None, f"not known: {why}")
    start, end = (float(value) for value in np.mean(both, axis=1))
    count = f"on average of {both.shape[1]} pairs" if both.shape[1] > 1 else "of both"
    where = "the outputs of layers against the inputs of the next ones"
    return Finding(end, None, f"{where}, {count}, from {about(start)} at the start")


def _switched_units(examined: Examined) -> Finding:
    """The share of pairs of sample and unit that switched on or off."""
    if examined.switched is None:
        return Finding(np.nan, None, "not known: no relu or other unit with a kink was found")
    lost = np.isnan(examined.switched)
    words = (
        "not known: the network is NaN somewhere" if lost else "of units and samples are on another side of the kink"
    )
    return Finding(examined.switched, None, words)


def paragraph(
    examined: Examined,
    verdict: RegimeVerdict,
    findings: dict[str, Finding],
    ahead: list[str],
    steps: list[str],
    *,
    ending: str = "",
    stuck: str = "",
    uphill: bool = False,
) -> str:
    """The diagnosis in plain words.

    Arguments:
        examined, verdict, findings: results at the checkpoints.
        ahead, steps: sentences on what is known before training, and on the steps.
        ending: why the training diverged, if it did.
        stuck: why the first step is 0, if it is.
        uphill: whether all steps go uphill.
    """
    if not examined.learnable:
        # Steps along rounding errors say nothing.
        also = " The training diverged all the same." if verdict.diverged else ""
        return (
            "There is nothing to learn: at the start the gradient of the loss in the outputs is 0 up to "
            f"rounding.{also}"
        )
    parts = [_opening(verdict, ending, stuck, uphill)]
    if len(examined.history["step"]) > 1:
        parts += [_moved(examined, verdict, findings), *_so_far(examined, verdict), _linearized(examined, findings)]
    aligned = findings["kernel_alignment"]
    known, words = np.isfinite(aligned.value), aligned.words
    said = f"{about(aligned.value)} ({words.split(', ', 1)[-1]})" if known else words
    parts += [f"The kernel's alignment with the target is {said}.", *ahead, *steps, _layers(examined)]
    return " ".join(part for part in parts if part)


def _opening(verdict: RegimeVerdict, ending: str, stuck: str, uphill: bool) -> str:
    if ending:
        return ending
    if verdict.regime is Regime.UNSTABLE:
        why = ", as the optimizer's steps go uphill: check the sign of its rate" if uphill else ": take a smaller rate"
        return f"The loss grows{why}."
    if verdict.regime is Regime.FROZEN and stuck:
        return f"This network has not learned anything, so its regime is unknown: {stuck}."
    return {
        Regime.KERNEL: "This network trains in the kernel regime: it fits with features that it hardly changes.",
        Regime.FEATURE_LEARNING: "This network learns features.",
        Regime.FROZEN: (
            "This network has not learned anything yet, so its regime is unknown: train for longer, or "
            "with a larger rate."
        ),
    }[verdict.regime]


def _moved(examined: Examined, verdict: RegimeVerdict, findings: dict[str, Finding]) -> str:
    """A sentence on how far the kernel has moved."""
    change, progress = findings["kernel_change"].value, findings["progress"].value
    if examined.kernel == "NaN or infinite":
        return "By now its kernel is NaN or infinite."
    if not examined.started:
        now = (
            "as it is now"
            if examined.kernel
            else ("and is not now, so its change cannot be relative to its size at the start")
        )
        return f"Its kernel is 0 at the start, or too small for the dtype, {now}."
    if _rises(progress):
        over = f"While the loss's gradient grew to {about(1 - progress)} times its size"
    else:
        over = f"While {_gone(max(progress, 0.0))} went away"
    expected = change if verdict.diverged else verdict.expected
    carried = f", {_carried(expected)}" if expected > 1.2 * change and change < 1 else ""
    where = "below" if expected < _thresholds.KERNEL_CHANGE.value else "above"
    limit = f"{where} {_thresholds.KERNEL_CHANGE.value:g}, the limit of the kernel regime"
    return f"{over}, its kernel moved by {_of_size(change)}{carried}; {limit}."


def _carried(expected: float) -> str:
    """Words for the change by the end of training.

    Beyond the size of the kernel, a change that grows in proportion is no estimate: that much is certain, no more.
    """
    if expected > 1:
        return "which makes more than its size by the end of training"
    return f"which makes {about(expected)} by the end of training"


def _of_size(share: float) -> str:
    return f"{about(share)} {'of' if share < 1 else 'times'} its size"


def _so_far(examined: Examined, verdict: RegimeVerdict) -> list[str]:
    """Sentences on what makes the verdict doubtful."""
    said = ["That is near the limit, where seeds and details decide."] if verdict.near else []
    if verdict.regime not in (Regime.KERNEL, Regime.FEATURE_LEARNING):
        return said
    if examined.history["loss"][-1] > examined.history["loss"][0]:
        return [*said, "The loss has risen so far, which says little about training that lowers it."]
    if examined.history["progress"][-1] < _thresholds.ENOUGH_PROGRESS:
        return [*said, "Training has only begun, which says little about its end: train for longer to be sure."]
    return said


def _linearized(examined: Examined, findings: dict[str, Finding]) -> str:
    """A sentence on what the linearized network misses."""
    missed = findings["nonlinearity"].value
    if not examined.moved:
        return "Its outputs have not changed."
    if not np.isfinite(missed):
        return f"The error of its linearization is not known: {HIDDEN if examined.hidden else 'numbers overflow'}."
    if missed > 1:
        return f"Its linearization is off by {about(missed)} times the change of its outputs."
    return f"Its linearization misses {missed:.0%} of the change of its outputs."


def _layers(examined: Examined) -> str:
    """A sentence on which groups move and which make the kernel."""
    update, share, names = examined.by_group["update"], examined.by_group["kernel_share"], examined.groups.names
    if len(names) < 2:
        return ""
    finite = np.flatnonzero(np.isfinite(update) & (len(examined.history["step"]) > 1))
    appeared = [names[index] for index in np.flatnonzero(np.isinf(update))]
    said = [f"{' and '.join(appeared)} moved from 0"] if appeared else []
    if finite.size:
        most, least = (finite[find(update[finite])] for find in (np.argmax, np.argmin))
        if update[most] == update[least]:
            each = (
                f"{names[most]} moves"
                if finite.size == 1
                else "all others move alike"
                if appeared
                else "all move alike"
            )
            size = f"{each} ({about(update[most])} of {'its' if finite.size == 1 else 'their'} size)"
            said.append(size if update[most] > 0 else f"no {'other ' if appeared else ''}group moves")
        else:
            largest, smallest = _of_size(float(update[most])), f"{about(update[least])}"
            said.append(f"{names[most]} moves most ({largest}), {names[least]} least ({smallest})")
    if not examined.kernel:
        making = int(np.argmax(share))
        said.append(f"{names[making]} makes {share[making]:.0%} of the kernel")
    text = "; ".join(said)
    return f"{text[0].upper() if text.startswith(('no ', 'all ')) else text[0]}{text[1:]}." if text else ""
