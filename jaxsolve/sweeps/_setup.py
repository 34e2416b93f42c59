"""What the programs of a group are made of."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from .._dynamics import is_stochastic, of_lane
from .._problem import Problem
from ..observe import Observable
from ._axes import Group
from ._cells import Builder, Cells, Leaves
from ._devices import Devices


INDEX = "flat index"  # in the cells of lanes that have a random key each; no argument of a function has such a name


class Setup(NamedTuple):
    """What the lanes of a group do, and where.

    Attributes:
        builder: makes their problems.
        dynamics: how they move, where the problem chooses the one that it has chosen.
        observables, ts: as for the sweep.
        devices: to run on.
        size: lanes of a batch, on all devices.
        cell: any one of the group, from `cells_of`.
    """

    builder: Builder
    dynamics: Any
    observables: tuple[Observable, ...]
    ts: Float[Array, " times"]
    devices: Devices
    size: int
    cell: dict[str, Any]

    @property
    def rows(self) -> int:
        """Lanes of a batch on one device."""
        return self.size // len(self.devices)

    def shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Those of so many cells."""
        return {name: jax.ShapeDtypeStruct((rows, *v.shape), v.dtype) for name, v in self.cell.items()}

    def leaves(self, cell: dict[str, Array]) -> Leaves:
        """The arrays that a lane is made of."""
        leaves = self.builder.leaves({name: value for name, value in cell.items() if name != INDEX})
        return Leaves([*leaves.own, cell[INDEX]], leaves.shared) if INDEX in cell else leaves

    def lane(self, leaves: Leaves) -> tuple[Problem, Any]:
        """The problem and the dynamics of a lane of these arrays."""
        if INDEX not in self.cell:
            return self.builder.problem(leaves), self.dynamics
        *own, index = leaves.own
        return self.builder.problem(Leaves(own, leaves.shared)), of_lane(self.dynamics, index)


def cells_of(group: Group, dynamics: Any) -> Cells:
    """What makes the lanes of a group: arguments by name, one row per lane; flat indices too if there is a key."""
    cells = {name: np.asarray(values) for name, values in group.cells.items()}
    return cells | {INDEX: group.lanes.astype(np.uint32)} if is_stochastic(dynamics) else cells
