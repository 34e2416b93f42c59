"""Tilings of a kernel's samples: products stay in the cache, and symmetry saves some of them."""

import math
from typing import NamedTuple


class Tiling(NamedTuple):
    """A cut of the samples of a kernel into tiles of one size.

    If the samples do not divide evenly, one tile is smaller if tiles are written out, and otherwise overlaps another.

    Attributes:
        tile: samples per tile.
        held: whether the records of all samples are held; otherwise two tiles are recomputed for every pair.
    """

    tile: int
    held: bool


# The most rows of a tile, as measured: larger tiles do not fit into the cache.
MOST_ROWS = 600
# Rows from which a symmetric kernel gains by two tiles along each axis, or by three: then six of nine are computed.
TWO_TILES, THREE_TILES = 200, 400
# Tiles of such kernels hold a multiple of this many samples, to fill the vector units.
EVEN = 4
# Up to this many pairs, or rows per tile of a symmetric kernel, are written out: faster, but slow to compile and large.
FEW_PAIRS, SMALL_ROWS = 3, 480


def tilings(n: int, m: int | None, rows: int) -> list[Tiling]:
    """All tilings of n (and m) samples with `rows` rows of the kernel per sample, the fastest first."""
    longest = n if m is None else max(n, m)
    sizes = [first_tile(n, rows) if m is None else _largest(longest, rows)]
    while sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / 2))
    # A tile that holds all samples holds all records, so there is only one way.
    return [Tiling(size, held) for size in sizes for held in (True, False) if held or size < longest]


def first_tile(n: int, rows: int) -> int:
    """The samples per tile in the fastest tiling of a symmetric kernel.

    If tiles are written out, the first has about half the samples of the others: products of larger tiles take less
    time per entry, which outweighs the additional entries of the mirrored half.
    """
    # In half tiles: two for each tile but the first, which has one.
    larger = _part(n, 2 * _along(n * rows) - 1)
    return min(larger if larger * rows <= SMALL_ROWS else even_tile(n, rows), _largest(n, rows))


def cut_tile(n: int, rows: int) -> int:
    """The same if tiles are cut out of held records: copying two takes the time that they would save."""
    return n if n * rows < THREE_TILES else first_tile(n, rows)


def even_tile(n: int, rows: int) -> int:
    """The samples per tile in equal tiles of a symmetric kernel, small enough that there are pairs to leave out."""
    return _part(n, 2 * _along(n * rows))


def written_out(n: int, m: int | None, tile: int, rows: int) -> bool:
    """True if the pairs of tiles are written out; otherwise a loop goes through them."""
    if m is None:
        return n <= 3 * tile and tile * rows <= SMALL_ROWS
    return pairs(n, m, tile) <= FEW_PAIRS


def pairs(n: int, m: int | None, tile: int) -> int:
    """The number of pairs of tiles; for a symmetric kernel, without mirror images."""
    count = math.ceil(n / tile)
    return math.comb(count + 1, 2) if m is None else count * math.ceil(m / tile)


def _along(rows: int) -> int:
    """The number of tiles along each axis."""
    return 1 + (rows >= TWO_TILES) + (rows >= THREE_TILES)


def _part(n: int, halves: int) -> int:
    """The samples per tile, with `halves` half tiles along each axis."""
    return min(n, EVEN * math.ceil(2 * n / EVEN / halves))


def _largest(n: int, rows: int) -> int:
    # The fewest tiles that `MOST_ROWS` allows, with the samples spread evenly over them.
    most = max(1, MOST_ROWS // rows)
    return math.ceil(n / math.ceil(n / most))
