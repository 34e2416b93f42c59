"""The steps in which parameters meet data: a sum over positions of an operand times the parameter.

The derivative of output a with respect to the parameter is sum_p b[a, p] a[p]^T, where a[p] is the operand and b[a, p]
the cotangent of the step's output, at position p (a token, a pixel) and in every group g of a grouped operation.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._programs import Step
from ._parameter_views import ParameterView


class Split(NamedTuple):
    """The axes of a parameter's base in both factors, the cotangent alone, and the operand alone, each ascending."""

    shared: tuple[int, ...]
    cotangent: tuple[int, ...]
    operand: tuple[int, ...]
    groups: int = 1  # parts into which the cotangent's axis is split, each with its own operands


@dataclasses.dataclass(frozen=True)
class AbstractContraction(abc.ABC):
    """A rule that turns the operand and the cotangent of a step into factors of the derivative.

    Attributes:
        split: which axes of the base each factor has.
        shape: the shape of the base.
        positions: the number of positions.
        order: the axes of the step's output: of the positions first, then shared ones, then of the cotangent.
    """

    split: Split
    shape: tuple[int, ...]
    positions: int
    order: tuple[int, ...]

    @property
    def groups(self) -> int:
        return self.split.groups * self._count(self.split.shared)

    @property
    def rows(self) -> int:
        """The number of entries of the cotangent at one position of one group."""
        return self._count(self.split.cotangent) // self.split.groups

    @property
    def columns(self) -> int:
        """The number of entries of the operand at one position of one group."""
        return self._count(self.split.operand)

    def _count(self, axes: Sequence[int]) -> int:
        return math.prod(self.shape[axis] for axis in axes)

    def cotangent(self, back: Float[Array, "n out ..."]) -> Float[Array, "n out positions groups rows"]:
        """The cotangent at every position."""
        moved = jnp.transpose(back, (0, 1, *(axis + 2 for axis in self.order)))
        return moved.reshape(*back.shape[:2], self.positions, self.groups, self.rows)

    @abc.abstractmethod
    def operand(self, value: Any) -> "Float[Array, 'n positions groups columns'] | Int[Array, 'n positions']":
        """The operand at every position; for a look-up, the index of its one-hot vector."""

    def run(self, step: Step, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs of the step."""
        return step.call(*values)

    def from_base(self, value: Float[Array, "..."]) -> Float[Array, "groups rows columns"]:
        """A change of the base as a matrix for every group."""
        axes = (*self.split.shared, *self.split.cotangent, *self.split.operand)
        return jnp.transpose(value, axes).reshape(self.groups, self.rows, self.columns)

    @property
    def held_apart(self) -> int:
        """The numbers per sample that the factors hold beyond the captured operand and cotangent."""
        return 0


def to_base(
    derivative: Float[Array, "*lead groups rows columns"], split: Split, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """A derivative with the axes of a base of this shape."""
    axes = (*split.shared, *split.cotangent, *split.operand)
    lead = derivative.ndim - 3
    shaped = derivative.reshape(*derivative.shape[:lead], *(shape[axis] for axis in axes))
    places = (lead + axes.index(axis) for axis in range(len(axes)))
    return jnp.transpose(shaped, (*range(lead), *places))


# --- products


@dataclasses.dataclass(frozen=True)
class Product(AbstractContraction):
    """A `dot_general`."""

    operand_order: tuple[int, ...]
    # With the parameter on the left, the product is swapped, so that samples stay the rows in a batch.
    swapped: Any = None
    result_order: tuple[int, ...] = ()

    def operand(self, value: Any) -> Float[Array, "n positions groups columns"]:
        moved = jnp.transpose(value, (0, *(axis + 1 for axis in self.operand_order)))
        return moved.reshape(value.shape[0], self.positions, self.groups, self.columns)

    def run(self, step: Step, values: Sequence[Any]) -> Sequence[Any]:
        if self.swapped is None:
            return step.call(*values)
        rest = {name: step.params.get(name) for name in ("precision", "preferred_element_type")}
        out = jax.lax.dot_general(values[1], values[0], self.swapped, **rest)
        return [jnp.transpose(out, self.result_order)]


def dot(
    dimension_numbers: Any, side: int, left: tuple[int, ...], right: tuple[int, ...], view: ParameterView
) -> Product:
    """The contraction in `dot_general(left, right)` of a parameter on one side."""
    contracted, batched = dimension_numbers
    shapes = (left, right)
    other = shapes[1 - side]
    by_base = lambda pairs: sorted(zip(pairs[side], pairs[1 - side], strict=True), key=lambda p: view.order[p[0]])
    columns, shared = by_base(contracted), by_base(batched)
    free = [[a for a in range(len(shapes[s])) if a not in (*contracted[s], *batched[s])] for s in (0, 1)]
    cotangent = sorted(free[side], key=lambda axis: view.order[axis])
    # Axes of the output: the batch, then free axes on the left, then free axes on the right.
    place: dict[Any, int] = {("batch", axis): index for index, axis in enumerate(batched[side])}
    for s in (0, 1):
        place |= {(s, axis): len(place) + index for index, axis in enumerate(free[s])}
    order = [place[1 - side, axis] for axis in free[1 - side]]
    order += [place["batch", axis] for axis, _ in shared] + [place[side, axis] for axis in cotangent]
    to_base = lambda axes: tuple(view.order[axis] for axis in axes)
    swapped, count, ends = None, len(batched[0]), len(batched[0]) + len(free[1])
    # The swapped product has the axes (batch, free on the right, free on the left); this restores the order of `place`.
    result = (*range(count), *range(ends, ends + len(free[0])), *range(count, ends))
    if side == 0:
        swapped = (tuple(map(tuple, contracted[::-1])), tuple(map(tuple, batched[::-1])))
    return Product(
        split=Split(to_base([a for a, _ in shared]), to_base(cotangent), to_base([a for a, _ in columns])),
        shape=view.shape,
        positions=math.prod(other[axis] for axis in free[1 - side]),
        order=tuple(order),
        operand_order=(*free[1 - side], *[b for _, b in shared], *[b for _, b in columns]),
        swapped=swapped,
        result_order=result,
    )


# --- convolutions


@dataclasses.dataclass(frozen=True)
class Patches(AbstractContraction):
    """A `conv_general_dilated`: a product with the patch in the window at every pixel."""

    data_order: tuple[int, ...]  # of the data's axes: batch, channels, space
    window: tuple[int, ...]
    column_order: tuple[int, ...]  # of (channels, *window), as in the base
    # For each spatial dimension, as in `conv_general_dilated`.
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]

    def operand(self, value: Any) -> Float[Array, "n positions groups columns"]:
        images = jnp.transpose(value, (0, *(axis + 1 for axis in self.data_order)))
        # Axes: sample, batch, channels, then the window and the pixels of each spatial dimension in turn.
        patches = self._cut(images)
        n, batch, channels, *space = patches.shape
        groups = self.split.groups
        shaped = patches.reshape(n, batch, groups, channels // groups, *space)
        pixels, columns = (1, *range(5, shaped.ndim, 2)), (3, *range(4, shaped.ndim, 2))
        moved = jnp.transpose(shaped, (0, *pixels, 2, *(columns[axis] for axis in self.column_order)))
        return moved.reshape(n, self.positions, groups, self.columns)

    def _cut(self, images: Array) -> Array:
        """Returns the patches of images, with an axis of the window and one of pixels for each spatial axis."""
        # By slices: XLA's own patches are a convolution, which takes five times as long on a CPU.
        edges = ((0, 0, 0),) * 3
        gaps = ((low, high, gap - 1) for (low, high), gap in zip(self.padding, self.lhs_dilation, strict=True))
        patches = jax.lax.pad(images, jnp.zeros((), images.dtype), (*edges, *gaps))
        for index, (size, stride, gap) in enumerate(zip(self.window, self.strides, self.rhs_dilation, strict=True)):
            axis = 3 + 2 * index
            last = patches.shape[axis] - (size - 1) * gap  # one past the last place of the window's first entry
            windows = (jax.lax.slice_in_dim(patches, k * gap, k * gap + last, stride, axis) for k in range(size))
            patches = jnp.stack(list(windows), axis)
        return patches

    @property
    def held_apart(self) -> int:
        # A pixel of the data is copied into each patch that sees it.
        return self.positions * self.groups * self.columns


def conv(params: dict[str, Any], out: tuple[int, ...], view: ParameterView) -> Patches | None:
    """The contraction in a convolution with this kernel."""
    if params["batch_group_count"] != 1:
        return None
    numbers = params["dimension_numbers"]
    features, channels, *space = (view.order[axis] for axis in numbers.rhs_spec)
    batch, _, *pixels = numbers.out_spec
    columns = [channels, *space]
    # `Split` has ascending axes: this brings the columns of a patch, (channels, *window), into that order.
    by_base = sorted(range(len(columns)), key=lambda index: columns[index])
    return Patches(
        split=Split((), (features,), tuple(sorted(columns)), params["feature_group_count"]),
        shape=view.shape,
        positions=math.prod(out[axis] for axis in (batch, *pixels)),
        order=(batch, *pixels, numbers.out_spec[1]),
        data_order=tuple(numbers.lhs_spec),
        window=tuple(view.shape[axis] for axis in space),
        column_order=tuple(by_base),
        strides=tuple(params["window_strides"]),
        padding=tuple(map(tuple, params["padding"])),
        lhs_dilation=tuple(params["lhs_dilation"]),
        rhs_dilation=tuple(params["rhs_dilation"]),
    )


# --- look-ups


@dataclasses.dataclass(frozen=True)
class Lookup(AbstractContraction):
    """A `gather` or `dynamic_slice` of whole rows of a table: a product with a one-hot vector."""

    entry: int | None  # which entry of an index vector counts; None if the index is one number
    clipped: bool

    def operand(self, value: Any) -> Int[Array, "n positions"]:
        index = value if self.entry is None else value[..., self.entry]
        index = index.reshape(value.shape[0], self.positions)
        if self.clipped:
            return jnp.clip(index, 0, self.columns - 1)
        # An index out of range reads the fill value and no row. It becomes `columns`, since a negative index would
        # count from the end.
        return jnp.where((index >= 0) & (index < self.columns), index, self.columns)


def lookup(params: dict[str, Any], out: tuple[int, ...], view: ParameterView) -> Lookup | None:
    """The contraction in a gather from this table."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    shape = tuple(view.shape[axis] for axis in view.order)
    filled = "FILL" in str(params["mode"])
    axis = _only_row(shape, sizes)
    if axis is None or axis not in numbers.start_index_map or numbers.operand_batching_dims:
        return None
    # The fill value is read if any entry of the index vector is out of range, which one entry alone does not show.
    if filled and len(numbers.start_index_map) > 1:
        return None
    kept = [a for a in range(len(shape)) if a not in numbers.collapsed_slice_dims]
    place = dict(zip(kept, numbers.offset_dims, strict=True))
    cotangent = sorted((a for a in range(len(shape)) if a != axis), key=lambda a: view.order[a])
    if any(a not in place for a in cotangent):
        return None  # a dropped axis of size 1
    rows = [place[a] for a in cotangent]
    positions = [d for d in range(len(out)) if d not in rows]
    return Lookup(
        split=Split((), tuple(view.order[a] for a in cotangent), (view.order[axis],)),
        shape=view.shape,
        positions=math.prod(out[d] for d in positions),
        order=(*positions, *rows),
        entry=numbers.start_index_map.index(axis),
        clipped=not filled,
    )


def row(sizes: tuple[int, ...], view: ParameterView) -> tuple[Lookup, int] | None:
    """The contraction in a dynamic slice of this table, and the axis along which it takes one row."""
    shape = tuple(view.shape[axis] for axis in view.order)
    axis = _only_row(shape, sizes)
    if axis is None:
        return None
    cotangent = sorted((a for a in range(len(shape)) if a != axis), key=lambda a: view.order[a])
    split = Split((), tuple(view.order[a] for a in cotangent), (view.order[axis],))
    return Lookup(split, view.shape, 1, (axis, *cotangent), None, True), axis


def _only_row(shape: tuple[int, ...], sizes: Sequence[int]) -> int | None:
    """The axis along which one entry of several is taken, if all other axes are taken whole; else None."""
    partial = [axis for axis, (size, whole) in enumerate(zip(sizes, shape, strict=True)) if size != whole]
    return partial[0] if len(partial) == 1 and sizes[partial[0]] == 1 else None
