"""The training regime of a measured run."""

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from .._checks import real_numbers as _floats
from .._core import KERNEL_CHANGE as KERNEL_REGIME_LIMIT, Regime


def half_loss_time(
    ts: Float[ArrayLike, "*#lanes times"], loss: Float[ArrayLike, "*lanes times"]
) -> Float[np.ndarray, "*lanes"]:
    """The time at which the loss has fallen to half its initial value; inf if it has not by the last finite time.

    Interpolated linearly in log t between the two nearest times, and in t between 0 and the first positive time.

    Arguments:
        ts: times, starting at 0; shared by all lanes or given per lane.
        loss: losses at these times, along the last axis.

    Example:
        >>> ts, losses = jnp.array([0.0, 1.0, 2.0]), jnp.array([[1.0, 0.75, 0.25], [1.0, 0.9, 0.8]])
        >>> print(js.observe.half_loss_time(ts, losses).round(3))
        [1.414   inf]

    Raises:
        ValueError: ts does not start at 0 or is not sorted, or the shapes do not match.
        TypeError: an argument is not an array of real numbers.
    """
    ts, loss = _floats(ts, "ts"), _floats(loss, "loss")
    fits = ts.shape in (loss.shape, loss.shape[-1:]) and ts.shape[-1:] > (1,)
    if not fits or np.any(ts[..., 0] != 0) or not np.all(np.diff(ts) >= 0):
        raise ValueError(
            f"need two or more sorted times from 0 on and losses (..., times), got {ts} and shape {loss.shape}"
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # an initial loss of 0 or inf has no half
        ratio = loss / loss[..., :1]
    below = ratio <= 0.5
    below &= np.isfinite(ts)
    after = np.argmax(below, axis=-1)
    found = np.any(below, axis=-1)
    before = np.maximum(after - 1, 0)
    take = lambda values, index: np.take_along_axis(values, index[..., None], axis=-1)[..., 0]
    high, low = take(ratio, before), take(ratio, after)
    # Where a line between the two losses, over log t (over t itself from t = 0), crosses one half, as a share of the
    # interval.
    share = np.where(high > low, (high - 0.5) / np.where(high > low, high - low, 1), 1.0)
    times = np.broadcast_to(ts, loss.shape)
    t0, t1 = take(times, before), take(times, after)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithmic = np.exp(np.log(t0) * (1 - share) + np.log(t1) * share)
    return np.where(found, np.where(t0 > 0, logarithmic, t0 + share * (t1 - t0)), np.inf)


def classify(
    half: Float[ArrayLike, "*lanes"], kernel_change: Float[ArrayLike, "*lanes"], ts: Float[ArrayLike, " times"]
) -> Int[np.ndarray, "*lanes"]:
    """The `js.observe.Regime` of runs, from their half-loss times and relative kernel changes over times ts.

    A run is frozen if its half-loss time is beyond the last finite time, unstable if it is NaN or before ts[1], else in
    the kernel regime if its change is below `js.observe.KERNEL_REGIME_LIMIT` (0.1), and otherwise learns features.

    Example:
        >>> half, change = jnp.array([1.5, 1.5, jnp.inf, 0.01]), jnp.array([0.01, 2.0, 0.0, 2.0])
        >>> found = js.observe.classify(half, change, ts=jnp.array([0.0, 0.1, 10.0]))
        >>> print([js.observe.Regime(number).label for number in found])
        ['kernel', 'feature learning', 'frozen', 'unstable']

    Raises:
        ValueError: ts are not sorted times from 0 on, the shapes differ, or the kernel change is NaN for a run that
            learned within these times.
        TypeError: an argument is not an array of real numbers.
    """
    times, half, change = _floats(ts, "ts"), _floats(half, "half"), _floats(kernel_change, "kernel_change")
    if times.ndim != 1 or times.size < 2 or times[0] != 0 or not np.all(np.diff(times) >= 0):
        raise ValueError(f"ts must be two or more sorted times from 0 on, got {times}")
    if half.shape != change.shape:
        raise ValueError(f"half and kernel_change need one shape, got {half.shape} and {change.shape}")
    last = np.max(times[np.isfinite(times)])
    lost = np.isnan(change) & (half >= times[1]) & (half <= last)
    if np.any(lost):
        raise ValueError(
            f"kernel_change is NaN for {np.sum(lost)} run(s) that learned within the times: without it these cannot "
            "be told to be in the kernel regime or to learn features. A kernel that starts at 0 has no relative "
            "change"
        )
    # Each line overrides those above it.
    regime = np.where(change < KERNEL_REGIME_LIMIT, Regime.KERNEL, Regime.FEATURE_LEARNING)
    regime = np.where(half > last, Regime.FROZEN, regime)
    return np.where((half < times[1]) | np.isnan(half), Regime.UNSTABLE, regime)


def regimes(
    ts: Float[ArrayLike, " times"],
    loss: Float[ArrayLike, "*lanes times"],
    kernel_change: Float[ArrayLike, "*lanes"],
) -> Int[np.ndarray, "*lanes"]:
    """The `js.observe.Regime` of runs, by `classify`. A run that diverged (its last loss is not finite) is unstable.

    Arguments:
        ts: times, ts[0] = 0.
        loss: losses at these times, along the last axis.
        kernel_change: |K - K_0|/|K_0| at the end of each run.

    Example:
        >>> ts, losses = jnp.array([0.0, 1.0, 2.0]), jnp.array([[1.0, 0.6, 0.1], [1.0, 0.9, 0.8]])
        >>> found = js.observe.regimes(ts, losses, kernel_change=jnp.array([0.5, 0.0]))
        >>> print([js.observe.Regime(number).label for number in found])
        ['feature learning', 'frozen']

    Raises:
        ValueError, TypeError: as for `half_loss_time` and `classify`.
    """
    half, loss = half_loss_time(ts, loss), _floats(loss, "loss")
    diverged = ~np.isfinite(loss[..., -1])
    return classify(np.where(diverged, np.nan, half), kernel_change, ts)
