"""The memory that an empirical kernel takes, known from shapes before anything runs."""

import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..._numerics import free_memory, Inputs, readable, samples_in
from ._capture import Outline
from ._outputs import Outputs
from ._tiling import pairs, Tiling, tilings, written_out
from ._use_gram import work_size


# Bytes that activations and work may take: half of a small machine's memory, whatever the machine.
WORK = 4_000_000_000


class MemoryEstimate(NamedTuple):
    """The memory that a kernel takes, in bytes.

    Attributes:
        kernel: the result.
        activations: activations and cotangents of all samples that are held at once.
        work: the Grams of one pair of tiles.
        tile: samples per tile: 1 to n.
    """

    kernel: int
    activations: int
    work: int
    tile: int

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.kernel + self.activations + self.work

    def __repr__(self) -> str:
        return (
            f"MemoryEstimate({readable(self.total)}: kernel {readable(self.kernel)}, activations "
            f"{readable(self.activations)}, work {readable(self.work)}; tiles of {self.tile} samples)"
        )


def choose_tiling(
    outline: Outline,
    x1: Inputs,
    x2: Inputs | None,
    outputs: Outputs,
    *,
    by_layer: bool,
    budget: int | None,
) -> Tiling:
    """The fastest tiling within the budget; without one, the fastest that takes at most `WORK` besides the kernel.

    The tile size changes rounding. So the free memory never selects it; it can only rule out a kernel.

    Raises:
        MemoryError: even the smallest tiles exceed the budget; without one, the tiling exceeds half of the free memory.
    """
    n, m, out_size = samples_in(x1), None if x2 is None else samples_in(x2), outline.capture.out_size
    found_tilings = tilings(n, m, outputs.rows(out_size))
    of = lambda tiling, outputs: estimate(outline, n, m, outputs, tiling, by_layer=by_layer)
    smallest = lambda tilings=found_tilings: min(tilings, key=lambda tiling: of(tiling, outputs).total)
    allowed = budget
    if allowed is None:
        beside = lambda tiling: of(tiling, outputs)._replace(kernel=0).total
        found_tilings = [next((tiling for tiling in found_tilings if beside(tiling) <= WORK), None) or smallest()]
        allowed = _half_of_free()
    for tiling in found_tilings:
        if of(tiling, outputs).total <= allowed:
            return tiling
    least = of(smallest(), outputs)
    traced = of(found_tilings[-1], Outputs.TRACE)
    fits = (
        f"trace=True would need {readable(traced.total)}"
        if outputs is not Outputs.TRACE and traced.total <= allowed
        else "kernels.NTKOperator(net, x) gives products with the kernel without holding it"
    )
    if least.total <= allowed:  # the budget is not given, and one of as much leads to smaller tiles
        fits = f"memory={int(allowed)} chooses tiles that fit"
    shape = outputs.shape(n, n if m is None else m, out_size)
    raise MemoryError(
        f"the kernel of shape {shape} needs {readable(least.total)} ({least}), and {readable(allowed)} may be used; "
        f"{fits}, or allow more with memory="
    )


def _half_of_free() -> int:
    free = free_memory()
    return sys.maxsize if free is None else free // 2


def estimate(
    outline: Outline, n: int, m: int | None, outputs: Outputs, tiling: Tiling, *, by_layer: bool
) -> MemoryEstimate:
    """The memory of the kernel between n samples and themselves (m is None) or m others."""
    found = outline.capture
    item, tile, leaves = jnp.dtype(found.dtype).itemsize, tiling.tile, len(found.found.order)
    per_sample = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(outline.records))
    per_sample += sum(use.contraction.held_apart for _, use in found.uses if use is not None)
    # Records of all samples, or of one pair of tiles.
    held = (n + (m or 0)) if tiling.held else 2 * tile
    entries = math.prod(outputs.shape(tile, tile, found.out_size))
    grams = leaves * entries + 2 * entries  # every parameter's, their sum, and its transpose
    if tiling.held and written_out(n, m, tile, outputs.rows(found.out_size)):  # XLA computes those of all pairs first
        grams *= pairs(n, m, tile)
    work = lambda leaf: work_size(found.found.uses[leaf], found.values[leaf].shape, tile, found.out_size, outputs)
    largest = max(map(work, found.found.order))
    kernel = math.prod(outputs.shape(n, n if m is None else m, found.out_size)) * (leaves if by_layer else 1)
    return MemoryEstimate(item * kernel, item * held * per_sample, item * (grams + largest), tile)
