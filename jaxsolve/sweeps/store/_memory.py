"""The store that keeps the lanes of a sweep in memory, and the facts that all stores record about a run."""

import os
import platform
import socket
import subprocess
import uuid
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Float

from ..grid._axes import Zip
from ..planning._differences import differences
from ..planning._identity import LIBRARIES
from ..planning._plan import Plan
from ..running._runner import Batch, Origin
from ..running._variables import rows_of, TIME, variables_of
from ._files import now


if TYPE_CHECKING:
    import xarray

FORMAT = 4  # of the store; increased when other versions could no longer continue it
DEVICE = ("device", "devices", "backend")  # the facts of a run about its devices
BETWEEN = "; "  # separates the devices, or the dynamics, of one dataset


class MemoryStore:
    """Keeps the lanes of a sweep in memory."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.missing = np.ones(plan.lanes, bool)  # whether each cell of the grid has yet to run
        self._labels: dict[str, str] = {}
        self._batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        """Takes some lanes, in any order."""
        self._batches.append(batch)
        self.missing[batch.lanes] = False
        if batch.origin is not None:
            self._labels = credited(self._labels, batch.origin)

    def dataset(self) -> "xarray.Dataset":
        """The dataset: the axes in order, then t, then the observable's dimensions."""
        import xarray

        plan, batches = self.plan, self._batches
        variables = variables_of(plan.observables, plan.dynamics, plan.ts, batches[0].rows)
        dims, shape = tuple(axis.dim for axis in plan.axes), tuple(len(axis) for axis in plan.axes)
        values = {item.name: np.empty((plan.lanes, *item.shape), item.dtype) for item in variables}
        for batch in batches:
            rows = rows_of(batch)
            for name, array in values.items():
                array[batch.lanes] = rows[name]
        data = {
            item.name: ((*dims, *item.dims), values[item.name].reshape(shape + item.shape), item.attrs)
            for item in variables
        }
        attrs = summary(self._labels, environment())
        return trimmed(xarray.Dataset(data, coords=coordinates(plan.axes, plan.ts), attrs=attrs))


def trimmed(data: "xarray.Dataset") -> "xarray.Dataset":
    """A dataset without `t_saved` if no saved time is rounded, and without `trust` if no lane has a certificate."""
    saved, trust = data.get("t_saved"), data.get("trust")
    if saved is not None and np.all(saved == data["t"].astype(saved.dtype)):
        data = data.drop_vars("t_saved")
    return data if trust is None or np.any(np.isfinite(trust)) else data.drop_vars("trust")


def coordinates(axes: tuple[Zip, ...], ts: Float[Array, " times"]) -> dict[str, Any]:
    """The coordinates of a sweep's dataset: times, and the values of every axis."""
    named = {item.name: (axis.dim, item.labels) for axis in axes for item in axis.arguments}
    return {"t": ("t", np.asarray(ts), {"units": TIME}), **named}


def save(dataset: "xarray.Dataset", path: str | os.PathLike) -> None:
    """Writes a dataset, such as one that `sweep` returned, as a Zarr v3 store.

    Example:
        >>> import pathlib, tempfile
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = lambda target: js.Problem(net, jnp.eye(2), target * jnp.ones((2, 1)))
        >>> data = js.sweep(problem, {"target": [0.5, 1.0]}, js.FrozenKernel(), [0.0, 1.0], progress=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     js.sweeps.save(data, pathlib.Path(folder) / "run.zarr")
        ...     js.sweeps.load(pathlib.Path(folder) / "run.zarr").identical(data)
        True
    """
    # Zarr v3 specifies variable-length strings, but not fixed-length ones.
    text = {name: coord.astype(object) for name, coord in dataset.coords.items() if coord.dtype.kind == "U"}
    with warnings.catch_warnings():
        # xarray looks for consolidated metadata by default, but Zarr warns that version 3 does not specify them yet.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.assign_coords(text).to_zarr(Path(path), mode="w-", consolidated=True, zarr_format=3)


def citation() -> str:
    """The text to cite the library with."""
    facts = metadata.metadata("jaxsolve")
    return f"{facts['Author']}: jaxsolve. {facts['Summary']} Version {facts['Version']}."


def environment() -> dict[str, Any]:
    """The device, platform, versions and flags of XLA that this process runs with."""
    devices = jax.local_devices()
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "backend": jax.default_backend(),
        "platform": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def summary(labels: dict[str, str], run: dict[str, Any]) -> dict[str, Any]:
    """A dataset's attributes, from labels (what ran on which devices) and facts of `environment` or `run_facts`."""
    facts = {
        **labels,
        "created": now(),
        "platform": run["platform"],
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
    return facts | ({"git": run["git"]} if run.get("git") else {})


def run_facts(*, elsewhere: bool) -> dict[str, Any]:
    """One entry of a manifest's list of runs. If lanes run elsewhere, their devices are added later."""
    who = {"id": new_id(), "host": socket.gethostname(), "pid": os.getpid()}
    what = {name: fact for name, fact in environment().items() if not (elsewhere and name in DEVICE)}
    return {"started": now(), **who, **what, "git": commit(Path.cwd())}


def new_id() -> str:
    """A random name for a store, or for one run that fills it."""
    return uuid.uuid4().hex


def commit(folder: Path) -> str | None:
    """The commit that is checked out in a folder; None without git or a repository.

    Files may have changed since. Checking that could run programs that the repository configures; `rev-parse` does not.
    """
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The differences from an earlier run that may change the last digits, one line each."""
    keys = [key for key in (*DEVICE, "versions", "xla_flags") if key in before and key in now]
    old, new = ({key: run[key] for key in keys} for run in (before, now))
    return [line.replace("in the store", "before") for line in differences(old, new)]


def credited(labels: Mapping[str, str], origin: Origin) -> dict[str, str]:
    """The attributes of a dataset that say what ran on which devices, with this origin added."""
    new = {"dynamics": origin.dynamics, "device": origin.device}
    return {name: joined(labels.get(name), text) for name, text in new.items()}


def joined(texts: str | None, text: str) -> str:
    """A list of texts, with one added unless it is there already."""
    return BETWEEN.join(dict.fromkeys([*([] if texts is None else texts.split(BETWEEN)), text]))
