"""Power laws with borders: found where they are known, with intervals that hold the truth."""

import numpy as np
import pytest
import xarray

import jaxsolve as js
from tests.cases import assert_fails


X = np.geomspace(1e-3, 1e7, 21)
EXPONENTS, BORDERS = np.array([-1.7, -0.5, -1.0]), np.array([20.0, 1e5])


def _law(x):
    """Three laws that meet, from the left."""
    first = 3.0 * np.minimum(x, BORDERS[0]) ** EXPONENTS[0]
    second = (np.clip(x, *BORDERS) / BORDERS[0]) ** EXPONENTS[1]
    return first * second * (np.maximum(x, BORDERS[1]) / BORDERS[1]) ** EXPONENTS[2]


def _data(values):
    return xarray.DataArray(values, {"x": X}, ("seed", "width", "x")[-np.ndim(values) :])


def test_laws_without_noise_are_found_and_their_borders_between_points():
    data = _data(np.stack([_law(X), 2.0 * _law(X)])[:, None])
    law = js.sweeps.broken_power_law(data, "x", 2)
    np.testing.assert_allclose(law.exponents, EXPONENTS, atol=1e-6)
    np.testing.assert_allclose(law.borders, BORDERS, rtol=1e-5)
    np.testing.assert_allclose(law(X), 2**0.5 * _law(X), rtol=1e-5)
    np.testing.assert_allclose(law.uncertainties, 0.0, atol=1e-6)
    one_too_few = js.sweeps.broken_power_law(data, "x", 1)
    assert_fails(lambda: np.testing.assert_allclose(one_too_few(X), 2**0.5 * _law(X), rtol=0.1))


def test_intervals_hold_exponents_and_borders_as_often_as_they_say():
    held, draws = np.zeros(5), 60
    for seed in range(draws):
        noise = np.random.default_rng(seed).normal(size=(5, 1, X.size))
        law = js.sweeps.broken_power_law(_data(_law(X) * np.exp(0.05 * noise)), "x", 2)
        low, high = law.border_intervals.T
        borders = (low <= BORDERS) & (high >= BORDERS)
        held += np.concatenate([abs(law.exponents - EXPONENTS) <= law.uncertainties, borders])
    assert np.all(abs(held / draws - 0.95) < 3.5 * (0.95 * 0.05 / draws) ** 0.5)


def test_one_member_has_no_interval_and_lines_that_failed_are_left_out():
    one = js.sweeps.broken_power_law(_data(_law(X)[None, None]), "x", 2)
    assert np.all(np.isinf(one.uncertainties))
    values = np.stack([_law(X), np.where(X > 1, np.nan, 1.0)])[:, None]
    np.testing.assert_allclose(js.sweeps.broken_power_law(_data(values), "x", 2).exponents, EXPONENTS, atol=1e-6)
    assert np.all(np.isnan(js.sweeps.broken_power_law(_data(-values), "x", 2).exponents))


@pytest.mark.parametrize(
    ("change", "borders", "said"),
    [
        (lambda data: data, 0, "borders must be an integer >= 1"),
        (lambda data: data.isel(x=slice(0, 8)), 2, "'x' of 9 or more"),
        (lambda data: data.isel(x=slice(None, None, -1)), 2, "rising order"),
        (lambda data: data.assign_coords(x=X - 1.0), 2, "positive numbers"),
        (lambda data: data.rename(seed="start"), 2, "axis 'seed'"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, borders, said):
    with pytest.raises(ValueError, match=said):
        js.sweeps.broken_power_law(change(_data(_law(X)[None, None])), "x", borders)
    with pytest.raises(TypeError, match="borders"):
        js.sweeps.broken_power_law(_data(_law(X)[None, None]), "x", 1.5)  # pyright: ignore[reportArgumentType]
