"""Reads a store, which may come from an untrusted source, into memory."""

import contextlib
import math
import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from ..._extras import needs
from ..._numerics import free_on_host, readable
from ..grid._blocks import GridBlocks
from ..running._variables import Rows
from ._chunks import Chunks, RECORDS, Unsound
from ._coding import CHECKSUM, decoded, packed_size
from ._files import odd_entry, OURS, read_regular
from ._layout import has_manifest, Layout, read_layout, require_sizes, ROOT


if TYPE_CHECKING:
    import xarray

CODECS = {"bytes", "vlen-utf8", "zstd", "crc32c"}  # those used by a sweep or by `save`
TEXT = 2**24  # most bytes of a chunk of labels
MEND = "the sweep that made the store, called again with the same arguments, runs those lanes again"
SETTLED = 0.3  # seconds within which a process finishes writing a chunk


def load(path: str | os.PathLike) -> "xarray.Dataset":
    """The dataset of a sweep's store, in memory. Lanes that have not run are NaN, and -1 in `result` and `steps`.

    A sweep may still be filling the store: each chunk is read either completely or not at all.

    Raises:
        FileNotFoundError: there is no store.
        ValueError: a file is damaged, by its checksum, or is not one that a sweep writes, such as a link.
        OSError: the system cannot read a file.
        MemoryError: the dataset is larger than the free memory.

    Warns:
        UserWarning: files of lanes that have run are missing or do not match; those lanes are read as missing.

    Example:
        >>> data = js.sweeps.load("run.zarr")  # doctest: +SKIP
    """
    path = Path(path)
    if not path.exists():  # checked first: the libraries take seconds to import
        raise FileNotFoundError(f"there is no store at {path}")
    with needs("sweeps", "a store"):
        import xarray
        import zarr

    odd = odd_entry(path)
    if odd is not None:
        raise ValueError(f"{path} holds {odd}, which no sweep makes and which may lead anywhere; remove it")
    layout = None
    if has_manifest(path):
        with contextlib.suppress(ValueError):  # arrays can be read even if the manifest is damaged
            layout = read_layout(path)
            require_sizes(layout)
    ours = {} if layout is None else {item.name: item for item in layout.variables}
    try:
        for file in path.rglob(ROOT):
            read_regular(file)
        arrays = dict(zarr.open_group(path, mode="r").arrays())
        if layout is not None:
            _require_layout(arrays, layout)
        _require_room(path, arrays)
        for name in arrays.keys() - ours.keys():  # these are read by Zarr itself
            _require_chunks(path / name, arrays[name])
        with xarray.open_zarr(path, chunks=None) as opened:
            data = opened.drop_vars(ours).load().drop_encoding()
            if layout is None:
                return data
            found = {str(name): opened[name].variable for name in opened.data_vars if name in ours}
        rows = _rows(path, layout)
        return data.assign({name: (values.dims, rows[name], values.attrs) for name, values in found.items()})
    except OSError as error:
        if error.errno is None or isinstance(error, FileNotFoundError):
            raise ValueError(f"{path} is damaged: {error}. To mend it: {MEND}") from error
        if str(path) in str(error):  # the message already names the file
            raise
        raise OSError(error.errno, f"reading {path} failed ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # Zarr and its codecs raise these for bad bytes
        raise ValueError(f"{path} is damaged: {error}. To mend it: {MEND}") from error


def _require_layout(arrays: dict[str, Any], layout: Layout) -> None:
    """Raises ValueError if Zarr's metadata have other arrays than the manifest."""
    said = {item.name: (*layout.blocks.grid, *item.shape) for item in layout.variables}
    if said != {name: arrays[name].shape for name in said if name in arrays}:
        raise ValueError(f"its manifest has variables of the shapes {said}, and its metadata others")


def _require_room(path: Path, arrays: dict[str, Any]) -> None:
    """Raises MemoryError for arrays that do not fit into memory."""
    needed = sum(math.prod(array.shape) * _item_bytes(array) for array in arrays.values())
    free = free_on_host()
    if free is not None and needed > free:
        raise MemoryError(
            f"{path} holds {readable(needed)} of numbers, but only {readable(free)} of memory are free: read parts of "
            "it with xarray.open_zarr"
        )


def _require_chunks(folder: Path, array: Any) -> None:
    """Raises ValueError for other codecs, or chunks that decompress to more bytes than the array's metadata say."""
    codecs = [codec["name"] for codec in array.metadata.to_dict()["codecs"]]
    if not CODECS.issuperset(codecs) or codecs.count("zstd") > 1:
        raise ValueError(
            f"{folder.name} is written with the codecs {codecs}, and a sweep's with {sorted(CODECS)}: open it with "
            "xarray.open_zarr, and give the dataset"
        )
    text = "vlen-utf8" in codecs
    most = TEXT if text else math.prod(array.chunks) * _item_bytes(array)
    for file in sorted((folder / "c").rglob("*")) if (folder / "c").exists() else []:
        if file.is_dir():
            continue
        data = read_regular(file, packed_size(most))
        if "zstd" in codecs:
            decoded(data[:-CHECKSUM] if "crc32c" in codecs else data, most)


def _item_bytes(array: Any) -> int:
    return np.dtype(array.dtype).itemsize


def _rows(path: Path, layout: Layout) -> Rows:
    """The values of all variables, in the shape of the grid followed by their own."""
    chunks = Chunks(path, layout)
    grid = layout.blocks.grid
    values = {item.name: np.full((*grid, *item.shape), item.missing, item.dtype) for item in layout.variables}
    wrong = _fill(chunks, values, _begun(path, layout.blocks))
    if wrong:  # a process may be writing them
        time.sleep(SETTLED)
        wrong = _fill(chunks, values, wrong)
    damaged = next((error for error in wrong.values() if error.damaged), None)
    if damaged is not None:
        raise damaged
    lost = [file for error in wrong.values() for file in error.missing]
    torn = [error for error in wrong.values() if not error.missing]
    said = [f"{len(lost)} files of lanes that have run are missing, the first is {lost[0]}"] if lost else []
    said += [f"{len(torn)} chunks were copied, or their writer killed, halfway: {torn[0]}"] if torn else []
    if said:
        warnings.warn(
            f"{path}: {'; '.join(said)}; these lanes are read as missing values. To mend it: {MEND}", stacklevel=3
        )
    return values


def _begun(path: Path, blocks: GridBlocks) -> list[int]:
    """The numbers of the chunks that have a record or a `result`: a huge grid may have too many chunks to try all."""
    result = path / "result" / "c"
    names = [file.name.split(".") for file in (path / OURS / RECORDS).glob("*")]
    names += [list(file.relative_to(result).parts) for file in result.rglob("*")]
    places = {tuple(map(int, name)) for name in names if all(map(str.isdecimal, name))}
    counts = blocks.counts
    inside = [p for p in places if len(p) == len(counts) and all(i < n for i, n in zip(p, counts, strict=True))]
    return sorted(int(np.ravel_multi_index(place, counts)) for place in inside)


def _fill(chunks: Chunks, values: Rows, numbers: Iterable[int]) -> dict[int, Unsound]:
    """Puts chunks in their places in `values`; returns the errors of those that are unsound."""
    wrong = dict[int, Unsound]()
    for number in numbers:
        try:
            rows = chunks.read(number)
        except Unsound as error:
            wrong[number] = error
            continue
        region = chunks.blocks.region(number)
        for name, found in (rows or {}).items():
            array = values[name]
            array[region] = found.reshape(*(part.stop - part.start for part in region), *found.shape[1:])
    return wrong
