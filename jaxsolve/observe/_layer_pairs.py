"""Pairs of layers that follow one another in any network, and the matrices by which they meet."""

from math import prod
from typing import Any, NamedTuple

from .._programs import Step
from ._layers import Product, TappedProgram


_RESHAPES = ("reshape", "squeeze", "expand_dims")
# A result of these does not have its units where they were, even if it has the shape of what they read.
_MIXING = ("dot_general", "conv_general_dilated", "gather", "rev", "sort", "fft", "scan", "while", "cond")


class LayerPair(NamedTuple):
    """A layer, and one that reads its units with no other layer in between.

    Attributes:
        name: such as `layers[0] to layers[1]`.
        below, above: the slots of the weights of both.
        written, read: the axes of the units in these.
        units: how many; of a convolution they are its channels.
        inner: how many entries of what is read one unit takes before the next begins: pixels, where images became
            vectors channel after channel, else 1.
    """

    name: str
    below: int
    above: int
    written: tuple[int, ...]
    read: tuple[int, ...]
    units: int
    inner: int

    def matrices(self, held: dict[int, Any]) -> tuple[Any, Any]:
        """The weights of both layers, from the values of the program: what writes a unit, and what reads it.

        Arrays of NumPy or JAX, of shapes (units, in) and (out, units).
        """
        written, read = (
            _by_units(held[slot], axes) for slot, axes in ((self.below, self.written), (self.above, self.read))
        )
        read = read.reshape(-1, self.units, self.inner * read.shape[1])
        return written, read.transpose(1, 0, 2).reshape(self.units, -1).T


def squared_product(below: Any, above: Any) -> Any:
    """|A B|^2 of what reads units, A (out, units), and what writes them, B (units, in): arrays of NumPy or JAX."""
    (units, inputs), outputs = below.shape, len(above)
    if inputs * outputs <= units * (inputs + outputs):
        return ((above @ below) ** 2).sum()
    # <A^T A, B B^T>: matrices of units by units, where that is less work, as in front of many classes.
    return ((above.T @ above) * (below @ below.T)).sum().clip(min=0)


def _by_units(weights: Any, units: tuple[int, ...]) -> Any:
    others = [axis for axis in range(weights.ndim) if axis not in units]
    return weights.transpose(*units, *others).reshape(prod(weights.shape[axis] for axis in units), -1)


class _Ends(NamedTuple):
    """The axes of a layer's units.

    Attributes:
        written, output: of those that it writes, in its weights and in its output.
        read, data: of those that it reads, in its weights and in its data; none of a layer that reads them in groups.
    """

    written: tuple[int, ...]
    output: tuple[int, ...]
    read: tuple[int, ...]
    data: tuple[int, ...]


def layer_pairs(program: TappedProgram) -> list[LayerPair]:
    """All pairs of layers of which one reads what the other has written, by way of no third.

    Left out are those whose units cannot be told apart any more where they are read.
    """
    shapes, layers = program.steps.shapes, [(item, _ends(program, item)) for item in program.products]
    found = []
    for below, writing in layers:
        (out,) = below.step.outputs
        above = [(item, reading) for item, reading in layers if out in item.below and reading.data]
        if not above or not writing.output:
            continue
        units = prod(shapes[out].shape[axis] for axis in writing.output)
        strides = _strides(program, out, prod(shapes[out].shape[writing.output[-1] + 1 :]), units)
        for item, reading in above:
            shape, stride = shapes[item.data].shape, strides.get(item.data, 0)
            after = prod(shape[reading.data[-1] + 1 :])
            if stride >= after and stride * units <= prod(shape[reading.data[0] :]):
                sides = below.weights, item.weights, writing.written, reading.read
                found.append(LayerPair(f"{below.name} to {item.name}", *sides, units, stride // after))
    return found


def _ends(program: TappedProgram, item: Product) -> _Ends:
    params: dict[str, Any] = item.step.params
    dimensions, shapes = params["dimension_numbers"], program.steps.shapes
    if item.step.name == "conv_general_dilated":
        whole = params["feature_group_count"] == params["batch_group_count"] == 1
        read, data = ((dimensions.rhs_spec[1],), (dimensions.lhs_spec[1],)) if whole else ((), ())
        return _Ends((dimensions.rhs_spec[0],), (dimensions.out_spec[1],), read, data)
    contracted, batched = dimensions
    side = item.step.inputs.index(item.weights)
    read, data = contracted[side], contracted[1 - side]
    if batched[side] or list(data) != list(range(data[0], data[0] + len(data))):
        return _Ends((), (), (), ())
    free = tuple(axis for axis in range(len(shapes[item.weights].shape)) if axis not in read)
    first = len(shapes[item.step.outputs[0]].shape) - len(free) if side else 0  # the second factor's come last
    return _Ends(free, tuple(range(first, first + len(free))), tuple(read), tuple(data))


# A unit's place in a value is one number, its stride: entry i, in the order of memory, is of the unit number
# (i // stride) % units. That other shapes leave as it is.


def _strides(program: TappedProgram, slot: int, stride: int, units: int) -> dict[int, int]:
    """The stride of one layer's units in all that is made of its output, where they can be told apart."""
    found = {slot: stride}
    for step in program.steps.steps:
        strides = {_after(program, step, slot, found[slot], units) for slot in step.inputs if slot in found}
        if len(strides) == 1 and (after := strides.pop()) is not None:
            found |= dict.fromkeys(step.outputs, after)
    return found


def _after(program: TappedProgram, step: Step, slot: int, stride: int, units: int) -> int | None:
    """The stride in the result of a step, from that in one of its inputs."""
    before, after = (program.steps.shapes[index].shape for index in (slot, step.outputs[0]))
    params: dict[str, Any] = step.params
    if step.name in _RESHAPES:
        return stride
    if step.name in _MIXING or step.name.startswith("cum"):
        return None
    if before == after and step.name != "transpose":
        return stride
    old = axis = next(axis for axis in range(len(before)) if stride >= prod(before[axis + 1 :]))
    if stride * units > prod(before[old:]):  # units along several axes, as in heads of attention
        return None
    if step.name == "transpose":
        axis = params["permutation"].index(old)
    elif step.name == "broadcast_in_dim":
        axis = params["broadcast_dimensions"][old]
    elif len(after) < len(before):  # a sum over some axes, or the like
        if old in params.get("axes", (old,)):
            return None
        axis -= sum(gone < old for gone in params["axes"])
    if axis >= len(after) or after[axis] != before[old]:  # other sizes of other axes are those of pooling, or of parts
        return None
    return stride // prod(before[old + 1 :]) * prod(after[axis + 1 :])
