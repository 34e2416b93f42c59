"""The tensors inside any network: products of data with its weights, found in the program that JAX traces.

Every product of data with a parameter (a matrix, a convolution, an embedding lookup, a weighted sum of entries) is
tapped after the operations that only scale, shift or reshape it, such as multipliers and biases. Products of data with
data, as in attention, are also tapped. Scans of up to 64 steps are unrolled.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PyTree

from .._numerics import Inputs
from .._programs import called, read, Rules, Step, Steps, unrolled


_PRODUCTS = {"dot_general", "conv_general_dilated", "gather"}
_OF_TWO = {"dot_general", "conv_general_dilated"}
_SHAPES = {"convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim", "copy", "expand_dims"}
AFFINE = {"mul", "div", "add", "sub", "neg", "add_any", *_SHAPES}
_PARTS = {"concatenate", "slice", "dynamic_slice", "rev", "pad"}
_NOT_ENTERED = ("scan", "while", "cond")


class Product(NamedTuple):
    """A product of data with parameters.

    Attributes:
        name: the name of the parameters.
        step: the operation, a matrix product or a convolution.
        weights, data: the slots of the two factors.
        given: whether the data are the network's inputs, possibly joined, scaled, shifted or reshaped.
        below: the slots of the products that the data depend on with no other product in between.
    """

    name: str
    step: Step
    weights: int
    data: int
    given: bool
    below: frozenset[int]


class TappedProgram(NamedTuple):
    """A network's program as one list of operations, and the values to tap.

    Attributes:
        steps: the operations; slots 0, 1, ... hold the inputs.
        names: the names of the tapped values.
        tapped: the slots of the tapped values.
        hidden: names of operations that take parameters and were not entered, such as `scan`.
        products: the products of data with parameters.
        read_outs: for every tapped value, whether it is an output, or part of one, and enters no other product.
    """

    steps: Steps
    names: tuple[str, ...]
    tapped: tuple[int, ...]
    hidden: tuple[str, ...]
    products: tuple[Product, ...]
    read_outs: tuple[bool, ...]


def read_program(f: Callable[[PyTree, Inputs], Array], params: PyTree, x: Inputs) -> TappedProgram:
    """The program of f(params, x), and where to tap it.

    Arguments:
        f: the network on a batch.
        params: the parameters; their paths in the tree name the taps.
        x: the inputs.
    """
    closed, steps = jax.make_jaxpr(unrolled(f))(params, x), Steps()
    inputs = [steps.slot(var.aval) for var in closed.jaxpr.invars]
    outputs = read(closed, inputs, Rules(steps.constant, steps.apply, lambda eqn, _: called(eqn) is not None))
    paths = [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    finder = _TapFinder(steps, paths, len(inputs))
    for step in steps.steps:
        finder.see(step)
    # Only after all steps have been seen: later steps show whether a sum is a mean that is subtracted.
    found = [(label, out) for label, out in finder.products if not finder.is_centered(out)]
    names = _distinct([label.removesuffix(".weight") for label, _ in found])
    ends = tuple(finder.follow(out) for _, out in found)
    of_two = [item for item in finder.factors if item.step.name in _OF_TWO]
    labels = _distinct([item.name.removesuffix(".weight") for item in of_two])
    products = tuple(item._replace(name=label) for item, label in zip(of_two, labels, strict=True))
    entering = finder.multiplied.union(*(finder.entering[out] for _, out in found))
    reaching = frozenset[int]().union(*(finder.made_of.get(slot, ()) for slot in outputs))
    read_outs = tuple(out in reaching - entering for _, out in found)
    return TappedProgram(steps, tuple(names), ends, tuple(dict.fromkeys(finder.hidden)), products, read_outs)


class _TapFinder:
    """Finds the products of data with parameters, and of data with data.

    Attributes:
        products: the labels and slots of all products.
        factors: the products of data with parameters, with both factors.
        hidden: names of operations that take parameters and were not entered.
    """

    def __init__(self, steps: Steps, paths: list[str], inputs: int):
        self.paths, self.products, self.factors, self.hidden = paths, [], [], []
        self.known = steps.values
        self.data = set(range(len(paths), inputs))  # slots that depend on x, whose arrays are the last inputs
        self.given = set(self.data)  # data that are affine in x
        self.origin = {index: frozenset({index}) for index in range(len(paths))}  # the parameters in a value
        self.weighed: dict[int, frozenset[int]] = {}  # elementwise data times parameters
        self.shaped: dict[int, int] = {}  # the value that this one reshapes
        self.made_of: dict[int, frozenset[int]] = {}  # the products that a value depends on directly
        self.entering: dict[int, frozenset[int]] = {}  # the products that a product's data depend on
        self.multiplied: frozenset[int] = frozenset()  # the products that elementwise products depend on
        self.summands: dict[int, int] = {}  # from a sum that was taken for a product to its summands
        self.readers: dict[int, list[Step]] = {}
        for step in steps.steps:
            for slot in self._values(step):
                self.readers.setdefault(slot, []).append(step)

    def _values(self, step: Step) -> list[int]:
        """The inputs of a step that are not constants."""
        return [slot for slot in step.inputs if slot not in self.known]

    def _root(self, slot: int) -> int:
        return self.shaped.get(slot, slot)

    def see(self, step: Step) -> None:
        """Reads one step; all earlier steps must have been seen."""
        values = self._values(step)
        fed = [slot for slot in values if slot in self.data]
        weights = frozenset[int]().union(*(self.origin.get(slot, ()) for slot in values if slot not in self.data))
        if not fed:
            self.origin |= dict.fromkeys(step.outputs, weights)
            return
        self.data |= set(step.outputs)
        below = frozenset[int]().union(*(self.made_of.get(slot, ()) for slot in fed))
        self.made_of |= dict.fromkeys(step.outputs, below)
        made = {self.made_of[slot] for slot in fed if self.made_of.get(slot)}
        if step.name in ("mul", "div") and len(made) > 1:  # two towers, or a gate: an elementwise product
            self.multiplied |= below
        alike = (step.name in AFFINE and len(fed) == 1) or step.name in _PARTS
        if alike and self.given.issuperset(fed) and not weights:
            self.given |= set(step.outputs)
        self._weigh(step, fed[0], weights)
        if step.name == "reduce_sum":
            self._sum(step, fed[0], weights)
        elif step.name in _PRODUCTS and weights or len(fed) == 2 and step.name == "dot_general":
            self._product(step, weights)
        elif step.name in _NOT_ENTERED and weights:
            self.hidden.append(step.name)

    def _weigh(self, step: Step, fed: int, weights: frozenset[int]) -> None:
        """Tracks elementwise products of data and parameters until they are summed."""
        if step.name == "mul" and weights:
            self.weighed[step.outputs[0]] = weights
        elif step.name in _SHAPES and fed in self.weighed:
            self.weighed[step.outputs[0]] = self.weighed[fed]
            self.shaped[step.outputs[0]] = self._root(fed)

    def _sum(self, step: Step, fed: int, weights: frozenset[int]) -> None:
        weights = self.weighed.get(fed, weights)
        if weights:
            self._product(step, weights)
            self.summands[step.outputs[0]] = self._root(fed)

    def _product(self, step: Step, weights: frozenset[int]) -> None:
        label = " and ".join(self.paths[index] for index in sorted(weights)) or "product of activations"
        out = step.outputs[0]
        self.products.append((label, out))
        self.entering[out] = self.made_of[out]
        self.made_of[out] = frozenset({out})
        fed = [slot for slot in step.inputs if slot in self.data]
        rest = [slot for slot in step.inputs if slot not in self.data]
        if weights and len(fed) == len(rest) == 1:
            self.factors.append(Product(label, step, rest[0], fed[0], fed[0] in self.given, self.entering[out]))

    def is_centered(self, out: int) -> bool:
        """True if a product is the sum in a mean that is subtracted from its summands, as in a normalization layer."""
        if out not in self.summands:
            return False
        users = self.readers.get(self.follow(out), [])
        taken_from = [step.inputs[0] for step in users if step.name == "sub"]
        return self.summands[out] in [self._root(slot) for slot in taken_from if slot not in self.known]

    def follow(self, slot: int) -> int:
        """The last value that equals this one up to factors, shifts and shapes that do not depend on the data."""
        while (step := self._only_affine(slot)) is not None:
            (slot,) = step.outputs
        return slot

    def _only_affine(self, slot: int) -> Step | None:
        """The only step that reads a value, if it is affine in this value alone."""
        if len(readers := self.readers.get(slot, [])) != 1:  # a step that reads it twice, as a square, counts twice
            return None
        others = [other for other in self._values(readers[0]) if other != slot]
        affine = readers[0].name in AFFINE and not self.data.intersection(others)
        return readers[0] if affine else None


def _distinct(labels: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return out


def values(program: TappedProgram, params: PyTree, x: Inputs, wanted: Iterable[int] | None = None) -> dict[int, Any]:
    """The values of the program by slot: all, or those wanted and all that they depend on."""
    steps = program.steps.steps
    if wanted is not None:
        needed, kept = set(wanted), []
        for step in reversed(steps):
            if needed.intersection(step.outputs):
                needed.update(step.inputs)
                kept.append(step)
        steps = kept[::-1]
    held = program.steps.values | dict(enumerate([*jax.tree.leaves(params), *jax.tree.leaves(x)]))
    for step in steps:
        held |= zip(step.outputs, step.call(*(held[slot] for slot in step.inputs)), strict=True)
    return held


def run_program(program: TappedProgram, params: PyTree, x: Inputs) -> list[Array]:
    """The tapped values."""
    held = values(program, params, x)
    return [held[slot] for slot in program.tapped]
