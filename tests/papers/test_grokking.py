"""What pairs of runs decide of which some do not come to an end."""

import numpy as np
import xarray

from tests.inside import sooner_upstream


def test_pairs_of_which_neither_groks_decide_nothing():
    """By seed: both grok, upstream alone, the other alone, neither."""
    t, never = np.array([0.0, 10.0, 40.0, 100.0]), [0.0, 0.0, 0.0, 0.5]
    at = lambda step: np.where(t >= step, 1.0, 0.0)
    upstream = [at(10.0), at(10.0), never, never]
    start = [at(40.0), never, at(40.0), never]
    accuracy = np.stack([start, upstream], axis=1)
    runs = xarray.Dataset(
        {"test_accuracy": (("seed", "alpha", "t"), accuracy)},
        {"seed": range(4), "alpha": [1.0, 10.0], "t": t},
        {"grokked": 0.95},
    )
    np.testing.assert_allclose(sooner_upstream(runs), [np.log(10 / 40), np.log(10 / 100), np.log(100 / 40), np.nan])
