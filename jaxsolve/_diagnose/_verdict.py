"""From numbers to words: the regime, what every number says, and one paragraph."""

from typing import NamedTuple

import numpy as np

from ..observe import Regime
from . import _limits
from ._diagnosis import Finding
from ._examine import Examined
from ._limits import Limit


class Verdict(NamedTuple):
    """The regime.

    Attributes:
        regime: of the network.
        expected: the change of the kernel that a full training brings, as far as this one shows.
        near: whether that is within a factor 3 of its limit.
        diverged: whether training did.
    """

    regime: Regime
    expected: float
    near: bool
    diverged: bool = False


def decide(seen: Examined, diverged: bool, linearised: float) -> Verdict:
    """The regime by the kernel's change, carried on to the end of training in proportion to the progress.

    In the kernel regime parameters, kernel and outputs move in proportion, so that a training which has gone a share q
    of the way has moved the kernel by a share q of what it will. A kernel that has passed the limit has passed it. From
    little progress it is carried on by where linearised training ends, as kernels that move do so faster and faster.

    Arguments:
        seen: of the checkpoints.
        diverged: whether training did.
        linearised: the kernel's change there; NaN if that is not known.
    """
    history = seen.history
    change, progress = float(history["kernel_change"][-1]), float(history["progress"][-1])
    limit, ahead = _limits.KERNEL_CHANGE.value, progress < _limits.ENOUGH_PROGRESS and np.isfinite(linearised)
    learnt = ahead or progress >= _limits.LEAST_PROGRESS
    expected = max(change, linearised) if ahead else change / min(progress, 1.0) if learnt else change
    if not seen.learnable:
        return Verdict(Regime.FROZEN, change, False, diverged)
    near = bool(limit / _limits.NEAR < expected < limit * _limits.NEAR)
    if diverged or (progress < _limits.LEAST_PROGRESS and has_grown(history)):
        return Verdict(Regime.UNSTABLE, expected, False, diverged)
    if not np.isfinite(expected):
        return Verdict(Regime.FROZEN if not learnt else Regime.FEATURE_LEARNING, expected, True)
    if expected >= limit:
        return Verdict(Regime.FEATURE_LEARNING, expected, near)
    return Verdict(Regime.KERNEL if learnt else Regime.FROZEN, expected, near)


def _gone(progress: float) -> str:
    if progress == 1:
        return "all of the loss's gradient that the parameters see"
    return f"{max(progress, 0):.0%} of the loss's gradient"


def has_grown(history: dict[str, np.ndarray]) -> bool:
    """Whether the loss is far above that of the start."""
    first, last = history["loss"][[0, -1]]
    return bool(last > _limits.GROWN * abs(first) > 0)


def side(value: float, limit: Limit, below: str) -> Finding:
    """A number and the side of its limit that it is on."""
    if np.isnan(value):
        return Finding(value, limit, "not known")
    return Finding(value, limit, limit.beyond if value >= limit.value else below)


def regime_findings(seen: Examined, verdict: Verdict) -> dict[str, Finding]:
    """What the checkpoints say of the regime."""
    history = seen.history
    last = {name: float(values[-1]) for name, values in history.items()}
    first = {name: float(values[0]) for name, values in history.items()}
    found = {
        "progress": Finding(last["progress"], None, f"{_gone(last['progress'])} is gone"),
        "kernel_change": side(last["kernel_change"], _limits.KERNEL_CHANGE, "the kernel has hardly moved so far"),
        "expected_kernel_change": side(verdict.expected, _limits.KERNEL_CHANGE, "the kernel will hardly move"),
        "nonlinearity": side(last["nonlinearity"], _limits.NONLINEARITY, "the linearised network does the same"),
        "kernel_alignment": Finding(last["kernel_alignment"], None, _aligned(first, last)),
        "residual_position": Finding(
            last["residual_position"], None, "1 where all that is left lies on the kernel's fastest direction"
        ),
        "effective_rank": Finding(
            last["effective_rank"], None, f"directions of the kernel, from {first['effective_rank']:.3g} at the start"
        ),
    }
    return found


def _aligned(first: dict[str, float], last: dict[str, float]) -> str:
    if np.isnan(last["kernel_alignment"]):
        return "not known: the targets, or the kernel, are the same for all samples"
    return f"with the target, from {first['kernel_alignment']:.2g} at the start"


def paragraph(seen: Examined, verdict: Verdict, findings: dict[str, Finding], extra: list[str]) -> str:
    """The diagnosis in plain words."""
    value = lambda name: findings[name].value
    change, progress = value("kernel_change"), value("progress")
    opening = {
        Regime.KERNEL: "This network trains in the kernel regime: it fits with features that it hardly changes.",
        Regime.FEATURE_LEARNING: "This network learns features.",
        Regime.FROZEN: "This network has not learnt anything yet, so that its regime cannot be told: train for longer, "
        "or with a larger rate.",
        Regime.UNSTABLE: "The training diverged: take a smaller rate. What follows is from before that.",
    }[verdict.regime]
    if verdict.regime is Regime.UNSTABLE and not verdict.diverged:
        opening = "The loss grows: take a smaller rate."
    if not seen.learnable:
        opening = "There is nothing to learn: the loss has no gradient at the outputs of the start, but for rounding."
        opening += " The training diverged all the same." if verdict.diverged else ""
    parts = [opening]
    moved = f"While {_gone(progress)} went away, its kernel moved by {change:.2g} of its size"
    carried = f", which makes {verdict.expected:.2g} by the end of training" if verdict.expected > 1.2 * change else ""
    where = "below" if verdict.expected < _limits.KERNEL_CHANGE.value else "above"
    parts.append(f"{moved}{carried}; {where} {_limits.KERNEL_CHANGE.value:g}, the limit of the kernel regime.")
    if verdict.near:
        parts.append("That is near the limit, where seeds and details decide.")
    if verdict.regime in (Regime.KERNEL, Regime.FEATURE_LEARNING) and progress < _limits.ENOUGH_PROGRESS:
        parts.append("So little of the training says little of its end: train for longer to be sure.")
    aligned = findings["kernel_alignment"]
    said = f"{aligned.value:.2g} ({aligned.words.split(', ', 1)[-1]})" if np.isfinite(aligned.value) else aligned.words
    parts.append(
        f"Its linearisation misses {value('nonlinearity'):.0%} of the change of its outputs. The kernel's alignment "
        f"with the target is {said}."
    )
    parts += extra
    parts.append(_layers(seen))
    return " ".join(part for part in parts if part)


def _layers(seen: Examined) -> str:
    """Which groups move and which make the kernel."""
    update, share, names = seen.by_group["update"], seen.by_group["kernel_share"], seen.groups.names
    if len(names) < 2:
        return ""
    moving = int(np.argmax(np.where(np.isfinite(update), update, -1)))
    still = int(np.argmin(np.where(np.isfinite(update), update, np.inf)))
    making = int(np.argmax(share))
    if not update[moving] > 0:
        return f"no group moves; {names[making]} makes {share[making]:.0%} of the kernel."
    return (
        f"{names[moving]} moves most ({update[moving]:.2g} of its size), {names[still]} least ({update[still]:.2g}); "
        f"{names[making]} makes {share[making]:.0%} of the kernel."
    )
