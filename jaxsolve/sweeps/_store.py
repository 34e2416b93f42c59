"""Sweeps as labelled arrays, in memory and on disk."""

import datetime
import platform
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import jax
import numpy as np

from .._dynamics import AbstractDynamics
from .._results import RESULT_NAMES
from ..observe import Observable
from ._axes import Axis
from ._execute import Timed


if TYPE_CHECKING:
    import xarray


LANE_VARIABLES = ("result", "steps", "t_end", "wall", "t_saved")
"""The variables of a sweep's dataset beside the observables."""


def check_store(store: Any) -> Path | None:
    """Returns where to write, or raises FileExistsError if something is there already."""
    if store is None:
        return None
    path = Path(store)
    if path.exists():
        raise FileExistsError(
            f"{path} exists already; this version does not resume sweeps. Choose another store, or remove it"
        )
    return path


def to_dataset(
    axes: tuple[Axis, ...],
    observables: Sequence[Observable],
    dynamics: AbstractDynamics,
    ts: np.ndarray,
    batches: Sequence[Timed],
) -> "xarray.Dataset":
    """Puts the batches of a sweep together: the axes in order, then t, then the observable's dimensions."""
    import xarray

    dims = tuple(axis.dim for axis in axes)
    shape = tuple(len(axis) for axis in axes)
    order = np.argsort(np.concatenate([batch.lanes for batch in batches]))

    def grid(arrays: list[np.ndarray]) -> np.ndarray:
        flat = np.concatenate(arrays)[order]
        return flat.reshape(shape + flat.shape[1:])

    data: dict[str, Any] = {}
    for item in observables:
        values = grid([np.asarray(batch.rows.observed[item.name]) for batch in batches])
        data[item.name] = (*dims, "t", *item.dims), values, {"units": item.unit}
    codes = {"flag_values": list(range(len(RESULT_NAMES))), "flag_meanings": " ".join(RESULT_NAMES)}
    data["result"] = dims, grid([np.asarray(b.rows.result) for b in batches]).astype(np.int8), codes
    data["steps"] = dims, grid([np.asarray(b.rows.steps) for b in batches]), {"units": "accepted steps"}
    data["t_end"] = dims, grid([np.asarray(b.rows.t_end) for b in batches]), {"units": "gradient-flow time"}
    wall = {"units": "s", "long_name": "wall time of the batch, shared by steps; without compilation"}
    data["wall"] = dims, grid([_shared_wall(batch) for batch in batches]), wall
    if any(not np.array_equal(row, ts.astype(row.dtype)) for batch in batches for row in np.asarray(batch.rows.times)):
        saved = grid([np.asarray(batch.rows.times) for batch in batches])
        data["t_saved"] = (*dims, "t"), saved, {"units": "gradient-flow time", "long_name": "time of the step saved"}
    coords: dict[str, Any] = {"t": ("t", ts, {"units": "gradient-flow time"})}
    for axis in axes:
        for member in axis.members:
            coords[member.name] = axis.dim, member.labels
    return xarray.Dataset(data, coords=coords, attrs=_facts(dynamics))


def _shared_wall(batch: Timed) -> np.ndarray:
    steps = np.maximum(np.asarray(batch.rows.steps), 1)
    return batch.wall * steps / steps.sum()


def _facts(dynamics: AbstractDynamics) -> dict[str, Any]:
    from importlib.metadata import version

    names = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "optax", "numpy")
    return {
        "dynamics": dynamics.name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": jax.devices()[0].device_kind,
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in names),
    }


def write(dataset: "xarray.Dataset", path: Path) -> None:
    """Writes a Zarr v3 store that `xarray.open_zarr(path)` reads."""
    # Strings of one length have no Zarr v3 specification; strings of any length do.
    text = {name: coord.astype(object) for name, coord in dataset.coords.items() if coord.dtype.kind == "U"}
    with warnings.catch_warnings():
        # xarray looks for consolidated metadata by default; zarr reminds that version 3 has yet to standardise it.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.assign_coords(text).to_zarr(path, mode="w-", consolidated=True, zarr_format=3)
