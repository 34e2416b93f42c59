"""What decides the form of a sweep's dataset."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from .._dynamics import AbstractDynamics
from ..observe import Observable
from ._axes import Axis
from ._blocks import is_traced
from ._lanes import Timed


@dataclasses.dataclass(frozen=True)
class Frame:
    """A sweep before anything has run.

    Arguments:
        axes: of the grid.
        dynamics, observables: as given to the sweep.
        ts: the times asked for.
        batch_size: as given to the sweep.
    """

    axes: tuple[Axis, ...]
    dynamics: AbstractDynamics
    observables: Sequence[Observable]
    ts: np.ndarray
    batch_size: int | None

    @property
    def lanes(self) -> int:
        """Cells of the grid."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def lanes_per_group(self) -> int:
        """Cells of equal static arguments."""
        return math.prod(len(axis) for axis in self.axes if is_traced(axis))

    def saved_as_asked(self, batch: Timed) -> bool:
        """Whether the times saved are those asked for, but for the dtype."""
        times = np.asarray(batch.rows.times)
        return np.array_equal(times, np.broadcast_to(self.ts.astype(times.dtype), times.shape))
