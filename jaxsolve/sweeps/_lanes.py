"""What comes out of the lanes of a sweep."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array


class Lanes(NamedTuple):
    """What came out of some lanes, one row per lane."""

    observed: dict[str, Array]
    times: Array
    t_end: Array
    result: Array  # codes
    steps: Array


class Timed(NamedTuple):
    """Lanes on the host.

    Attributes:
        lanes: their indices in the grid.
        rows: one per lane.
        wall: seconds that went into them: of what ran at once, their share of the useful steps.
        useful: steps of lanes that had not finished, accepted or rejected; 0 for closed forms.
        executed: all steps, with those of finished lanes that waited for others.
    """

    lanes: np.ndarray
    rows: Lanes
    wall: float
    useful: int = 0
    executed: int = 0
