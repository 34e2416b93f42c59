"""A function of parameters and one sample as a flat list of steps, its calls entered and short scans unrolled."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array, PyTree

from .._programs import CALLS, inside, rebound, scan_counts


# A scan of more steps, with those of scans around it, is not unrolled: programs grow with them, and so does the time to
# compile. Where each step has parameters of its own, as in a scan over layers, that is all.
LONGEST_SCAN = 64
# Where all steps share most parameters, each use of them meets each other one: from 16 steps on, their derivative by
# sample was as fast or faster for LSTMs and GRUs of any width (16 to 256), at 8 for narrow ones only.
LONGEST_SHARED = 8


class Step(NamedTuple):
    """One operation: reads values from slots, and writes others."""

    name: str
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: Callable[..., Sequence[Any]]


class Program(NamedTuple):
    """A function (parameters, sample) -> output.

    Attributes:
        steps: in the order in which they run.
        values: what is known beforehand, by slot.
        shapes: of every slot.
        leaves, sample, output: the slots of the parameters, of the sample and of the output.
    """

    steps: list[Step]
    values: dict[int, Any]
    shapes: list[jax.ShapeDtypeStruct]
    leaves: list[int]
    sample: int
    output: int


@runtime_checkable
class Watcher(Protocol):
    """Follows a program while it is made."""

    def begin(self, program: Program) -> None:
        """Before the first step: of the program only the slots of parameters and sample are known."""

    def enters(self, slots: Sequence[int]) -> bool:
        """Whether a call with these inputs is to be entered."""
        ...

    def see(self, step: Step) -> None:
        """A step that has been added."""


def trace(f: Callable[[PyTree, Array], Array], params: PyTree, x: jax.ShapeDtypeStruct, watcher: Watcher) -> Program:
    """The program of f, of which parameters and the sample may be known by their shapes only."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    closed = jax.make_jaxpr(f)(shapes, x)
    return _Writer(watcher).write(closed, len(jax.tree.leaves(shapes)))


class _Writer:
    def __init__(self, watcher: Watcher):
        self.watcher = watcher
        self.steps: list[Step] = []
        self.values: dict[int, Any] = {}
        self.shapes: list[jax.ShapeDtypeStruct] = []
        self.within = self.sharing = 1  # steps of the scans that are being unrolled, multiplied: all, and that share

    def write(self, closed: ClosedJaxpr, leaves: int) -> Program:
        jaxpr = closed.jaxpr
        slots = [self._slot(var.aval) for var in jaxpr.invars]
        program = Program(self.steps, self.values, self.shapes, slots[:leaves], slots[leaves], -1)
        self.watcher.begin(program)
        (output,) = self._inline(jaxpr, closed.consts, slots)
        return program._replace(output=output)

    def _slot(self, aval: Any) -> int:
        self.shapes.append(aval)
        return len(self.shapes) - 1

    def _constant(self, value: Any) -> int:
        slot = self._slot(jax.typeof(value))
        self.values[slot] = value
        return slot

    def _inline(self, jaxpr: Any, consts: Sequence[Any], slots: Sequence[int]) -> list[int]:
        """Adds all equations of a program whose inputs are these slots; returns those of its outputs."""
        known = dict(zip(jaxpr.invars, slots, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            known[var] = self._constant(value)
        read = lambda var: self._literal(var) if isinstance(var, Literal) else known[var]
        for eqn in jaxpr.eqns:
            inputs = [read(var) for var in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, inputs), strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _literal(self, literal: Any) -> int:
        slot = self._slot(literal.aval)
        self.values[slot] = np.asarray(literal.val, literal.aval.dtype)
        return slot

    def _equation(self, eqn: Any, inputs: list[int]) -> list[int]:
        name = eqn.primitive.name
        if self.watcher.enters(inputs):
            if name in CALLS:
                inner = next(inside(eqn))
                return self._inline(inner.jaxpr, inner.consts, inputs)
            if name == "scan":
                return self._scan(eqn, inputs)
        return self._add(name, eqn.params, inputs, [var.aval for var in eqn.outvars], rebound(eqn))

    def _add(self, name: str, params: dict[str, Any], inputs: list[int], shapes: Any, call: Any) -> list[int]:
        outputs = [self._slot(shape) for shape in shapes]
        step = Step(name, params, tuple(inputs), tuple(outputs), call)
        self.steps.append(step)
        self.watcher.see(step)
        return outputs

    def _scan(self, eqn: Any, inputs: list[int]) -> list[int]:
        """A scan, unrolled if it is short."""
        rows = sum(scan_counts(eqn))
        size = lambda slots: sum(math.prod(self.shapes[slot].shape) for slot in slots if self.watcher.enters([slot]))
        around = self.within, self.sharing
        self.within *= eqn.params["length"]
        self.sharing *= eqn.params["length"] if size(inputs[:rows]) > size(inputs[rows:]) else 1
        if self.within <= LONGEST_SCAN and self.sharing <= LONGEST_SHARED:
            found = self._unroll(eqn, inputs)
        else:
            params = eqn.params | {"steps": self.within}
            found = self._add("scan", params, inputs, [var.aval for var in eqn.outvars], rebound(eqn))
        self.within, self.sharing = around
        return found

    def _unroll(self, eqn: Any, inputs: list[int]) -> list[int]:
        """The steps of a scan, one after the other."""
        length, (fixed, carried) = eqn.params["length"], scan_counts(eqn)
        consts, carry, rows = inputs[:fixed], inputs[fixed : fixed + carried], inputs[fixed + carried :]
        body, order = eqn.params["jaxpr"], range(length)
        stacked: list[list[int]] = [[] for _ in range(len(eqn.outvars) - carried)]
        for index in reversed(order) if eqn.params["reverse"] else order:
            outputs = self._inline(body.jaxpr, body.consts, [*consts, *carry, *[self._row(row, index) for row in rows]])
            carry = outputs[:carried]
            for found, output in zip(stacked, outputs[carried:], strict=True):
                found.append(output)
        stack = lambda *values: [jnp.stack(values)]
        ends = []
        for found, var in zip(stacked, eqn.outvars[carried:], strict=True):
            in_order = found[::-1] if eqn.params["reverse"] else found
            ends += self._add("stack", {}, in_order, [var.aval], stack) if found else [self._empty(var.aval)]
        return [*carry, *ends]

    def _empty(self, aval: Any) -> int:
        return self._constant(jnp.zeros(aval.shape, aval.dtype))

    def _row(self, slot: int, index: int) -> int:
        shape = self.shapes[slot].shape
        starts, limits = (index, *[0] * (len(shape) - 1)), (index + 1, *shape[1:])
        aval = jax.ShapeDtypeStruct((1, *shape[1:]), self.shapes[slot].dtype)
        params = {"start_indices": starts, "limit_indices": limits, "strides": None}
        (part,) = self._add("slice", params, [slot], [aval], lambda value: [jax.lax.slice(value, starts, limits)])
        row = jax.ShapeDtypeStruct(shape[1:], aval.dtype)
        (out,) = self._add("squeeze", {"dimensions": (0,)}, [part], [row], lambda value: [jnp.squeeze(value, 0)])
        return out
