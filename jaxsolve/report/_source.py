"""The source of a report: a sweep's dataset, in memory or in a store."""

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._checks import describe
from ..sweeps import load, read_manifest
from ..sweeps._internal import citation


class Source(NamedTuple):
    """A sweep to report on.

    Attributes:
        name: its name in the title of the page.
        dataset: an `xarray.Dataset`.
        manifest: the manifest of the store; empty for a dataset in memory.
    """

    name: str
    dataset: Any
    manifest: dict[str, Any]

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the grid's dimensions."""
        return tuple(map(str, self.dataset["result"].dims))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of lanes along each dimension."""
        return self.dataset["result"].shape

    @property
    def result(self) -> np.ndarray:
        """The result codes of the lanes; -1 for those that have not run."""
        return self.dataset["result"].values.ravel().astype(np.int8)

    @property
    def citation(self) -> str:
        """The citation of the library that made the sweep."""
        return str(self.manifest.get("citation") or self.dataset.attrs.get("citation") or citation())

    @property
    def times(self) -> np.ndarray:
        """The saved times of each lane, shape (lanes, times); with discrete steps, the nearest to those requested."""
        asked = self.lane_array("t").astype(float)
        if "t_saved" not in self.dataset:
            return asked
        saved = self.lane_array("t_saved").astype(float)
        return np.where(np.isfinite(asked), np.maximum.accumulate(np.where(np.isnan(saved), 0.0, saved), axis=1), asked)

    def lane_array(self, name: str) -> np.ndarray:
        """A variable with one row per lane: shape (lanes, ...), or (lanes, times, ...) if it has times."""
        variable = self.dataset[name].broadcast_like(self.dataset["result"])
        after = [dim for dim in variable.dims if dim not in (*self.dims, "t")]
        values = variable.transpose(*self.dims, *(["t"] if "t" in variable.dims else []), *after).values
        return values.reshape(-1, *values.shape[len(self.dims) :])


def read_source(data: Any, name: str) -> Source:
    """The sweep in a dataset or a store.

    Arguments:
        data: a dataset that `sweep` returned, or the path of its store.
        name: the name of the argument in messages.

    Raises:
        TypeError: data is neither.
        FileNotFoundError: there is nothing at the path.
        ValueError: data is not the dataset or the store of a sweep, or none of its lanes has run.
    """
    if isinstance(data, str | os.PathLike):
        source = _read_store(Path(data))
    elif hasattr(data, "data_vars"):
        source = Source("sweep", data, {})
    else:
        raise TypeError(f"{name} must be the result of js.sweep or the path of its store, got {describe(data)}")
    _require_sweep(source, repr(os.fspath(data)) if isinstance(data, str | os.PathLike) else name)
    return source


def _read_store(path: Path) -> Source:
    if not path.exists():
        raise FileNotFoundError(f"there is no store at '{path}'; give the folder that a sweep wrote with store=")
    if not (path / "zarr.json").is_file():
        if (path / "_jaxsolve").is_dir():
            raise ValueError(f"'{path}' is the store of a sweep in which nothing has run yet; report on it later")
        raise ValueError(
            f"'{path}' is not the store of a sweep: it holds no zarr.json. Give the folder that store= named"
        )
    try:
        dataset, manifest = load(path), {}
        with contextlib.suppress(FileNotFoundError):  # a store from `sweeps.save` has no manifest
            manifest = read_manifest(path)
    except ValueError as error:
        raise ValueError(
            f"'{path}' is damaged: {error}. Call its sweep again, which finds damaged chunks and runs them again"
        ) from error
    if not isinstance(manifest, dict):
        raise ValueError(f"'{path}' is damaged: its manifest must be a table, and is a {type(manifest).__name__}")
    # A store lists its variables sorted by name; the manifest, in the order in which the sweep observes them.
    listed = manifest.get("variables", [])
    names = [item.get("name") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    first = [name for name in names if isinstance(name, str) and name in dataset.data_vars]
    data = {name: dataset[name] for name in dict.fromkeys([*first, *dataset.data_vars])}
    return Source(path.absolute().name, dataset.drop_vars(data).assign(data), manifest)


def _require_sweep(source: Source, what: str) -> None:
    dataset = source.dataset
    missing = [name for name in ("t", "result") if name not in dataset.variables]
    if missing or not dataset["result"].dims or dataset["t"].dims != ("t",):
        raise ValueError(
            f"{what} is not a sweep's dataset: it needs times `t` and codes `result` along the axes of a grid, but "
            f"holds {sorted(map(str, dataset.variables))}"
        )
    if not np.any(source.result >= 0):
        raise ValueError(f"{what} holds {source.result.size} lanes, none of which has run yet; report on it later")
