"""Detects silent alignment in a run: the kernel turns to the targets while it is small, before the loss falls."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .._checks import describe
from .._core import Trajectory


FALL = 0.1  # the share by which the loss must fall to decrease "appreciably"
TURNED, BEYOND = 0.9, 1.1  # the rise of the alignment is complete between these shares of the whole
LEAST_RISE = 0.05  # of the alignment; with less, the kernel has not turned
LEAST_GROWTH = 2.0  # of the kernel after its turn; with less, it was not small
ENDED = 0.9  # once the loss has fallen by this share, the last kernel counts as final
WATCHED = ("loss", "kernel_alignment", "kernel_norm")


def rise_time(ts: Any, curve: Any, level: Any) -> Float[np.ndarray, "*lanes"]:
    """The time when a curve, along its last axis, first reaches a level: linear between times; inf if it never does."""
    ts, curve = np.asarray(ts, float), np.asarray(curve, float)
    level = np.broadcast_to(level, curve.shape[:-1])[..., None]
    above = curve >= level
    after = np.argmax(above, axis=-1)[..., None]
    before = np.maximum(after - 1, 0)
    low, high = (np.take_along_axis(curve, index, -1) for index in (before, after))
    rise = np.where(high > low, high - low, 1)
    share = np.clip((level - low) / rise, 0, 1)
    with np.errstate(invalid="ignore"):  # 0 * inf, if the next time is inf, is discarded
        found = ts[before] + np.where(share > 0, share * (ts[after] - ts[before]), 0)
    return np.where(above.any(-1), found[..., 0], np.inf)


def turned_before(ts: Any, loss: Any, alignment: Any, fall: float = FALL) -> Float[np.ndarray, "*lanes"]:
    """The share of the alignment's total rise that is complete when the loss has fallen by the share `fall`.

    1 if all of the rise comes first; above 1 if the kernel turns away from the target again.
    """
    loss, alignment = np.asarray(loss, float), np.asarray(alignment, float)
    at = rise_time(ts, 1 - loss / loss[..., :1], fall)
    start, end = alignment[..., 0], alignment[..., -1]
    with np.errstate(divide="ignore", invalid="ignore"):  # the rise is 0 if the kernel has not turned
        return np.where(np.isfinite(at), (_value_at(at, ts, alignment) - start) / (end - start), np.nan)


def _value_at(at: np.ndarray, ts: Any, curve: np.ndarray) -> np.ndarray:
    """Each curve at its own time, interpolated linearly."""
    flat = [np.interp(t, ts, row) for t, row in zip(at.ravel(), curve.reshape(-1, len(ts)), strict=True)]
    return np.reshape(flat, at.shape)


class Silence(NamedTuple):
    """When the kernel of a run turned and grew and the loss fell, and whether that is silent alignment.

    Numbers for one run; arrays over the lanes for a sweep's table. Print it for a one-sentence summary.

    Attributes:
        silent: True, False, or None if the run does not tell.
        why: the reason, in words.
        turned: the time at which the alignment of kernel and targets completes 90 % of its rise.
        grown: the time at which the kernel's norm first reaches a tenth of its last value.
        learnt: the time at which the loss has fallen by 10 % of its first value; inf if it never does.
        share: the share of the alignment's rise that is complete at `learnt`: from 0.9 to 1.1 if silent. Above 1 the
            kernel has since turned back.
        rise: how far the alignment rises from the first time to the last.
        growth: the kernel's norm at the last time over its norm at `turned`.
    """

    silent: Any
    why: Any
    turned: Any
    grown: Any
    learnt: Any
    share: Any
    rise: Any
    growth: Any

    def __str__(self) -> str:
        if np.ndim(self.silent) == 0:
            names = {True: "Silently aligned", False: "Not silently aligned", None: "Not known to be silently aligned"}
            return f"{names[self.silent]}: {self.why}."
        said = list(np.ravel(self.silent))
        return (
            f"Of {len(said)} runs {said.count(True)} are silently aligned, {said.count(False)} are not, and for "
            f"{said.count(None)} it is not known."
        )


def silent_alignment(run: Any) -> Silence:
    """Returns when a run's kernel turned and grew, when its loss fell, and whether that is silent alignment.

    In silent alignment "the feature learning happens before the loss appreciably decreases": the kernel, small at the
    start, first turns to the targets and then only grows in scale (Atanasov et al., section 2). The criteria here: when
    the loss has fallen by 10 %, at least 90 % of the rise of y^T K y/(|K||y|^2) is complete, with an overshoot of at
    most 10 %; the rise is at least 0.05; and after its turn the kernel at least doubles. So a kernel that does not move
    is not silently aligned. The thresholds are this library's; the paper gives none.

    `silent` is None if the loss has not fallen by 10 %, if alignment may be silent but the loss has not fallen by 90 %,
    so the kernel may still turn, or if the times are too far apart to tell. If the targets cannot be fit, subtract the
    final loss first: `table.assign(loss=table.loss - table.loss.isel(t=-1))`.

    Arguments:
        run: the result of `js.solve`, or a sweep's table, with `loss()`, `kernel_alignment()` and `kernel_norm()`
            observed at a few dozen times from the start to the end of training.

    Returns:
        A `Silence`: `silent`, the times `turned`, `grown` and `learnt`, and the numbers that decide.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=8, width_size=16, scaling=js.nets.Scaling.standard(sigma=1e-3), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, 8**0.5 * jnp.eye(8), 8**0.5 * jnp.eye(8)[:, :1])
        >>> watched = [js.observe.loss(), js.observe.kernel_alignment(), js.observe.kernel_norm()]
        >>> run = js.solve(problem, js.GradientFlow(), jnp.linspace(0.0, 12.0, 49), observe=watched)
        >>> print(str(js.observe.silent_alignment(run))[:17])
        Silently aligned:

    Raises:
        TypeError: run is neither of these.
        ValueError: one of the three was not observed, there are fewer than two times, or the times do not ascend.

    Reference:
        @inproceedings{atanasov2022neural, title={Neural networks as kernel learners: the silent alignment effect},
          author={Alexander Atanasov and Blake Bordelon and Cengiz Pehlevan}, booktitle={ICLR}, year={2022}}
    """
    ts, loss, alignment, norm = _read(run)
    with np.errstate(divide="ignore", invalid="ignore"):  # if a loss, a rise or a kernel is 0, nothing is known
        fallen, size = 1 - loss / loss[..., :1], norm / norm[..., -1:]
        done = (alignment - alignment[..., :1]) / (alignment[..., -1:] - alignment[..., :1])
        turned, grown, learnt = (rise_time(ts, *pair) for pair in ((done, TURNED), (size, 0.1), (fallen, FALL)))
        found = {
            "turned": turned,
            "grown": grown,
            "learnt": learnt,
            "share": turned_before(ts, loss, alignment),
            "rise": alignment[..., -1] - alignment[..., 0],
            "growth": 1 / _value_at(turned, ts, size),
        }
    rows = zip(*(curve.reshape(-1, len(ts)) for curve in (fallen, alignment, done)), strict=True)
    lanes = zip(rows, *(np.ravel(found[name]) for name in ("learnt", "share", "rise", "growth")), strict=True)
    said = [_decide(*row, *numbers) for row, *numbers in lanes]
    if loss.ndim == 1:
        return Silence(*said[0], **{name: float(value) for name, value in found.items()})
    silent, why = (np.array(column, object).reshape(learnt.shape) for column in zip(*said, strict=True))
    return Silence(silent, why, **found)


def _decide(
    fallen: np.ndarray,
    alignment: np.ndarray,
    done: np.ndarray,
    learnt: float,
    share: float,
    rise: float,
    growth: float,
) -> tuple[bool | None, str]:
    """The verdict on one run, and why."""
    if not (np.all(np.isfinite(fallen)) and np.isfinite(rise)):
        return None, "some of its numbers are NaN or infinite"
    if not np.isfinite(learnt):
        return None, f"the loss has not fallen by {FALL:.0%}"
    ended = fallen[-1] >= ENDED
    open_end = f"the loss has fallen by no more than {fallen[-1]:.0%}, so that the kernel may still turn"
    if rise < LEAST_RISE:
        flat = (
            f"the kernel hardly turns to the targets: its alignment goes from {alignment[0]:.2g} to {alignment[-1]:.2g}"
        )
        return (False, flat) if ended else (None, open_end)
    after = int(np.argmax(fallen >= FALL))
    low, high = sorted(done[[max(after - 1, 0), after]])
    text = (
        f"{share:.0%} of the kernel's turn to the targets (alignment {alignment[0]:.2g} to {alignment[-1]:.2g}) is "
        f"done when the loss has fallen by {FALL:.0%}, at t = {learnt:.3g}"
    )
    if high < TURNED or (low > BEYOND and ended):
        return False, text
    if not ended:
        return None, open_end
    if low < TURNED or high > BEYOND:
        return (
            None,
            f"{text}, but the times are too far apart: between two of them it goes from {low:.0%} to {high:.0%}",
        )
    if growth < LEAST_GROWTH:
        return False, f"{text}, but then it grows by a factor of {growth:.2g} only"
    return True, f"{text}, and then it grows by a factor of {growth:{',.0f' if growth >= 10 else '.2g'}}"


def _read(run: Any) -> tuple[np.ndarray, ...]:
    """The times, and the curves of `WATCHED` with time as the last axis."""
    table = not isinstance(run, Trajectory)
    if table and not {"data_vars", "sizes"} <= set(dir(run)):
        raise TypeError(f"silent_alignment takes the result of js.solve or js.sweep, got {describe(run)}")
    missing = [f"{name}()" for name in WATCHED if name not in (run.data_vars if table else run.observed)]
    if missing:
        raise ValueError(
            f"silent_alignment needs {', '.join(missing)} to be observed along the run: give it in observe"
        )
    ts = np.asarray(run["t"] if table else run.ts, float)
    if ts.ndim != 1 or len(ts) < 2 or not np.all(np.diff(ts) > 0):
        raise ValueError(f"silent_alignment needs two or more times that ascend, the same for all runs; got {ts}")
    curves = (run[name].transpose(..., "t").values if table else run[name] for name in WATCHED)
    return ts, *(np.asarray(curve, float) for curve in curves)
