"""The places where the parameters of a program meet data, and the operations there."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..._programs import Step
from ._contractions import AbstractContraction, conv, dot, lookup, row
from ._parameter_views import ParameterView
from ._program import LONGEST_SCAN, NetworkProgram, trace, Writer


class Use(NamedTuple):
    """A step in which a parameter meets an operand, with an output that is linear in the parameter.

    Attributes:
        step: number of the step, to whose first output cotangents are propagated.
        operand: slot of the value that the parameter is multiplied with.
        view: the parameter as it enters the step.
        contraction: the operation of the step on both.
    """

    step: int
    operand: int
    view: ParameterView
    contraction: AbstractContraction


class Found(NamedTuple):
    """The facts about the parameters of a program.

    Attributes:
        program: the function.
        uses: the uses of every leaf, in program order; empty if its derivative is taken directly.
        reasons: why the derivative of a leaf is taken directly, for leaves where that costs more.
        order: the leaves that are used, in order of first use.
    """

    program: NetworkProgram
    uses: list[list[Use]]
    reasons: dict[int, str]
    order: list[int]


def find(f: Callable[[PyTree, Array], Array], params: PyTree, x: Any) -> Found:
    """The uses of every leaf of the parameters in f(params, sample)."""
    closed, begun = trace(f, params, x)
    finder = _UseFinder(begun)
    program = Writer(begun, finder.is_parameter, finder.see).write(closed)
    # A parameter that is the output itself meets no data.
    for view in finder.views.get(program.output, ()):
        finder.direct(view, None)
    # A direct derivative covers all uses of a leaf, so one use that needs it makes the others superfluous.
    uses = [[] if leaf in finder.straight else uses for leaf, uses in enumerate(finder.uses)]
    return Found(program, uses, finder.reasons, finder.order)


class _UseFinder:
    """Follows each leaf until it meets data."""

    def __init__(self, program: NetworkProgram):
        self.program = program
        self.views: dict[int, tuple[ParameterView, ...]] = {
            slot: (ParameterView.of_leaf(leaf, program.shapes[slot].shape),)
            for leaf, slot in enumerate(program.leaves)
            if math.prod(program.shapes[slot].shape)  # an empty leaf has no derivative
        }
        self.uses: list[list[Use]] = [[] for _ in program.leaves]
        self.straight: set[int] = set()  # leaves whose derivative is taken directly
        self.reasons: dict[int, str] = {}
        self.order: list[int] = []
        self.numbers: dict[int, int] = {}  # slots that hold a reshaped scalar: where it came from
        self.data = set(program.sample)  # slots that depend on the sample

    def is_parameter(self, slots: Sequence[int]) -> bool:
        """True if one of these slots holds a parameter, in any shape."""
        return any(slot in self.views for slot in slots)

    def see(self, step: Step) -> None:
        """Follows the parameters through a step that was added to the program."""
        if self.data.intersection(step.inputs):
            self.data.update(step.outputs)
        if step.name in _RESHAPED and math.prod(self.shape(step.inputs[0])) == 1 and not self._rounds(step):
            self.numbers[step.outputs[0]] = self.numbers.get(step.inputs[0], step.inputs[0])
        differentiable = any(jnp.issubdtype(self.program.shapes[slot].dtype, jnp.inexact) for slot in step.outputs)
        if not differentiable or step.name == "stop_gradient":
            return
        for position, slot in enumerate(step.inputs):
            for view in self.views.get(slot, ()):
                self._meet(step, position, view)

    def _rounds(self, step: Step) -> bool:
        """True if a step changes a number, by conversion to another dtype."""
        before, after = (self.program.shapes[slots[0]].dtype for slots in (step.inputs, step.outputs))
        return before != after

    def _meet(self, step: Step, position: int, view: ParameterView) -> None:
        passes, meets = _PASSES.get(step.name), _MEETINGS.get(step.name)
        passed = None if passes is None else passes(self, step, position, view)
        if passed is not None:
            for slot, new in zip(step.outputs, passed, strict=True):
                self.views[slot] = (*self.views.get(slot, ()), *new)
            return
        if self.is_complex(step.outputs[0]):
            return self.direct(view, "it enters complex numbers")
        met = None if meets is None or view.spread else meets(self, step, position, view)
        if met is not None:
            self._met(view.leaf)
            self.uses[view.leaf].append(Use(len(self.program.steps) - 1, met[1], view, met[0]))
        else:
            # Biases and gains are no larger than the data they meet, so a product of two factors gains nothing.
            on_data = any(self.on_data(slot) for index, slot in enumerate(step.inputs) if index != position)
            self.direct(view, None if step.name in _ELEMENTWISE and on_data else _reason(step))

    def direct(self, view: ParameterView, reason: str | None) -> None:
        """Takes the derivative of a leaf directly; the reason is None if this costs no more."""
        self._met(view.leaf)
        self.straight.add(view.leaf)
        if reason is not None:
            self.reasons.setdefault(view.leaf, reason)

    def _met(self, leaf: int) -> None:
        if leaf not in self.order:
            self.order.append(leaf)

    # --- queries of the rules

    def shape(self, slot: int) -> tuple[int, ...]:
        return self.program.shapes[slot].shape

    def number(self, slot: int) -> int | None:
        """The slot of the one number that fills this slot; None if several do."""
        return self.numbers.get(slot, slot) if slot in self.numbers or math.prod(self.shape(slot)) == 1 else None

    def is_complex(self, slot: int) -> bool:
        """True if a slot holds complex numbers, for which a real parameter has no Gram.

        The derivative with respect to a real parameter that meets them is the real part of a product.
        """
        return bool(jnp.issubdtype(self.program.shapes[slot].dtype, jnp.complexfloating))

    def on_data(self, slot: int) -> bool:
        return slot in self.data


def _reason(step: Step) -> str | None:
    if step.name == "scan":  # in a shorter one, derivatives by sample cost less than Grams of all pairs of steps
        steps = step.params["steps"]
        return None if steps <= LONGEST_SCAN else f"it enters a scan of {steps} steps; at most {LONGEST_SCAN} are read"
    if step.name.startswith("custom_"):
        return f"it enters {step.name}, whose derivative is a rule of its own"
    return f"it enters {step.name}"


# --- what leaves a parameter a parameter: each rule gives the new views per output, or None if it does not apply

_Views = list[tuple[ParameterView, ...]]
_RESHAPED = ("broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy")


def _same(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    del position
    return [(view,) if index == 0 else () for index in range(len(step.outputs))]


def _barrier(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    return [(view,) if index == position else () for index in range(len(step.outputs))]


def _negative(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    return [(view._replace(sign=-view.sign),)]


def _transpose(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    return [(view if view.spread else view.transposed(tuple(step.params["permutation"])),)]


def _reshape(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views | None:
    # With `dimensions` a reshape transposes first, which the move would omit.
    if step.name == "reshape" and step.params.get("dimensions") is not None:
        return None
    return [(view if view.spread else view.moved("reshape", found.shape(step.outputs[0])),)]


def _broadcast(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views | None:
    if position != 0:
        return None
    shape = found.shape(step.outputs[0])
    if view.spread or math.prod(shape) != math.prod(found.shape(step.inputs[0])):
        # An entry of the parameter is now in several places, so the result is not a rearrangement.
        return [(view._replace(spread=True),)]
    # The same number of entries: only axes of size 1 are new, and `broadcast_in_dim` keeps the order of the rest.
    return [(view.moved("reshape", shape),)]


def _slice(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    if view.spread:
        return [(view,)]
    return [(view.moved("slice", *(step.params[name] for name in ("start_indices", "limit_indices", "strides"))),)]


def _split(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    if view.spread:
        return [(view,) for _ in step.outputs]
    shape, axis, start, parts = list(found.shape(step.inputs[0])), step.params["axis"], 0, []
    for size in map(int, step.params["sizes"]):
        starts, limits = [0] * len(shape), list(shape)
        starts[axis], limits[axis] = start, start + size
        parts.append((view.moved("slice", tuple(starts), tuple(limits), None),))
        start += size
    return parts


def _reverse(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views:
    return [(view if view.spread else view.moved("rev", tuple(step.params["dimensions"])),)]


def _sum(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views | None:
    """Passes a parameter through a sum with a value that does not depend on data, which only shifts it."""
    if view.spread or found.on_data(step.inputs[1 - position]):
        return None
    if found.shape(step.inputs[position]) != found.shape(step.outputs[0]):
        return None
    return [(view._replace(sign=-view.sign) if step.name == "sub" and position == 1 else view,)]


def _multiple(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Views | None:
    number = found.number(step.inputs[1 - position])
    # A number over a parameter is not linear in the parameter.
    if view.spread or number is None or (step.name == "div" and position == 1):
        return None
    if found.shape(step.inputs[position]) != found.shape(step.outputs[0]):
        return None
    if number in found.views and any(one.leaf == view.leaf for one in found.views[number]):
        return None  # a number times itself
    return [(view.scaled(number, -1 if step.name == "div" else 1),)]


_PASSES: dict[str, Callable[..., _Views | None]] = {
    **dict.fromkeys(("convert_element_type", "copy", "copy_p", "name", "reduce_precision"), _same),
    **dict.fromkeys(("sharding_constraint", "pvary", "mesh_cast"), _same),
    "optimization_barrier": _barrier,
    "neg": _negative,
    "transpose": _transpose,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "split": _split,
    "rev": _reverse,
    **dict.fromkeys(("add", "sub", "add_any"), _sum),
    **dict.fromkeys(("mul", "div"), _multiple),
}
_ELEMENTWISE = ("add", "sub", "add_any", "mul", "div")


# --- where a parameter meets data: each rule gives the contraction and the slot of the operand, or None

_Contraction = tuple[AbstractContraction, int] | None


def _dot(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Contraction:
    left, right = (found.shape(slot) for slot in step.inputs)
    return dot(step.params["dimension_numbers"], position, left, right, view), step.inputs[1 - position]


def _conv(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Contraction:
    contraction = conv(step.params, found.shape(step.outputs[0]), view) if position == 1 else None
    return None if contraction is None else (contraction, step.inputs[0])


def _gather(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Contraction:
    contraction = lookup(step.params, found.shape(step.outputs[0]), view) if position == 0 else None
    return None if contraction is None else (contraction, step.inputs[1])


def _dynamic_slice(found: _UseFinder, step: Step, position: int, view: ParameterView) -> _Contraction:
    contraction = row(step.params["slice_sizes"], view) if position == 0 else None
    return None if contraction is None else (contraction[0], step.inputs[1 + contraction[1]])


_MEETINGS: dict[str, Callable[..., _Contraction]] = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
}
