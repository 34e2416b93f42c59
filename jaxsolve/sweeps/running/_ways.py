"""The integrators that the lanes of a group choose by their values, measured before their programs are made."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import memory_for
from ..grid._axes import Group, rows_at
from ._builder import Builder, cells_of, Devices


ROWS = 64  # lanes per call


class Ways:
    """Splits a group so that the lanes of one program share an integrator: the one that `js.solve` would choose.

    Arguments:
        builder: the builder of the group.
        ts: the times of the sweep.
        devices: devices of this process; lanes are measured on the first.
    """

    def __init__(self, builder: Builder, group: Group, ts: Float[Array, " times"], devices: Devices):
        self._builder, self._group, self._device = builder, group, devices.all[0]
        # Cells come with their places, since they may be empty, as when static widths are the only axis.
        way = lambda lane: builder.way(builder.leaves(lane[1]), ts)
        self._measure = jax.jit(lambda *lanes: jax.lax.map(way, lanes) if devices.on_cpu else jax.vmap(way)(lanes))

    def parts(self, wanted: np.ndarray) -> Iterator[tuple[Group, np.ndarray]]:
        """The group with each way that wanted lanes (flags for cells of the grid) go, and the flags of those lanes."""
        mine = np.zeros_like(wanted)
        mine[self._group.lanes] = wanted[self._group.lanes]
        if len(self._builder.possible) == 1:
            yield self._group, mine
            return
        places = np.flatnonzero(mine[self._group.lanes])
        ways = self._of(places)
        for way in np.unique(ways):
            part = np.zeros_like(wanted)
            part[self._group.lanes[places[ways == way]]] = True
            yield self._group._replace(way=int(way)), part

    def _of(self, places: np.ndarray) -> np.ndarray:
        cells, found = cells_of(self._group, self._builder.dynamics), []
        advice = "take fewer samples, or name an integrator: GradientFlow(diffrax.Tsit5())"
        with memory_for("choosing an integrator", advice), jax.default_device(self._device):
            for start in range(0, len(places), ROWS):
                some = places[start : start + ROWS]
                # Padded with the last lane, since calls of one size share a compilation.
                padded = np.pad(some, (0, min(ROWS, len(self._group.lanes)) - len(some)), "edge")
                lanes = jax.tree.map(jnp.asarray, (padded, rows_at(cells, padded)))
                found.append(np.asarray(self._measure(*lanes))[: len(some)])
        # There may be no lanes, and NumPy cannot concatenate an empty list.
        return np.concatenate([np.zeros(0, int), *found])
