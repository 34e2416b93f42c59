"""Units with kinks, such as relu units, found in the program of any network."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt

from .._core import Problem
from .._programs import Step
from ._taps import AFFINE, TappedProgram


_ABOVE, _BELOW = {"max", "gt", "ge"}, {"min", "lt", "le"}
_KINKS = {*_ABOVE, *_BELOW, "abs", "sign", "clamp"}
_SMOOTH = {"exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sqrt", "rsqrt", "cbrt", "pow"}
_SMOOTH |= {"sin", "cos", "tan"}


class KinkedUnits(NamedTuple):
    """The units with kinks of one layer.

    Attributes:
        kinks: the operations that compare the units' values; several for activations such as `jax.nn.hard_tanh`.
    """

    kinks: tuple[Step, ...]

    @property
    def inputs(self) -> set[int]:
        """The slots of the values compared."""
        return {slot for step in self.kinks for slot in step.inputs}

    def pattern(self, held: dict[int, Any]) -> UInt[Array, "..."]:
        """A number for every unit that encodes the side of each of its kinks."""
        code = jnp.zeros((), jnp.uint8 if len(self.kinks) <= 4 else jnp.uint32)  # two bits each
        for step in self.kinks:
            for side in _sides(step.name, *(jnp.asarray(held[slot]) for slot in step.inputs)):
                code = 2 * code + side.astype(code.dtype)
        return code


def _sides(name: str, one: Array, *others: Array) -> list[Bool[Array, "..."]]:
    if name == "clamp":
        value, most = others
        return [value > one, value < most]
    other = others[0] if others else jnp.zeros((), one.dtype)
    return [one < other if name in _BELOW else one > other]


def kinked_units(program: TappedProgram, problem: Problem) -> list[KinkedUnits]:
    """All units with kinks, in the order of the program.

    A kink is an elementwise maximum, absolute value or comparison of values that depend on both inputs and parameters.
    It does not count if a smooth function such as the exponential is applied to the same entries, up to factors and
    shifts, as in softplus or elu, whose kinks cancel.
    """
    arrays, inputs = (len(jax.tree.leaves(tree)) for tree in (problem.params, problem.x))
    weighed, data = set(range(arrays)), set(range(arrays, arrays + inputs))
    roots: dict[int, int] = {}  # the value that this one is an elementwise function of
    kinks: dict[tuple[int, tuple[int, ...]], list[Step]] = {}
    smooth: set[int] = set()
    for step in program.steps.steps:
        moving = [slot for slot in step.inputs if slot in weighed and slot in data]
        weighed |= set(step.outputs) if weighed.intersection(step.inputs) else set()
        data |= set(step.outputs) if data.intersection(step.inputs) else set()
        found = {roots.get(slot, slot) for slot in moving}
        if step.name in _SMOOTH:
            smooth |= found
        one_root = len(found) == 1 and data.isdisjoint(set(step.inputs) - set(moving))
        if one_root and (step.name in AFFINE or step.name in _KINKS or step.name == "select_n"):
            roots |= dict.fromkeys(step.outputs, *found)
        # A softmax compares its largest entry with -inf, which is not a kink.
        bound = any(
            np.all(np.isinf(of)) for slot in step.inputs if isinstance(of := program.steps.values.get(slot), np.ndarray)
        )
        if moving and step.name in _KINKS and not bound:
            # If two different values are compared, as in maxout, no other kink belongs to the same units.
            root = min(found) if len(found) == 1 else step.outputs[0]
            kinks.setdefault((root, program.steps.shapes[step.outputs[0]].shape), []).append(step)
    return [KinkedUnits(tuple(steps)) for (root, _), steps in kinks.items() if root not in smooth]
