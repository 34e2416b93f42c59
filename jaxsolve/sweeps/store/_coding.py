"""The bytes of a chunk's files: Zarr encodes them in memory, and they are decoded into arrays of known size."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._extras import needs
from ..grid._blocks import GridBlocks
from ..running._variables import Rows, Variable


CHECKSUM = 4  # bytes of Zarr's checksum (CRC32C) at the end of a file


def checked() -> tuple[Any, ...]:
    """The compressors of a store's arrays, with a checksum that lets every reader detect changed bits."""
    with needs("sweeps", "a store"):
        from zarr.codecs import Crc32cCodec, ZstdCodec

    return ZstdCodec(level=1), Crc32cCodec()


def create_array(group: Any, item: Variable, blocks: GridBlocks, **facts: Any) -> Any:
    """Makes the array of a variable in a Zarr group, filled with the value for lanes that have not run."""
    return group.create_array(
        item.name,
        shape=(*blocks.grid, *item.shape),
        chunks=(*blocks.block, *(max(n, 1) for n in item.shape)),
        dtype=item.dtype,
        fill_value=item.missing,
        compressors=checked(),
        **facts,
    )


def decoded(data: bytes, size: int) -> np.ndarray:
    """Decompressed bytes (Zstandard), padded with zeros to `size`. Raises ValueError if there are more, or for damage.

    Uses numcodecs, on which Zarr is built, since Zarr allocates as much memory as the compressed data asks for.
    """
    from numcodecs.zstd import Zstd

    room = np.zeros(size, np.uint8)
    try:
        Zstd().decode(data, room)
    except RuntimeError as error:  # the system also raises it when it has no more threads
        raise ValueError(str(error)) from error
    return room


def packed_size(size: int) -> int:
    """The largest compressed size of `size` bytes: Zstandard makes incompressible data slightly larger."""
    return size + size // 128 + 1024


class Coding:
    """Turns rows of lanes into the bytes of files, and back."""

    def __init__(self, blocks: GridBlocks, variables: Sequence[Variable]):
        with needs("sweeps", "a store"):
            import zarr
            from zarr.storage import MemoryStore

        self._blocks = blocks
        self._files: dict[str, Any] = {}
        # Chunks that hold only NaN have a file, too: their lanes have run.
        with zarr.config.set({"array.write_empty_chunks": True}):
            group = zarr.open_group(MemoryStore(self._files), mode="w", zarr_format=3)
            self._arrays = {item.name: create_array(group, item, blocks) for item in variables}

    def encode(self, number: int, rows: Rows) -> Iterator[tuple[str, bytes]]:
        """Yields the names of variables and the bytes of their files for one chunk."""
        region = self._blocks.region(number)
        shape = [part.stop - part.start for part in region]
        for name, values in rows.items():
            before = set(self._files)
            self._arrays[name][region] = values.reshape(*shape, *values.shape[1:])
            (key,) = self._files.keys() - before
            yield name, self._files.pop(key).to_bytes()

    def decode(self, number: int, item: Variable, data: bytes) -> np.ndarray:
        """The rows of a chunk from the bytes of its file. Raises ValueError if they are damaged."""
        import google_crc32c

        content, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
        if google_crc32c.value(content) != int.from_bytes(checksum, "little"):
            raise ValueError("Stored and computed checksum do not match")  # Zarr's wording
        region = self._blocks.region(number)
        kind = np.dtype(item.dtype).newbyteorder("<")
        whole = (*self._blocks.block, *item.shape)
        found = decoded(content, math.prod(whole) * kind.itemsize).view(kind).reshape(whole)
        here = found[tuple(slice(part.stop - part.start) for part in region)]
        return here.reshape(-1, *item.shape).astype(item.dtype)

    def most(self, item: Variable) -> int:
        """The largest size of a file of a variable."""
        return packed_size(math.prod((*self._blocks.block, *item.shape)) * np.dtype(item.dtype).itemsize)
