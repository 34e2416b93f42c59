"""What the figures of Geiger et al. measure, on curves of which the answer is known."""

import jax.random as jr
import numpy as np
import pytest
import xarray

from jaxsolve.data import Images
from jaxsolve.papers import Scale
from tests.cases import assert_fails
from tests.inside import collapsing_power, images, over_seeds, power, when


WIDTHS, ALPHAS, SEEDS = np.array([10, 40, 160]), np.geomspace(1e-3, 1e3, 13), np.arange(4)


def _curves(p, noise=0.0):
    """Logarithms of 1/(1 + (h^p alpha)^2), shape (width, alpha, seed)."""
    coordinates = {"width": WIDTHS, "alpha": ALPHAS, "seed": SEEDS}
    x = WIDTHS[:, None, None] ** p * ALPHAS[:, None]
    draws = noise * np.random.default_rng(0).normal(size=(3, 13, 4))
    return xarray.DataArray(-np.log1p(x**2) + draws, coordinates, tuple(coordinates))


def test_the_power_at_which_curves_collapse():
    for p in (0.0, 0.5, 1.0):
        found = collapsing_power(_curves(p).mean("seed"))
        assert abs(found - p) < 0.03  # measured 0.02: linear interpolation between half decades
    value, uncertainty = over_seeds(lambda one: collapsing_power(one.mean("seed")), _curves(0.5, 0.1))
    assert abs(value - 0.5) < uncertainty + 0.03
    assert 0 < uncertainty < 0.1


def test_powers_of_an_axis():
    axes = _curves(0.5)
    laws = (axes["alpha"] ** -1.7 * axes["width"] ** 0.3).expand_dims(seed=SEEDS)
    check = lambda found, exponent: np.testing.assert_allclose(found, (exponent, 0.0), atol=1e-12)
    check(power(laws, "alpha"), -1.7)
    check(power(laws, "width"), 0.3)
    assert_fails(lambda: check(power(laws * laws["alpha"] ** 0.1, "alpha"), -1.7))
    assert np.isnan(power(laws.where(laws["alpha"] > 1e-2), "alpha").value)  # a run that failed has no exponent


def test_values_at_a_time_of_each_lane():
    ts = np.geomspace(1e-3, 1e3, 7)
    times = xarray.DataArray([[0.02, 0.5], [3.0, 70.0]], dims=("width", "seed"))
    values = xarray.DataArray(5.0 * ts**2, dims="t").expand_dims(seed=2, width=2)
    found = when(ts, values, times)
    assert found.dims == ("width", "seed")
    np.testing.assert_allclose(found, 5.0 * times**2, rtol=1e-12)


def test_digits_stand_in_for_images_although_there_are_fewer(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSOLVE_DATA", str(tmp_path))
    data = images(Images.MNIST, Scale.SMALL, task="parity", n_train=32, n_test=2000, key=jr.key(0))
    assert data.x_test is not None
    assert (data.x.shape, data.x_test.shape) == ((32, 64), (1000, 64))
    with pytest.raises(FileNotFoundError):
        images(Images.MNIST, Scale.MEDIUM, task="parity", n_train=32, n_test=2000, key=jr.key(0))
