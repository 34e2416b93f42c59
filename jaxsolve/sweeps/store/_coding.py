"""The bytes of a chunk's files: Zarr makes them in memory, and they are read into arrays of a size that is known."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..._extras import needs
from ..grid._blocks import GridBlocks
from ..running._variables import Rows, Variable


CHECKSUM = 4  # bytes of Zarr's checksum (CRC32C), which end a file


def checked() -> tuple[Any, ...]:
    """The compressors of a store's arrays. Readers as well are told when bits have changed."""
    with needs("sweeps", "a store"):
        from zarr.codecs import Crc32cCodec, ZstdCodec

    return ZstdCodec(level=1), Crc32cCodec()


def create_array(group: Any, item: Variable, blocks: GridBlocks, **facts: Any) -> Any:
    """Makes the array of a variable, in which nothing has run, in a Zarr group."""
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
    """The bytes that Zstandard packed; they may be fewer than `size`. Raises ValueError for more, and for damaged ones.

    By numcodecs, on which Zarr stands, since Zarr takes as much memory as the packed bytes ask for.
    """
    from numcodecs.zstd import Zstd

    room = np.zeros(size, np.uint8)
    try:
        Zstd().decode(data, room)
    except RuntimeError as error:  # which the system raises, too, where it has no more threads
        raise ValueError(str(error)) from error
    return room


def packed_size(size: int) -> int:
    """The most bytes that so many may take on the disk: Zstandard makes what it cannot pack a little larger."""
    return size + size // 128 + 1024


class Coding:
    """Turns rows of lanes into the bytes of files, and back."""

    def __init__(self, blocks: GridBlocks, variables: Sequence[Variable]):
        with needs("sweeps", "a store"):
            import zarr
            from zarr.storage import MemoryStore

        self._blocks = blocks
        self._files: dict[str, Any] = {}
        # Also chunks that hold nothing but NaN have a file: they have run.
        with zarr.config.set({"array.write_empty_chunks": True}):
            group = zarr.open_group(MemoryStore(self._files), mode="w", zarr_format=3)
            self._arrays = {item.name: create_array(group, item, blocks) for item in variables}

    def encode(self, number: int, rows: Rows) -> Iterator[tuple[str, bytes]]:
        """The names of variables, and the bytes of their files for one chunk."""
        region = self._blocks.region(number)
        shape = [part.stop - part.start for part in region]
        for name, values in rows.items():
            before = set(self._files)
            self._arrays[name][region] = values.reshape(*shape, *values.shape[1:])
            (key,) = self._files.keys() - before
            yield name, self._files.pop(key).to_bytes()

    def decode(self, number: int, item: Variable, data: bytes) -> np.ndarray:
        """The rows of a chunk from the bytes of its file. Raises ValueError if they are none."""
        import google_crc32c

        content, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
        if google_crc32c.value(content) != int.from_bytes(checksum, "little"):
            raise ValueError("Stored and computed checksum do not match")  # in Zarr's words
        region = self._blocks.region(number)
        kind = np.dtype(item.dtype).newbyteorder("<")
        whole = (*self._blocks.block, *item.shape)
        found = decoded(content, math.prod(whole) * kind.itemsize).view(kind).reshape(whole)
        here = found[tuple(slice(part.stop - part.start) for part in region)]
        return here.reshape(-1, *item.shape).astype(item.dtype)

    def most(self, item: Variable) -> int:
        """The largest size of a file of a variable."""
        return packed_size(math.prod((*self._blocks.block, *item.shape)) * np.dtype(item.dtype).itemsize)
