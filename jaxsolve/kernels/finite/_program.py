"""A function of parameters and one sample as a flat list of steps, with calls entered and short scans unrolled."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array, PyTree

from ..._programs import called, CALLS, read, rebound, Rules, scan_counts, Step, Steps, write_out


# A scan of more steps, multiplied by those of enclosing scans, is not unrolled: programs grow with the steps, and so
# does the time to compile. If each step has its own parameters, as in a scan over layers, this is the only limit.
LONGEST_SCAN = 64
# If all steps share most parameters, every use of these meets every other one. From 16 steps on, derivatives by sample
# were at least as fast for LSTMs and GRUs of any width (16 to 256); at 8 steps, for narrow ones only.
LONGEST_SHARED = 8


class NetworkProgram(NamedTuple):
    """A function (parameters, sample) -> output.

    Attributes:
        steps: the steps, in the order in which they run.
        values: the constants, by slot.
        shapes: the shape and dtype of every slot.
        leaves, sample, output: the slots of the parameters, of the arrays of the sample and of the output.
    """

    steps: list[Step]
    values: dict[int, Any]
    shapes: list[jax.ShapeDtypeStruct]
    leaves: list[int]
    sample: list[int]
    output: int


def trace(
    f: Callable[[PyTree, Any], Array], params: PyTree, x: PyTree[jax.ShapeDtypeStruct]
) -> tuple[ClosedJaxpr, NetworkProgram]:
    """The traced function, and its program before the first step, with slots for parameters and sample only.

    The parameters and the sample may be given as shapes only.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    closed, steps = jax.make_jaxpr(f)(shapes, x), Steps()
    slots, count = [steps.slot(var.aval) for var in closed.jaxpr.invars], len(jax.tree.leaves(shapes))
    return closed, NetworkProgram(steps.steps, steps.values, steps.shapes, slots[:count], slots[count:], -1)


class Writer:
    """Writes a program that `trace` has begun.

    Arguments:
        program: the program, without steps.
        moves: whether a parameter is among some slots; a call or scan that none enters is one step.
        see: called with each step as it is written, so that `moves` stays current.
    """

    def __init__(self, program: NetworkProgram, moves: Callable[[Sequence[int]], bool], see: Callable[[Step], None]):
        self.program, self.moves, self.see = program, moves, see
        self.steps = Steps(program.steps, program.values, program.shapes)
        self.rules = Rules(self.steps.constant, self._apply, self._enters)
        self.within = self.sharing = 1  # products of the lengths of scans being unrolled: all, and that share

    def write(self, closed: ClosedJaxpr) -> NetworkProgram:
        """The program with all of its steps."""
        (output,) = read(closed, [*self.program.leaves, *self.program.sample], self.rules)
        return self.program._replace(output=output)

    def _enters(self, eqn: Any, inputs: Sequence[int]) -> bool:
        return self.moves(inputs) and called(eqn, CALLS) is not None

    def _apply(self, eqn: Any, inputs: list[int]) -> Sequence[int]:
        if eqn.primitive.name == "scan" and self.moves(inputs):
            return self._scan(eqn, inputs)
        return self._add(eqn.primitive.name, eqn.params, inputs, [var.aval for var in eqn.outvars], rebound(eqn))

    def _add(self, name: str, params: dict[str, Any], inputs: Sequence[int], shapes: Any, call: Any) -> tuple[int, ...]:
        step = self.steps.add(name, params, inputs, shapes, call)
        self.see(step)
        return step.outputs

    def _scan(self, eqn: Any, inputs: list[int]) -> Sequence[int]:
        """A scan, unrolled if it is short."""
        # Constants and carry come first, and are shared by all steps; the other inputs have one row per step.
        rows = sum(scan_counts(eqn))
        size = lambda slots: sum(math.prod(self.steps.shapes[slot].shape) for slot in slots if self.moves([slot]))
        around = self.within, self.sharing
        self.within *= eqn.params["length"]
        self.sharing *= eqn.params["length"] if size(inputs[:rows]) > size(inputs[rows:]) else 1
        if self.within <= LONGEST_SCAN and self.sharing <= LONGEST_SHARED:
            found = write_out(eqn, inputs, self.rules, self._row, self._stack)
        else:
            params = eqn.params | {"steps": self.within}
            found = self._add("scan", params, inputs, [var.aval for var in eqn.outvars], rebound(eqn))
        self.within, self.sharing = around
        return found

    def _stack(self, slots: list[int], aval: Any) -> int:
        # A scan of length 0 gives empty arrays, with nothing to stack.
        if not slots:
            return self.steps.constant(jnp.zeros(aval.shape, aval.dtype))
        (out,) = self._add("stack", {}, slots, [aval], lambda *values: [jnp.stack(values)])
        return out

    def _row(self, slot: int, index: int) -> int:
        shape = self.steps.shapes[slot].shape
        starts, limits = (index, *[0] * (len(shape) - 1)), (index + 1, *shape[1:])
        aval = jax.ShapeDtypeStruct((1, *shape[1:]), self.steps.shapes[slot].dtype)
        # As a slice and a squeeze, for which `_uses` has rules, a row of a parameter is recognized as a part of it.
        params = {"start_indices": starts, "limit_indices": limits, "strides": None}
        (part,) = self._add("slice", params, [slot], [aval], lambda value: [jax.lax.slice(value, starts, limits)])
        row = jax.ShapeDtypeStruct(shape[1:], aval.dtype)
        (out,) = self._add("squeeze", {"dimensions": (0,)}, [part], [row], lambda value: [jnp.squeeze(value, 0)])
        return out
