"""The tensors inside any network: what its weights make of the data, found in the program that JAX traces.

Every product of data with a parameter (a matrix, a convolution, an embedding that is looked up, a sum of entries times
weights) is tapped, after what only scales, shifts or reshapes it: multipliers and biases. So is every product of data
with data, as in attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from .._programs import CALLS, inside, rebound


_ENTERED = (*CALLS, "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_PRODUCTS = {"dot_general", "conv_general_dilated", "gather"}
_SHAPES = {"convert_element_type", "reshape", "transpose", "squeeze", "broadcast_in_dim", "copy", "expand_dims"}
_AFFINE = {"mul", "div", "add", "sub", "neg", "add_any", *_SHAPES}


class _Constant(NamedTuple):
    """A value that is known."""

    value: Any


class _Step(NamedTuple):
    """One operation: numbers stand for values."""

    equation: Any
    inputs: list[Any]
    outputs: list[int]


class Program(NamedTuple):
    """A network's program in one list, and the values to tap.

    Attributes:
        steps: the operations; the values 0, 1, ... are the inputs.
        names: of the tapped values.
        tapped: their numbers.
        hidden: names of operations that hold parameters and were not looked into, such as `scan`.
    """

    steps: list[_Step]
    names: tuple[str, ...]
    tapped: tuple[int, ...]
    hidden: tuple[str, ...]


def read_program(f: Callable[[PyTree, Array], Array], params: PyTree, x: Array) -> Program:
    """The program of f(params, x), and where to tap it.

    Arguments:
        f: the network on a batch.
        params: the parameters, whose places in the tree name the taps.
        x: inputs.
    """
    closed = jax.make_jaxpr(f)(params, x)
    paths = [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    count = len(closed.jaxpr.invars)
    steps: list[_Step] = []
    numbers = iter(range(count, 1 << 62))
    _inline(closed.jaxpr, closed.consts, list(range(count)), steps, numbers)
    return _with_taps(steps, count, paths)


def _inline(jaxpr: Any, constants: Any, inputs: list[Any], steps: list[_Step], numbers: Any) -> list[Any]:
    """Appends the operations of a program, those of programs that it calls included; returns its outputs."""
    known = dict(zip(jaxpr.constvars, map(_Constant, constants), strict=True))
    known |= dict(zip(jaxpr.invars, inputs, strict=True))
    read = lambda atom: _Constant(atom.val) if isinstance(atom, Literal) else known[atom]
    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        inner = _called(equation)
        if inner is not None:
            outputs = _inline(*inner, given, steps, numbers)
        else:
            outputs = [next(numbers) for _ in equation.outvars]
            steps.append(_Step(equation, given, outputs))
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _called(equation: Any) -> tuple[Any, Any] | None:
    """The program that an operation does no more than call, and its constants."""
    program = next(inside(equation), None) if equation.primitive.name in _ENTERED else None
    if program is None or len(program.jaxpr.invars) != len(equation.invars):
        return None
    return program.jaxpr, program.consts


def _with_taps(steps: list[_Step], count: int, paths: list[str]) -> Program:
    data = {count - 1}  # what depends on x, the last input
    origin: dict[int, frozenset[int]] = {index: frozenset({index}) for index in range(count - 1)}
    readers: dict[int, list[_Step]] = {}
    for step in steps:
        for atom in step.inputs:
            if not isinstance(atom, _Constant):
                readers.setdefault(atom, []).append(step)
    found: list[tuple[str, int]] = []
    shaped: dict[int, int] = {}  # what a value is another shape of
    summands: dict[int, int] = {}  # by the sum that was taken for a product
    weighed: dict[int, frozenset[int]] = {}  # data times parameters, entry by entry: what a sum makes a product
    hidden: list[str] = []

    def root(value: int) -> int:
        return shaped.get(value, value)

    for step in steps:
        values = [atom for atom in step.inputs if not isinstance(atom, _Constant)]
        fed = [atom for atom in values if atom in data]
        weights = frozenset().union(*(origin.get(atom, frozenset()) for atom in values if atom not in data))
        if not fed:
            origin |= {out: weights for out in step.outputs}
            continue
        data |= set(step.outputs)
        name, summed = step.equation.primitive.name, weighed.get(fed[0], frozenset())
        if name == "mul" and weights:
            weighed[step.outputs[0]] = weights
        elif name in _SHAPES and summed:
            weighed[step.outputs[0]], shaped[step.outputs[0]] = summed, root(fed[0])
        weights = summed if name == "reduce_sum" and summed else weights
        if (name in _PRODUCTS or name == "reduce_sum") and weights or len(fed) == 2 and name == "dot_general":
            label = " and ".join(paths[index] for index in sorted(weights)) or "product of activations"
            found.append((label, step.outputs[0]))
            if name == "reduce_sum":
                summands[step.outputs[0]] = root(fed[0])
        elif name in ("scan", "while", "cond") and weights:
            hidden.append(name)

    def centres(out: int) -> bool:
        """Whether a sum is that of a mean, as norms have it: it is subtracted from what it is the sum of."""
        users = readers.get(_follow(out, readers, data), []) if out in summands else []
        taken_from = [step.inputs[0] for step in users if step.equation.primitive.name == "sub"]
        return summands.get(out) in [root(atom) for atom in taken_from if not isinstance(atom, _Constant)]

    found = [(label, out) for label, out in found if not centres(out)]
    ends = [_follow(out, readers, data) for _, out in found]
    names = _distinct([label.removesuffix(".weight") for label, _ in found])
    return Program(steps, tuple(names), tuple(ends), tuple(dict.fromkeys(hidden)))


def _follow(value: int, readers: dict[int, list[_Step]], data: set[int]) -> int:
    """The last value that is this one up to factors, shifts and shapes, none of which depend on the data."""
    while len(readers.get(value, [])) == 1:
        (step,) = readers[value]
        others = [atom for atom in step.inputs if not isinstance(atom, _Constant) and atom != value]
        if step.equation.primitive.name not in _AFFINE or any(atom in data for atom in others):
            break
        if sum(atom == value for atom in step.inputs if not isinstance(atom, _Constant)) > 1:
            break  # its own square
        (value,) = step.outputs
    return value


def _distinct(labels: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    out = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        out.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return out


def run_program(program: Program, params: PyTree, x: Array) -> list[Array]:
    """The tapped values."""
    known = dict(enumerate([*jax.tree.leaves(params), x]))
    read = lambda atom: atom.value if isinstance(atom, _Constant) else known[atom]
    for step in program.steps:
        known |= dict(zip(step.outputs, rebound(step.equation)(*map(read, step.inputs)), strict=True))
    return [known[number] for number in program.tapped]


def root_mean_square(values: Array) -> Array:
    """The size of a typical entry."""
    return jnp.sqrt(jnp.mean(jnp.asarray(values) ** 2))
