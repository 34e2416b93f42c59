"""A program as a flat list of steps, which can be searched in both directions and run in parts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ._equations import rebound


class Step(NamedTuple):
    """One operation, which reads some slots and writes others."""

    name: str
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: Callable[..., Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Steps:
    """A list of steps under construction.

    Its methods are rules for `read`; the value of a variable is its slot.

    Attributes:
        steps: the steps, in the order in which they run.
        values: the constants, by slot.
        shapes: the shape and dtype of each slot.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    values: dict[int, Any] = dataclasses.field(default_factory=dict)
    shapes: list[Any] = dataclasses.field(default_factory=list)

    def slot(self, shape: Any) -> int:
        """A new slot, for a value of this shape and dtype."""
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def constant(self, value: Any) -> int:
        """The slot of a constant."""
        slot = self.slot(jax.typeof(value))
        self.values[slot] = value
        return slot

    def apply(self, eqn: Any, inputs: Sequence[int]) -> tuple[int, ...]:
        """Adds an equation as a step, and returns the slots of its outputs."""
        shapes = [var.aval for var in eqn.outvars]
        return self.add(eqn.primitive.name, eqn.params, inputs, shapes, rebound(eqn)).outputs

    def add(
        self, name: str, params: dict[str, Any], inputs: Sequence[int], shapes: Sequence[Any], call: Callable[..., Any]
    ) -> Step:
        """Adds a step that calls a function, and returns the step."""
        step = Step(name, params, tuple(inputs), tuple(map(self.slot, shapes)), call)
        self.steps.append(step)
        return step
