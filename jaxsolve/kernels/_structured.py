"""The NTK of a network of known layers: sums of Hadamard products of Gram matrices, tile by tile."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..nets import AbstractLayered
from ._contributions import contribution, Outputs
from ._signals import parametric_layers, Signal, signals
from ._tiling import cut_tile, symmetric_tile, Tiling, written_out


@eqx.filter_jit
def structured(
    net: AbstractLayered,
    eta: PyTree,
    x1: Float[Array, "n ..."],
    x2: Float[Array, "m ..."] | None,
    *,
    outputs: Outputs,
    tiling: Tiling,
    by_layer: bool,
) -> list[Float[Array, "..."]]:
    """The kernel as a list of one array, or of the contributions of every layer with parameters.

    Between x1 and itself (x2 is None) only one half is computed and the other is its mirror image, to the last bit.
    """
    n, m = x1.shape[0], None if x2 is None else x2.shape[0]
    apart = written_out(n, m, tiling.tile, outputs.rows(net.out_size))
    read1 = _reader(net, x1, tiling, apart=apart)
    read2 = read1 if x2 is None else _reader(net, x2, tiling, apart=apart)
    return _assemble(net, eta, (n, read1), (m, read2), outputs=outputs, tile=tiling.tile, by_layer=by_layer)


def of_signals(net: AbstractLayered, eta: PyTree, everything: list[Signal], outputs: Outputs) -> Float[Array, "..."]:
    """The kernel between samples and themselves, of which the signals are known."""
    n = everything[0].inputs.shape[0]
    one, tile = (n, _cutter(everything)), cut_tile(n, outputs.rows(net.out_size))
    return _assemble(net, eta, one, (None, one[1]), outputs=outputs, tile=tile, by_layer=False)[0]


# Gives the signals of so many samples from one on.
_Read = Callable[[Any, int], list[Signal]]


def _assemble(
    net: AbstractLayered,
    eta: PyTree,
    one: tuple[int, _Read],
    two: tuple[int | None, _Read],
    *,
    outputs: Outputs,
    tile: int,
    by_layer: bool,
) -> list[Float[Array, "..."]]:
    """The kernel between n samples and m others, or themselves if m is None, tile by tile."""
    layers = parametric_layers(net)
    (n, read1), (others, read2) = one, two
    symmetric, m = others is None, n if others is None else others
    tile1, tile2 = min(tile, n), min(tile, m)

    def of_pair(one: list[Signal], two: list[Signal]) -> list[Array]:
        parts = [contribution(net, eta, *triple, outputs) for triple in zip(layers, one, two, strict=True)]
        return parts if by_layer else [sum(parts[1:], parts[0])]

    if tile1 == n and tile2 == m:
        whole = of_pair(read1(0, n), read2(0, m))
        return [(part + _mirror(part, outputs)) / 2 for part in whole] if symmetric else whole

    def put(kernels: list[Array], parts: list[Array], row, column) -> list[Array]:
        return [_put(kernel, part, row, column, outputs) for kernel, part in zip(kernels, parts, strict=True)]

    def mirrored(one: list[Signal], two: list[Signal], row, column, kernels: list[Array]) -> list[Array]:
        parts = of_pair(one, two)
        kernels = put(kernels, [_mirror(part, outputs) for part in parts], column, row)
        return put(kernels, parts, row, column)

    def across(row, column, kernels: list[Array]) -> list[Array]:
        one, two = read1(row, tile1), read2(column, tile2)
        return mirrored(one, two, row, column, kernels) if symmetric else put(kernels, of_pair(one, two), row, column)

    rows = outputs.rows(net.out_size)
    few = written_out(n, others, tile, rows)
    smaller = tile1 if few else symmetric_tile(tile1, rows)
    within = _starts(tile1, smaller)

    def on_diagonal(row, _, kernels: list[Array]) -> list[Array]:
        cut = _cutter(read1(row, tile1))
        for one, two in itertools.combinations(within, 2):
            kernels = mirrored(cut(one, smaller), cut(two, smaller), row + one, row + two, kernels)
        for start in within:
            parts = of_pair(cut(start, smaller), cut(start, smaller))
            kernels = put(kernels, [(part + _mirror(part, outputs)) / 2 for part in parts], row + start, row + start)
        return kernels

    dtype = net.weights[0].dtype
    kernels = [jnp.zeros(outputs.shape(n, m, net.out_size), dtype) for _ in range(len(layers) if by_layer else 1)]
    starts1, starts2 = _starts(n, tile1), _starts(m, tile2)
    over = _unrolled if few else _looped
    if not symmetric:
        return over(list(itertools.product(starts1, starts2)), across, kernels)
    kernels = over(list(itertools.combinations(starts1, 2)), across, kernels)
    # These come last: the last tile overlaps the one before, and only they are symmetric by themselves. So it is with
    # the smaller tiles within them.
    return over([(start, start) for start in starts1], on_diagonal, kernels)


def _unrolled(pairs: list[tuple[int, int]], step: Callable[..., list[Array]], kernels: list[Array]) -> list[Array]:
    """Takes the step `step(row, column, kernels)` for every pair of tiles."""
    for pair in pairs:
        kernels = step(*pair, kernels)
    return kernels


def _looped(pairs: list[tuple[int, int]], step: Callable[..., list[Array]], kernels: list[Array]) -> list[Array]:
    """The same in a compiled loop."""
    rows, columns = jnp.asarray(pairs).T
    return jax.lax.fori_loop(0, len(pairs), lambda k, kernels: step(rows[k], columns[k], kernels), kernels)


def _starts(count: int, tile: int) -> list[int]:
    """Where tiles begin; the last one ends with the samples."""
    return [min(index * tile, count - tile) for index in range(math.ceil(count / tile))]


def _reader(net: AbstractLayered, x: Float[Array, "n ..."], tiling: Tiling, *, apart: bool) -> _Read:
    if tiling.held and apart:  # each tile passes by itself: cutting its signals out of those of all would copy them
        starts = _starts(x.shape[0], min(tiling.tile, x.shape[0]))
        made = {start: signals(net, x[start : start + tiling.tile]) for start in starts}
        return lambda start, _: made[start]
    if tiling.held:
        return _cutter(signals(net, x))
    return lambda start, size: signals(net, jax.lax.dynamic_slice_in_dim(x, start, size))


def _cutter(everything: list[Signal]) -> _Read:
    return lambda start, size: jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), everything)


def _mirror(kernel: Array, outputs: Outputs) -> Array:
    """The same pairs of samples and outputs with their two sides exchanged."""
    return jnp.transpose(kernel, outputs.exchanged)


def _put(kernel: Array, part: Array, row, column, outputs: Outputs) -> Array:
    first, second = outputs.sample_axes
    start = [0] * kernel.ndim
    start[first], start[second] = row, column
    return jax.lax.dynamic_update_slice(kernel, part, start)
