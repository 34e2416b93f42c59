"""How much memory an empirical kernel takes, known from shapes before anything runs."""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._memory import free_memory
from ..nets import AbstractLayered, Conv
from ._contributions import conv_costs, Outputs
from ._signals import parametric_layers, signals
from ._tiling import pairs, Tiling, tilings, written_out


class MemoryEstimate(NamedTuple):
    """The memory that a kernel takes, in bytes.

    Attributes:
        kernel: the result.
        signals: activations and back-propagated signals of all samples that are held at once.
        work: what the Grams of one pair of tiles take.
        tile: samples per tile: 1 to n.
    """

    kernel: int
    signals: int
    work: int
    tile: int

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.kernel + self.signals + self.work

    def __repr__(self) -> str:
        return (
            f"MemoryEstimate({readable(self.total)}: kernel {readable(self.kernel)}, signals "
            f"{readable(self.signals)}, work {readable(self.work)}; tiles of {self.tile} samples)"
        )


def readable(size: int) -> str:
    """A number of bytes, with its unit."""
    unit = min(max(len(str(size)) - 1, 0) // 3, 4)
    return f"{size / 1000**unit:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def choose_tiling(
    net: AbstractLayered,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."] | None,
    outputs: Outputs,
    *,
    by_layer: bool,
    budget: int | None,
) -> Tiling:
    """The fastest tiling that stays within the budget, by default half of the free memory.

    Raises:
        MemoryError: even the smallest tiles do not.
    """
    n, m = x1.shape[0], None if x2 is None else x2.shape[0]
    allowed = _default_budget() if budget is None else budget
    found = tilings(n, m, outputs.rows(net.out_size))
    for tiling in found:
        if estimate(net, n, m, outputs, tiling, by_layer=by_layer).total <= allowed:
            return tiling
    least = min((estimate(net, n, m, outputs, tiling, by_layer=by_layer) for tiling in found), key=lambda e: e.total)
    traced = estimate(net, n, m, Outputs.TRACE, found[-1], by_layer=by_layer)
    fits = (
        f"trace=True would need {readable(traced.total)}"
        if outputs is not Outputs.TRACE and traced.total <= allowed
        else "kernels.NTKOperator(net, x) gives products with the kernel without holding it"
    )
    shape = outputs.shape(n, n if m is None else m, net.out_size)
    raise MemoryError(
        f"the kernel of shape {shape} needs {readable(least.total)} ({least}), and {readable(allowed)} may be used; "
        f"{fits}, or allow more with memory="
    )


def check_room(
    f: Callable[[PyTree, Array], Array],
    params: PyTree,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."],
    *,
    jacobian: bool,
    budget: int | None,
) -> None:
    """For networks of unknown layers, of which no more is known than the least that their kernel takes.

    Raises:
        MemoryError: the kernel alone does not fit, or not with the Jacobians that it is contracted from.
    """
    rows = [int(jax.eval_shape(f, params, x).size) for x in (x1, x2)]
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    needed = x1.dtype.itemsize * (rows[0] * rows[1] + (sum(rows) * count if jacobian else 0))
    allowed = _default_budget() if budget is None else budget
    if needed > allowed:
        raise MemoryError(
            f"the kernel of {rows[0]} x {rows[1]} outputs and {count} parameters needs at least {readable(needed)}, "
            f"and {readable(allowed)} may be used; kernels.NTKOperator(net, x) gives products with the kernel without "
            "holding it; or take fewer samples, or allow more with memory="
        )


def _default_budget() -> int:
    free = free_memory()
    return sys.maxsize if free is None else free // 2


def estimate(
    net: AbstractLayered, n: int, m: int | None, outputs: Outputs, tiling: Tiling, *, by_layer: bool
) -> MemoryEstimate:
    """The memory of the kernel between n samples and themselves (m is None) or m others."""
    item = jnp.dtype(net.weights[0].dtype).itemsize
    tile, layers = tiling.tile, parametric_layers(net)
    sample = jax.eval_shape(lambda x: signals(net, x), jax.ShapeDtypeStruct((1, *net.in_shape), net.weights[0].dtype))
    patches = [_patch_size(net, layer, signal) for layer, signal in zip(layers, sample, strict=True)]
    per_sample = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(sample)) + sum(patches)
    held = (n + (m or 0)) if tiling.held else 2 * tile
    entries = math.prod(outputs.shape(tile, tile, net.out_size))
    grams = len(layers) * entries + 2 * entries  # every layer's, their sum, and its transpose
    if tiling.held and written_out(n, m, tile, outputs.rows(net.out_size)):  # then XLA makes those of all pairs first
        grams *= pairs(n, m, tile)
    convolved = 0
    for layer, signal, size in zip(layers, sample, patches, strict=True):
        if isinstance(layer, Conv):
            back = (tile, *signal.back.shape[1:3], math.prod(signal.back.shape[3:]))
            patch = (tile, size // back[3], back[3])
            convolved = max(convolved, conv_costs(patch, patch, back, outputs).size)
    kernel = math.prod(outputs.shape(n, n if m is None else m, net.out_size)) * (len(layers) if by_layer else 1)
    return MemoryEstimate(item * kernel, item * held * per_sample, item * (grams + convolved), tile)


def _patch_size(net: AbstractLayered, layer, signal) -> int:
    if not isinstance(layer, Conv):
        return 0
    return math.prod(layer.parameter(net).shape[1:]) * math.prod(signal.back.shape[3:])
