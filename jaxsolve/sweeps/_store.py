"""Sweeps as labelled arrays, in memory and on disk: all that xarray and Zarr do here."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from ._axes import Axis
from ._blocks import Blocks
from ._collect import empty
from ._lanes import Timed
from ._variables import Rows, rows_of, TIME, Variable


if TYPE_CHECKING:
    import xarray


ROOT = "zarr.json"  # the metadata of a store as a whole: once it is there, readers see a dataset


def to_dataset(
    axes: tuple[Axis, ...],
    variables: tuple[Variable, ...],
    ts: np.ndarray,
    batches: Sequence[Timed],
    attrs: dict[str, Any],
) -> "xarray.Dataset":
    """Puts the batches of a sweep together: the axes in order, then t, then the observable's dimensions."""
    import xarray

    dims = tuple(axis.dim for axis in axes)
    shape = tuple(len(axis) for axis in axes)
    values = {item.name: np.empty((math.prod(shape), *item.shape), item.dtype) for item in variables}
    for batch in batches:
        rows = rows_of(batch)
        for name, array in values.items():
            array[batch.lanes] = rows[name]
    data = {
        item.name: ((*dims, *item.dims), values[item.name].reshape(shape + item.shape), item.attrs)
        for item in variables
    }
    return xarray.Dataset(data, coords=_coords(axes, ts), attrs=attrs)


def _coords(axes: tuple[Axis, ...], ts: np.ndarray) -> dict[str, Any]:
    members = {member.name: (axis.dim, member.labels) for axis in axes for member in axis.members}
    return {"t": ("t", ts, {"units": TIME}), **members}


def write(dataset: "xarray.Dataset", path: Path) -> None:
    """Writes a Zarr v3 store that `xarray.open_zarr(path)` reads."""
    # Strings of one length have no Zarr v3 specification; strings of any length do.
    text = {name: coord.astype(object) for name, coord in dataset.coords.items() if coord.dtype.kind == "U"}
    with warnings.catch_warnings():
        # xarray looks for consolidated metadata by default; zarr reminds that version 3 has yet to standardise it.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.assign_coords(text).to_zarr(path, mode="w-", consolidated=True, zarr_format=3)


def read(path: Path) -> "xarray.Dataset":
    """A store's dataset, in memory."""
    import xarray

    with xarray.open_zarr(path, chunks=None) as data:
        return data.load().drop_encoding()


def skeleton(
    axes: tuple[Axis, ...],
    blocks: Blocks,
    variables: tuple[Variable, ...],
    ts: np.ndarray,
    attrs: dict[str, Any],
) -> dict[str, bytes]:
    """The files of a store in which nothing has run: metadata and coordinates, the root's metadata last."""
    import xarray
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    store, files = _memory({})
    xarray.Dataset(coords=_coords(axes, ts), attrs=attrs).to_zarr(store, mode="w", consolidated=False, zarr_format=3)
    group = zarr.open_group(store, mode="r+")
    for item in variables:
        group.create_array(
            item.name,
            shape=(*blocks.grid, *item.shape),
            chunks=(*blocks.block, *(max(n, 1) for n in item.shape)),
            dtype=item.dtype,
            fill_value=item.missing,
            dimension_names=[*(axis.dim for axis in axes), *item.dims],
            attributes=item.attrs,
            # Readers, too, shall be told when bits have changed.
            compressors=(ZstdCodec(level=1), Crc32cCodec()),
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(store)
    whole = {key: value.to_bytes() for key, value in files.items()}
    return whole | {ROOT: whole.pop(ROOT)}


class ChunkCodec:
    """Turns the rows of a chunk into the content of its files, and back, as the metadata of its store say.

    Arguments:
        files: of a skeleton.
        blocks: of the same store.
        variables: of the same store.
    """

    def __init__(self, files: Mapping[str, bytes], blocks: Blocks, variables: tuple[Variable, ...]):
        import zarr

        self._blocks = blocks
        self._variables = variables
        store, self._files = _memory({key: files[key] for key in files if key.endswith(ROOT)})
        # Also chunks that hold nothing but NaN are written: they have run.
        with zarr.config.set({"array.write_empty_chunks": True}):
            self._arrays: dict[str, Any] = {
                item.name: zarr.open_array(store, path=item.name, mode="r+") for item in variables
            }

    def keys(self, chunk: int) -> dict[str, str]:
        """The names of a chunk's files in the store, by variable; `result` is the last."""
        place = self._blocks.place(chunk)
        return {
            item.name: "/".join([item.name, "c", *map(str, (*place, *(0 for _ in item.shape)))])
            for item in self._variables
            if 0 not in item.shape  # of nothing, Zarr writes no file
        }

    def encode(self, chunk: int, rows: Rows) -> dict[str, bytes]:
        """The content of a chunk's files by name."""
        found = {}
        for name, key in self.keys(chunk).items():
            array = self._arrays[name]
            array[self._blocks.region(chunk)] = rows[name].reshape(*self._blocks.shape(chunk), *rows[name].shape[1:])
            found[key] = self._files.pop(key).to_bytes()
        return found

    def decode(self, chunk: int, files: Mapping[str, bytes]) -> Rows:
        """The rows of a chunk from the content of its files."""
        rows = empty(self._blocks, chunk, self._variables).rows
        for name, key in self.keys(chunk).items():
            self._files[key] = _buffer(files[key])
            values = np.asarray(self._arrays[name][self._blocks.region(chunk)])
            del self._files[key]
            rows[name] = values.reshape(-1, *values.shape[len(self._blocks.grid) :])
        return rows


def _memory(files: Mapping[str, bytes]) -> tuple[Any, dict[str, Any]]:
    """A Zarr store in memory, and the dictionary that it keeps."""
    from zarr.storage import MemoryStore

    kept = {key: _buffer(value) for key, value in files.items()}
    return MemoryStore(kept), kept


def _buffer(data: bytes) -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype().buffer.from_bytes(data)
