"""The blocks that the grid of a sweep is cut into."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from ._axes import Zip


MAX_CHUNK_BYTES = 2**28  # a chunk is held in memory and compressed as a whole


@dataclasses.dataclass(frozen=True)
class GridBlocks:
    """The grid of a sweep, cut into blocks of lanes. A block is one chunk of every variable.

    The last blocks along an axis may be smaller.
    """

    grid: tuple[int, ...]  # lanes along each axis
    block: tuple[int, ...]  # lanes of a block along each axis

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of blocks along each axis."""
        return tuple(math.ceil(n / b) for n, b in zip(self.grid, self.block, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def of(self, lanes: np.ndarray) -> np.ndarray:
        """The number of the block that holds each lane."""
        places = np.stack(np.unravel_index(lanes, self.grid)) // np.reshape(self.block, (-1, 1))
        return np.asarray(np.ravel_multi_index(tuple(places), self.counts))

    def place(self, number: int) -> tuple[int, ...]:
        """The index of a block along each axis."""
        return tuple(int(i) for i in np.unravel_index(number, self.counts))

    def region(self, number: int) -> tuple[slice, ...]:
        """The part of the grid that a block covers."""
        return tuple(
            slice(i * b, min((i + 1) * b, n)) for i, b, n in zip(self.place(number), self.block, self.grid, strict=True)
        )

    def lanes(self, number: int) -> np.ndarray:
        """The flat indices of a block's lanes, in the order of its rows, which is ascending."""
        ranges = [np.arange(part.start, part.stop) for part in self.region(number)]
        return np.ravel_multi_index(np.meshgrid(*ranges, indexing="ij"), self.grid).ravel()

    def parts(self, lanes: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Cuts lanes into parts of whole blocks, each as large as possible with at most `size` lanes."""
        numbers = self.of(lanes)
        # A stable sort keeps the order of the lanes in a block.
        order, begin, last = np.argsort(numbers, kind="stable"), 0, 0
        for end in (*(np.flatnonzero(np.diff(numbers[order])) + 1), len(lanes)):
            # A block of more than `size` lanes is a part of its own.
            if end - begin > size and last > begin:
                yield lanes[order[begin:last]]
                begin = last
            last = end
        if last > begin:
            yield lanes[order[begin:last]]


def cut(axes: tuple[Zip, ...], batch_size: int, lane_bytes: int) -> GridBlocks:
    """Cuts a grid into blocks of at most `batch_size` lanes with equal static arguments.

    From the last axis backward, traced axes stay whole while they fit (also into `MAX_CHUNK_BYTES`, by the bytes of a
    lane's largest variable); the next one is cut into equal parts. So lanes of a block run one after another.
    """
    room = max(1, min(batch_size, MAX_CHUNK_BYTES // max(lane_bytes, 1)))
    block = []
    for axis in reversed(axes):
        parts = math.ceil(len(axis) / room) if axis.traced else len(axis)
        block.append(math.ceil(len(axis) / parts))
        if axis.traced:
            room = max(room // len(axis), 1) if parts == 1 else 1
    return GridBlocks(tuple(len(axis) for axis in axes), tuple(reversed(block)))
