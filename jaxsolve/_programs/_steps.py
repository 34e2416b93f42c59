"""A program as a flat list of steps, to be looked through in both directions and to be run in parts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from ._equations import rebound


class Step(NamedTuple):
    """One operation: reads values from slots, and writes others."""

    name: str
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: Callable[..., Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Steps:
    """A list of steps that is being written.

    Its methods are rules for `read`, where the value of a variable is its slot.

    Attributes:
        steps: in the order in which they run.
        values: what is known beforehand, by slot.
        shapes: of every slot.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    values: dict[int, Any] = dataclasses.field(default_factory=dict)
    shapes: list[Any] = dataclasses.field(default_factory=list)

    def slot(self, shape: Any) -> int:
        """A new slot, for a value of this shape and dtype."""
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def constant(self, value: Any) -> int:
        """The slot of a value that is known."""
        slot = self.slot(jax.typeof(value))
        self.values[slot] = value
        return slot

    def apply(self, eqn: Any, inputs: Sequence[int]) -> tuple[int, ...]:
        """The slots of what an equation returns, which becomes a step."""
        shapes = [var.aval for var in eqn.outvars]
        return self.add(eqn.primitive.name, eqn.params, inputs, shapes, rebound(eqn)).outputs

    def add(
        self, name: str, params: dict[str, Any], inputs: Sequence[int], shapes: Sequence[Any], call: Callable[..., Any]
    ) -> Step:
        """The step that calls a function, which is added to the list."""
        step = Step(name, params, tuple(inputs), tuple(map(self.slot, shapes)), call)
        self.steps.append(step)
        return step
