"""Pairs of consecutive layers of any network, and their weights as matrices over the shared units."""

from math import prod
from typing import Any, NamedTuple

from .._programs import Step
from ._layers import Product, TappedProgram


_RESHAPES = ("reshape", "squeeze", "expand_dims")
# These operations move or mix units, even if the result has the shape of the input.
_MIXING = ("dot_general", "conv_general_dilated", "gather", "rev", "sort", "fft", "scan", "while", "cond")


class LayerPair(NamedTuple):
    """A layer, and a layer that reads its units with no other layer in between.

    Attributes:
        name: such as `layers[0] to layers[1]`.
        below, above: the slots of the weights of the two layers.
        written, read: the axes of the units in these weights.
        units: the number of units; the units of a convolution are its channels.
        inner: the number of consecutive entries that a unit takes up in the data read: the number of pixels if images
            were flattened channel by channel, else 1.
    """

    name: str
    below: int
    above: int
    written: tuple[int, ...]
    read: tuple[int, ...]
    units: int
    inner: int

    def matrices(self, held: dict[int, Any]) -> tuple[Any, Any]:
        """The weights that write the units and the weights that read them, from the values of the program.

        NumPy or JAX arrays of shapes (units, in) and (out, units).
        """
        written, read = (
            _by_units(held[slot], axes) for slot, axes in ((self.below, self.written), (self.above, self.read))
        )
        read = read.reshape(-1, self.units, self.inner * read.shape[1])
        return written, read.transpose(1, 0, 2).reshape(self.units, -1).T


def squared_product(below: Any, above: Any) -> Any:
    """|A B|^2 for weights A (out, units) that read units and B (units, in) that write them, in NumPy or JAX."""
    (units, inputs), outputs = below.shape, len(above)
    if inputs * outputs <= units * (inputs + outputs):
        return ((above @ below) ** 2).sum()
    # <A^T A, B B^T>: matrices of units by units, if that is less work, as for the last layer with many classes.
    return ((above.T @ above) * (below @ below.T)).sum().clip(min=0)


def _by_units(weights: Any, units: tuple[int, ...]) -> Any:
    others = [axis for axis in range(weights.ndim) if axis not in units]
    return weights.transpose(*units, *others).reshape(prod(weights.shape[axis] for axis in units), -1)


class _Ends(NamedTuple):
    """The axes of a layer's units.

    Attributes:
        written, output: axes of the units that it writes, in its weights and in its output.
        read, data: axes of the units that it reads, in its weights and in its data; empty if it reads them in groups.
    """

    written: tuple[int, ...]
    output: tuple[int, ...]
    read: tuple[int, ...]
    data: tuple[int, ...]


def layer_pairs(program: TappedProgram) -> list[LayerPair]:
    """All pairs of layers in which one reads the output of the other, with no third layer in between.

    Pairs whose units can no longer be told apart at the reading layer are left out.
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
    first = len(shapes[item.step.outputs[0]].shape) - len(free) if side else 0  # the second factor's axes are last
    return _Ends(free, tuple(range(first, first + len(free))), tuple(read), tuple(data))


# One number, the stride, locates the units in a value: entry i, in row-major order, belongs to unit
# (i // stride) % units. Reshaping leaves the stride unchanged.


def _strides(program: TappedProgram, slot: int, stride: int, units: int) -> dict[int, int]:
    """The stride of one layer's units in every value computed from its output in which they can be told apart."""
    found = {slot: stride}
    for step in program.steps.steps:
        strides = {_after(program, step, slot, found[slot], units) for slot in step.inputs if slot in found}
        if len(strides) == 1 and (after := strides.pop()) is not None:
            found |= dict.fromkeys(step.outputs, after)
    return found


def _after(program: TappedProgram, step: Step, slot: int, stride: int, units: int) -> int | None:
    """The stride in the result of a step, from the stride in one of its inputs."""
    before, after = (program.steps.shapes[index].shape for index in (slot, step.outputs[0]))
    params: dict[str, Any] = step.params
    if step.name in _RESHAPES:
        return stride
    if step.name in _MIXING or step.name.startswith("cum"):
        return None
    if before == after and step.name != "transpose":
        return stride
    old = axis = next(axis for axis in range(len(before)) if stride >= prod(before[axis + 1 :]))
    if stride * units > prod(before[old:]):  # units along several axes, as in attention heads
        return None
    if step.name == "transpose":
        axis = params["permutation"].index(old)
    elif step.name == "broadcast_in_dim":
        axis = params["broadcast_dimensions"][old]
    elif len(after) < len(before):  # a sum over some axes, or the like
        if old in params.get("axes", (old,)):
            return None
        axis -= sum(gone < old for gone in params["axes"])
    if axis >= len(after) or after[axis] != before[old]:  # pooling or slicing has changed the size of the axis
        return None
    return stride // prod(before[old + 1 :]) * prod(after[axis + 1 :])
