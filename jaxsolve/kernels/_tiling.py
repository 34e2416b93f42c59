"""How the samples of a kernel are cut into tiles: products stay in the cache, and symmetry saves some of them."""

import math
from typing import NamedTuple


class Tiling(NamedTuple):
    """How the samples of a kernel are cut into tiles of one size (the last one overlaps the one before).

    Attributes:
        tile: samples per tile.
        held: whether the signals of all samples are held, or those of two tiles made anew for every pair of tiles.
    """

    tile: int
    held: bool


# Rows of a tile, measured: larger ones leave the cache, smaller ones leave the matrix products short.
MOST_ROWS, FEWEST_ROWS = 600, 100
# The same if tiles are cut out of what is held already, which copies them.
FEWEST_CUT_ROWS = 160
# Tiles along each axis of a symmetric kernel, if they are not too small: of nine, six are computed.
SYMMETRIC_TILES = 3
# Such tiles hold a multiple of so many samples, for the vector units.
EVEN = 4
# So many pairs, or a symmetric kernel of such tiles, are written out: that is faster, compiles longer and takes memory.
FEW_PAIRS, SMALL_ROWS = 3, 250


def tilings(n: int, m: int | None, rows: int) -> list[Tiling]:
    """All tilings of n (and m) samples with `rows` rows of the kernel per sample, the fastest first."""
    longest = n if m is None else max(n, m)
    sizes = [min(longest if m is not None else symmetric_tile(n, rows), _largest(longest, rows))]
    while sizes[-1] > 1:
        sizes.append(math.ceil(sizes[-1] / 2))
    return [Tiling(size, held) for size in sizes for held in (True, False) if held or size < longest]


def cut_tile(n: int, rows: int) -> int:
    """Samples of the tiles of a symmetric kernel that are cut out of n samples held already."""
    return min(symmetric_tile(n, rows, FEWEST_CUT_ROWS), _largest(n, rows))


def symmetric_tile(n: int, rows: int, fewest: int = FEWEST_ROWS) -> int:
    """Samples of each tile of a symmetric kernel, small enough that there are pairs to leave out."""
    return min(n, EVEN * math.ceil(n / EVEN / min(SYMMETRIC_TILES, max(1, n * rows // fewest))))


def written_out(n: int, m: int | None, tile: int, rows: int) -> bool:
    """Whether the pairs of tiles are written out; otherwise a loop goes through them."""
    if m is None:
        return n <= SYMMETRIC_TILES * tile and tile * rows <= SMALL_ROWS
    return pairs(n, m, tile) <= FEW_PAIRS


def pairs(n: int, m: int | None, tile: int) -> int:
    """Pairs of tiles; of a symmetric kernel those of which none mirrors another."""
    count = math.ceil(n / tile)
    return math.comb(count + 1, 2) if m is None else count * math.ceil(m / tile)


def _largest(n: int, rows: int) -> int:
    return math.ceil(n / math.ceil(n * rows / MOST_ROWS))
