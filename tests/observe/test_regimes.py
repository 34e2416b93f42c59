from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from jaxsolve import observe
from jaxsolve.observe import classify, half_loss_time, Regime, regimes


TS = np.array([0.0, *np.geomspace(1e-2, 1e2, 41)])
SETTINGS = settings(max_examples=50, deadline=None, derandomize=True)


def _decay(rate):
    return np.exp(-rate * TS)


def test_half_loss_time_of_a_decay():
    """The curve between two times is taken for a line over log t: that meets an exponential up to their curvature."""
    for rate in (0.05, 1.0, 20.0):
        np.testing.assert_allclose(half_loss_time(TS, _decay(rate)), np.log(2) / rate, rtol=5e-3)


def test_half_loss_time_is_exact_for_what_it_interpolates():
    between = 1 - 0.5 * np.log(TS[1:] / TS[1]) / np.log(TS[20] / TS[1])
    np.testing.assert_allclose(half_loss_time(TS, np.array([1.0, *between])), TS[20], rtol=1e-12)
    linear = np.array([4.0, 1.0, *np.zeros(40)])  # below the first positive time: linear from t = 0
    np.testing.assert_allclose(half_loss_time(TS, linear), TS[1] * 2 / 3, rtol=1e-12)


@SETTINGS
@given(rate=st.floats(0.02, 50.0), scale=st.floats(1e-30, 1e30), unit=st.floats(1e-6, 1e6))
def test_half_loss_time_scales(rate, scale, unit):
    reference = half_loss_time(TS, _decay(rate))
    np.testing.assert_allclose(half_loss_time(TS, scale * _decay(rate)), reference, rtol=1e-9)
    np.testing.assert_allclose(half_loss_time(unit * TS, _decay(rate)), unit * reference, rtol=1e-9)


@SETTINGS
@given(curve=st.lists(st.floats(0.0, 2.0), min_size=len(TS) - 1, max_size=len(TS) - 1))
def test_half_loss_time_is_where_the_curve_first_crosses(curve):
    losses = np.array([1.0, *curve])
    half = half_loss_time(TS, losses)
    first = np.flatnonzero(losses <= 0.5)
    if first.size == 0:
        assert half == np.inf
    else:
        assert TS[first[0] - 1] <= half * (1 + 1e-12)
        assert half <= TS[first[0]] * (1 + 1e-12)


EDGES = {
    "flat": (np.ones(42), np.inf),
    "rising": (1 + TS, np.inf),
    "zero from the start": (np.zeros(42), np.inf),
    "infinite from the start": (np.full(42, np.inf), np.inf),
    "nan from the start": (np.full(42, np.nan), np.inf),
    "nan after the first time": (np.array([1.0, 0.9, *[np.nan] * 40]), np.inf),
    "a step": (np.array([1.0] * 10 + [0.0] * 32), np.sqrt(TS[9] * TS[10])),
    "exactly half": (np.array([1.0] * 10 + [0.5] * 32), TS[10]),
    "nan, then below": (np.array([1.0, np.nan, *[0.1] * 40]), TS[2]),
}


@pytest.mark.parametrize("name", EDGES)
def test_half_loss_time_at_the_edges(name):
    curve, expected = EDGES[name]
    np.testing.assert_allclose(half_loss_time(TS, curve), expected, rtol=1e-12)


def test_lanes_are_independent():
    curves = np.stack([curve for curve, _ in EDGES.values()])[None, :, :]
    np.testing.assert_array_equal(half_loss_time(TS, curves)[0], [half_loss_time(TS, curve) for curve in curves[0]])
    assert half_loss_time(TS, curves).shape == (1, len(EDGES))
    each = TS * np.arange(1, 1 + len(EDGES))[:, None]  # times of every lane's own
    alone = [half_loss_time(ts, curve) for ts, curve in zip(each, curves[0], strict=True)]
    np.testing.assert_array_equal(half_loss_time(each, curves[0]), alone)
    assert not np.array_equal(alone, half_loss_time(TS, curves[0]))


LANES = [
    (_decay(1.0), 0.05, Regime.KERNEL),
    (_decay(1.0), 0.0, Regime.KERNEL),
    (_decay(1.0), 0.099, Regime.KERNEL),
    (_decay(1.0), 0.1, Regime.FEATURE_LEARNING),
    (_decay(1.0), 3.0, Regime.FEATURE_LEARNING),
    (_decay(1e-3), 0.05, Regime.FROZEN),
    (_decay(1e-3), 3.0, Regime.FROZEN),
    (np.ones(42), np.nan, Regime.FROZEN),
    (np.zeros(42), 0.0, Regime.FROZEN),
    (_decay(1e3), 0.05, Regime.UNSTABLE),
    (_decay(1e3), 3.0, Regime.UNSTABLE),
    (np.full(42, np.nan), np.nan, Regime.UNSTABLE),
    (np.array([1.0] * 20 + [np.nan] * 22), np.nan, Regime.UNSTABLE),
    (np.array([1.0] * 20 + [0.1] * 12 + [np.nan] * 10), 0.05, Regime.UNSTABLE),
    (np.array([1.0] * 41 + [np.inf]), 0.05, Regime.UNSTABLE),
]


def test_regimes():
    losses, changes, expected = (np.stack(column) for column in zip(*LANES, strict=True))
    found = regimes(TS, losses, changes)
    assert [Regime(code).label for code in found] == [Regime(code).label for code in expected]
    np.testing.assert_array_equal(regimes(TS, losses.reshape(3, 5, 42), changes.reshape(3, 5)).ravel(), expected)
    assert regimes(TS, losses[0], changes[0]) == Regime.KERNEL


def test_the_border_of_the_kernel_regime_is_where_it_is_said():
    assert observe.KERNEL_REGIME_LIMIT == 0.1
    change = np.array([0.099, 0.101])
    np.testing.assert_array_equal(classify(np.ones(2), change, TS), [Regime.KERNEL, Regime.FEATURE_LEARNING])


@SETTINGS
@given(half=st.floats(allow_nan=True) | st.just(np.inf), change=st.floats(0, 10) | st.just(np.nan))
def test_every_run_has_a_regime(half, change):
    if np.isnan(change) and TS[1] <= half <= TS[-1]:  # it learnt, and how is not known
        with pytest.raises(ValueError, match=r"kernel_change is NaN for 1 run\(s\) that learned"):
            classify(np.asarray(half), np.asarray(change), TS)
        return
    regime = Regime(int(classify(np.asarray(half), np.asarray(change), TS)))
    if np.isnan(half) or half < TS[1]:
        assert regime is Regime.UNSTABLE
    elif half > TS[-1]:
        assert regime is Regime.FROZEN
    else:
        assert regime is (Regime.KERNEL if change < 0.1 else Regime.FEATURE_LEARNING)


def test_labels():
    assert [regime.label for regime in Regime] == ["kernel", "feature learning", "frozen", "unstable"]


@pytest.mark.parametrize(
    ("ts", "loss"),
    [
        (TS[1:], np.ones(41)),
        (TS, np.ones(41)),
        (TS, np.ones((42, 2))),
        (np.stack([TS, TS]), np.ones((3, 42))),
        (np.zeros(0), np.zeros(0)),
        (np.zeros(1), np.ones(1)),
        (np.array([0.0, 2.0, 1.0]), np.ones(3)),
    ],
)
@pytest.mark.usefixtures("as_users")
def test_bad_curves(ts, loss):
    with pytest.raises(ValueError, match=r"need two or more sorted times from 0 on and losses \(\.\.\., times\), got"):
        half_loss_time(ts, loss)


@pytest.mark.usefixtures("as_users")
def test_what_cannot_be_classified():
    with pytest.raises(ValueError, match="ts must be two or more sorted times from 0 on"):
        classify(np.ones(1), np.ones(1), np.array([0.0, 2.0, 1.0]))
    with pytest.raises(ValueError, match="half and kernel_change need one shape"):
        classify(np.ones(2), np.ones(3), TS)
    text: Any = "text"
    with pytest.raises(TypeError, match="kernel_change must be an array of real numbers, got str 'text'"):
        classify(np.ones(1), text, TS)


def test_a_time_without_end_is_no_time_of_learning():
    ts, losses = np.array([0.0, 1.0, 10.0, np.inf]), np.array([[1.0, 0.9, 0.1, 0.0], [1.0, 0.9, 0.8, 0.0], [1.0] * 4])
    half = half_loss_time(ts, losses)
    assert np.isfinite(half[0])
    np.testing.assert_array_equal(half[1:], np.inf)
    assert list(regimes(ts, losses, np.zeros(3))) == [Regime.KERNEL, Regime.FROZEN, Regime.FROZEN]
