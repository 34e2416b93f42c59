"""Losses and trajectories are those of the times that a dynamics looked at."""

import numpy as np
import pytest
import xarray

from jaxsolve import observe
from jaxsolve.observe import Regime
from jaxsolve.report import write
from tests.report.sweeps_of import content, imagined, named, numbers, SHAPE, TS


def _rounded():
    """As of a dynamics that goes by steps: in half of the lanes losses are those at times of another rhythm."""
    swept = imagined()
    late = np.where(swept["sigma"] > 0.5, 1.7, 1.0)
    saved = xarray.ones_like(swept["loss"]) * TS * xarray.DataArray(late, dims="sigma")
    saved[2, 2, :, 3] = saved[2, 2, :, 4]  # two times that are one step
    swept = swept.assign(t_saved=saved)
    swept["loss"] = swept["loss"].copy()
    swept["loss"][2, 2, :, 3] = swept["loss"][2, 2, :, 4]
    return swept


def test_losses_are_those_of_the_times_saved(tmp_path):
    swept = _rounded()
    page = content(write(swept, tmp_path / "report.html"))
    saved = swept["t_saved"].values.reshape(36, -1)
    np.testing.assert_allclose(numbers(page["saved"], 36, -1), saved, rtol=6e-8)
    half = numbers(named(page["measures"], "half-loss time")["values"], *SHAPE)
    for index in np.ndindex(*SHAPE):
        alone = observe.half_loss_time(swept["t_saved"].values[index], swept["loss"].values[index])
        np.testing.assert_allclose(half[index], alone, rtol=6e-8)
    asked = observe.half_loss_time(TS, swept["loss"].values)
    assert np.isfinite(asked[1:]).any()
    np.testing.assert_allclose(half[1, :2], 1.7 * asked[1, :2], rtol=1e-6)
    # A lane that failed has times of its own up to there.
    swept["t_saved"][0, 0, 0, 4:] = np.nan
    swept["loss"][0, 0, 0, 4:] = np.nan
    assert content(write(swept, tmp_path / "failed.html"))["saved"] is not None
    assert content(write(imagined(), tmp_path / "plain.html"))["saved"] is None


@pytest.mark.parametrize(
    ("saved", "loss", "expected"),
    [
        ([0.0, 1.0, 2.0], [1.0, 0.9, 0.3], Regime.KERNEL),  # after the last time asked for, but seen
        ([0.0, 1.0, 2.0], [1.0, 0.9, 0.6], Regime.FROZEN),
        ([0.0, 0.0, 2.0], [1.0, 1.0, 0.3], Regime.UNSTABLE),  # at the only look
        ([0.0, 1.0, 2.0], [1.0, 0.4, 0.3], Regime.UNSTABLE),  # before the first look, after the first time asked for
        ([0.0, 1.0, 2.0], [1.0, 0.6, 0.3], Regime.KERNEL),
    ],
)
def test_a_lane_has_the_window_in_which_it_was_looked_at(saved, loss, expected, tmp_path):
    asked = [0.0, 0.6, 1.2]
    lanes = lambda values: (("seed", "t"), [values])
    variables = {"loss": lanes(loss), "kernel_change": lanes([0.0, 0.01, 0.02]), "t_saved": lanes(saved)}
    swept = xarray.Dataset(variables | {"result": ("seed", np.zeros(1, np.int8))}, {"seed": [0], "t": asked})
    found = named(content(write(swept, tmp_path / "report.html"))["measures"], "regime")
    assert numbers(found["values"], 1)[0] == expected
