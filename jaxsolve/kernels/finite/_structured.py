"""The NTK of a function whose uses of parameters are known: sums of products of Gram matrices, tile by tile."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._numerics import Inputs, samples_in, take_samples
from ._capture import Capture, capture, Record
from ._outputs import Outputs
from ._tiling import cut_tile, even_tile, Tiling, written_out
from ._use_gram import contribution


@eqx.filter_jit
def structured(
    net: Any,
    eta: PyTree,
    x1: Inputs,
    x2: Inputs | None,
    *,
    outputs: Outputs,
    tiling: Tiling,
    by_layer: bool,
) -> list[Float[Array, "..."]]:
    """The kernel as a list of one array, or of the contributions of the parameters in order of first use.

    If x2 is None, only one half is computed; the other is its mirror image, to the last bit.
    """
    found = capture(net, x1)
    terms = _Terms.of(found, eta, found.constant(x1), outputs, by_layer=by_layer)
    n, m = samples_in(x1), None if x2 is None else samples_in(x2)
    if tiling.held and written_out(n, m, tiling.tile, outputs.rows(found.out_size)):
        blocks = lambda x: _blocks(found, x, tiling.tile)
        return _written_out(terms, blocks(x1), None if x2 is None else blocks(x2))
    samples = lambda x: _Samples(samples_in(x), _reader(found, x, tiling))
    return _looped(terms, samples(x1), None if x2 is None else samples(x2), tiling.tile)


def of_records(
    found: Capture, eta: PyTree, everything: list[Record], constant: list[Record], outputs: Outputs
) -> Float[Array, "..."]:
    """The kernel between samples and themselves, from their records."""
    terms, cut = _Terms.of(found, eta, constant, outputs, by_layer=False), _cutter(everything)
    n, rows = everything[0].back.shape[0], outputs.rows(found.out_size)
    tile = cut_tile(n, rows)
    if written_out(n, None, tile, rows):
        blocks = [_Block(start, cut(start, end - start)) for start, end in _ranges(n, tile)]
        return _written_out(terms, blocks, None)[0]
    return _looped(terms, _Samples(n, cut), None, tile)[0]


class _Terms(NamedTuple):
    """The terms of the kernel, summed into one array or, with `by_layer`, into one per parameter."""

    found: Capture
    rates: list[Array]  # leaf by leaf
    constant: list[Record]  # the part of every record that is the same for all samples
    outputs: Outputs
    by_layer: bool

    @classmethod
    def of(cls, found: Capture, eta: PyTree, constant: list[Record], outputs: Outputs, *, by_layer: bool) -> "_Terms":
        return cls(found, jax.tree.leaves(eta), constant, outputs, by_layer)

    def of_leaves(self, one: list[Record], two: list[Record]) -> list[Array]:
        """The terms between two blocks of samples."""
        counts = one[0].back.shape[0], two[0].back.shape[0]
        # Values that are the same for all samples are used once. Besides, XLA on CPU (jaxlib 0.10 and 0.11) reads
        # uninitialized memory in sums of several batched products whose second factor is a broadcast.
        first = lambda array, alike: array[:1] if alike else array
        one, two = (jax.tree.map(first, records, self.constant) for records in (one, two))
        whole = self.outputs.shape(*counts, self.found.out_size)
        parts, end = [], 0
        for leaf in self.found.found.order:
            uses = self.found.found.uses[leaf]
            # A leaf without uses has one record: the derivative with respect to the leaf itself.
            own = slice(end, end + max(len(uses), 1))
            shape, end = self.found.values[leaf].shape, own.stop
            part = contribution(uses, self.rates[leaf], shape, one[own], two[own], counts, self.outputs)
            # If samples are alike, the part has one row or column for all of them.
            parts.append(jnp.broadcast_to(part.astype(self.found.dtype), whole))
        return parts

    def zeros(self, n: int, m: int) -> list[Array]:
        shape, count = self.outputs.shape(n, m, self.found.out_size), len(self.found.found.order)
        return [jnp.zeros(shape, self.found.dtype) for _ in range(count if self.by_layer else 1)]


# --- few blocks, written out


class _Block(NamedTuple):
    """Consecutive samples, starting at `start`."""

    start: int
    records: list[Record]


def _written_out(terms: _Terms, rows: list[_Block], columns: list[_Block] | None) -> list[Float[Array, "..."]]:
    """The kernel between the samples of `rows` and those of `columns`, or of `rows` again if columns is None.

    Layers are taken from last to first, as cotangents arrive, and each is added to the kernel at once: in a single sum
    over layers, XLA would hold the Grams of all of them.
    """
    outputs = terms.outputs
    others = rows if columns is None else columns
    kernels = terms.zeros(_count(rows), _count(others))
    half = itertools.combinations_with_replacement(rows, 2)
    pairs = list(half if columns is None else itertools.product(rows, columns))
    parts = [terms.of_leaves(one.records, two.records) for one, two in pairs]
    for layer in reversed(range(len(parts[0]))):
        which = layer if terms.by_layer else 0
        for (one, two), part in zip(pairs, parts, strict=True):
            kernels[which] = _add(kernels[which], part[layer], one.start, two.start, outputs)
    return [_symmetric(kernel, rows, outputs) for kernel in kernels] if columns is None else kernels


def _symmetric(kernel: Array, blocks: list[_Block], outputs: Outputs) -> Array:
    """A kernel with its tiles below the diagonal filled in from those above."""
    out_size = blocks[0].records[0].back.shape[1]
    for one, two in itertools.combinations_with_replacement(blocks, 2):
        shape = outputs.shape(_count([one]), _count([two]), out_size)
        part = jax.lax.dynamic_slice(kernel, _corner(kernel, one.start, two.start, outputs), shape)
        mirror = _evened(part, outputs) if one is two else _mirror(part, outputs)
        kernel = _put(kernel, mirror, two.start, one.start, outputs)
    return kernel


def _blocks(found: Capture, x: Inputs, size: int) -> list[_Block]:
    """Blocks from separate passes through the network: cutting their records out of those of all samples would copy."""
    return [
        _Block(start, _in_order(found.records(take_samples(x, slice(start, end)))))
        for start, end in _ranges(samples_in(x), size)
    ]


def _in_order(everything: list[Record]) -> list[Record]:
    """The same records, with the inputs of the first layer hidden from XLA until its cotangents are computed.

    Otherwise XLA multiplies the inputs at once and holds their products, which are larger if samples are small.
    """
    first, *others = everything
    n = first.back.shape[0]
    if first.inputs is None or not jnp.issubdtype(first.inputs.dtype, jnp.floating):
        return everything
    if first.inputs.size >= n * n:  # and networks in a batch share the products
        return everything
    # Add 0 times a cotangent: XLA removes barriers before it schedules, but not a data dependence.
    one = jax.lax.stop_gradient(first.back.reshape(n, -1)[:, 0])
    late = first.inputs + 0 * one.reshape(n, *[1] * (first.inputs.ndim - 1))
    return [first._replace(inputs=late), *others]


def _count(blocks: list[_Block]) -> int:
    return sum(block.records[0].back.shape[0] for block in blocks)


def _ranges(count: int, size: int) -> list[tuple[int, int]]:
    """The bounds of blocks, (begin, end) of each; the first block is the smallest."""
    ends = range(count, 0, -size)[::-1]
    return [(max(end - size, 0), end) for end in ends]


# --- many tiles, in a loop


# Maps a first sample and a count to the records of these samples.
_Read = Callable[[Any, int], list[Record]]


class _Samples(NamedTuple):
    size: int
    read: _Read


def _looped(terms: _Terms, one: _Samples, two: _Samples | None, tile: int) -> list[Float[Array, "..."]]:
    """The kernel between samples `one` and `two`, or `one` again if two is None, in compiled loops over tiles."""
    outputs, (n, read1) = terms.outputs, one
    m, read2 = one if two is None else two
    tile1, tile2 = min(tile, n), min(tile, m)

    def of_pair(one: list[Record], two: list[Record]) -> list[Array]:
        parts = terms.of_leaves(one, two)
        return parts if terms.by_layer else [sum(parts[1:], parts[0])]

    def put(kernels: list[Array], parts: list[Array], row, column) -> list[Array]:
        return [_put(kernel, part, row, column, outputs) for kernel, part in zip(kernels, parts, strict=True)]

    def mirrored(one: list[Record], two: list[Record], row, column, kernels: list[Array]) -> list[Array]:
        parts = of_pair(one, two)
        kernels = put(kernels, [_mirror(part, outputs) for part in parts], column, row)
        return put(kernels, parts, row, column)

    def between(row, column, kernels: list[Array]) -> list[Array]:
        return put(kernels, of_pair(read1(row, tile1), read2(column, tile2)), row, column)

    def across(row, column, kernels: list[Array]) -> list[Array]:
        return mirrored(read1(row, tile1), read1(column, tile1), row, column, kernels)

    smaller = even_tile(tile1, outputs.rows(terms.found.out_size))
    within = _starts(tile1, smaller)

    def on_diagonal(row, _, kernels: list[Array]) -> list[Array]:
        cut = _cutter(read1(row, tile1))
        for one, two in itertools.combinations(within, 2):
            kernels = mirrored(cut(one, smaller), cut(two, smaller), row + one, row + two, kernels)
        for start in within:
            parts = of_pair(cut(start, smaller), cut(start, smaller))
            kernels = put(kernels, [_evened(part, outputs) for part in parts], row + start, row + start)
        return kernels

    starts = _starts(n, tile1)
    kernels = terms.zeros(n, m)
    if two is not None:
        return _loop(list(itertools.product(starts, _starts(m, tile2))), between, kernels)
    kernels = _loop(list(itertools.combinations(starts, 2)), across, kernels)
    # Tiles on the diagonal come last: the last tile of a row overlaps the one before it, and only those on the diagonal
    # are made symmetric. The same holds for the smaller tiles within them.
    return _loop([(start, start) for start in starts], on_diagonal, kernels)


def _loop(pairs: list[tuple[int, int]], step: Callable[..., list[Array]], kernels: list[Array]) -> list[Array]:
    """Takes the step `step(row, column, kernels)` for every pair of tiles."""
    if not pairs:
        return kernels
    rows, columns = jnp.asarray(pairs).T
    return jax.lax.fori_loop(0, len(pairs), lambda k, kernels: step(rows[k], columns[k], kernels), kernels)


def _starts(count: int, tile: int) -> list[int]:
    """The places where tiles begin; the last tile ends with the samples."""
    return [min(index * tile, count - tile) for index in range(math.ceil(count / tile))]


def _reader(found: Capture, x: Inputs, tiling: Tiling) -> _Read:
    if tiling.held:
        return _cutter(found.records(x))
    cut = lambda leaf, start, size: jax.lax.dynamic_slice_in_dim(leaf, start, size)
    return lambda start, size: found.records(jax.tree.map(lambda leaf: cut(leaf, start, size), x))


def _cutter(everything: list[Record]) -> _Read:
    # Cut in the shape in which records are passed on: in a second shape, XLA would compute them twice.
    flat = [record.back.reshape(-1, *record.back.shape[2:]) for record in everything]

    def cut(start: Any, size: int) -> list[Record]:
        found = []
        for (inputs, back), rows in zip(everything, flat, strict=True):
            out = back.shape[1]
            part = jax.lax.dynamic_slice_in_dim(rows, start * out, size * out).reshape(size, *back.shape[1:])
            own = None if inputs is None else jax.lax.dynamic_slice_in_dim(inputs, start, size)
            found.append(Record(own, part))
        return found

    return cut


# --- a tile of a kernel


def _mirror(kernel: Array, outputs: Outputs) -> Array:
    """The same pairs of samples and outputs with their two sides exchanged."""
    return jnp.transpose(kernel, outputs.exchanged)


def _evened(kernel: Array, outputs: Outputs) -> Array:
    """A kernel of samples with themselves, symmetric to the last bit."""
    # Addition commutes in floating point, so an entry and its mirror image round alike.
    return (kernel + _mirror(kernel, outputs)) / 2


def _put(kernel: Array, part: Array, row, column, outputs: Outputs) -> Array:
    return jax.lax.dynamic_update_slice(kernel, part, _corner(kernel, row, column, outputs))


def _add(kernel: Array, part: Array, row, column, outputs: Outputs) -> Array:
    corner = _corner(kernel, row, column, outputs)
    return jax.lax.dynamic_update_slice(kernel, jax.lax.dynamic_slice(kernel, corner, part.shape) + part, corner)


def _corner(kernel: Array, row, column, outputs: Outputs) -> list[Any]:
    first, second = outputs.sample_axes
    start: list[Any] = [0] * kernel.ndim
    start[first], start[second] = row, column
    return start
