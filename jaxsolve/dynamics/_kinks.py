"""Where gradient flow is only piecewise smooth."""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import Literal

from .. import losses, nets
from .._problem import Problem
from .._programs import inside, scan_counts


def kinked(problem: Problem) -> bool:
    """Whether the velocity is known to have kinks or jumps: of the activation, or of the loss."""
    if isinstance(problem.loss, losses.Hinge | losses.QuadraticHinge):
        return True
    if isinstance(problem.net, nets.AbstractLayered):
        found = [layer.activation for layer in _applied(problem.net.layers)]
        if all(one.known for one in found):
            return any(one.kinked for one in found)
    return _bends(problem)


def _applied(layers: nets.Layers) -> Iterator[nets.Apply]:
    for layer in layers:
        if isinstance(layer, nets.Residual):
            yield from _applied((*layer.branch, *layer.shortcut))
        elif isinstance(layer, nets.Apply):
            yield layer


def _bends(problem: Problem) -> bool:
    """Whether the derivative of the outputs of a network of unknown layers jumps, as its jaxpr says."""
    arrays, static = eqx.partition(problem, eqx.is_array)

    def slope(arrays: Any, params: Any, direction: Any) -> Any:
        whole: Problem = eqx.combine(arrays, static)
        return jax.jvp(whole.outputs, (params,), (direction,))[1]

    params = problem.params
    jaxpr = jax.make_jaxpr(slope)(arrays, params, params).jaxpr
    moving = len(jax.tree.leaves(params))
    given = [_Known()] * (len(jaxpr.invars) - 2 * moving)
    state = _Known(moves=True)
    outputs = _read(jaxpr, [*given, *[state] * moving, *[state._replace(tangent=True)] * moving])
    return any(known.bent for known in outputs)


class _Known(NamedTuple):
    """What is known of a value.

    Attributes:
        moves: it depends on the parameters.
        tangent: it depends on their direction, too.
        mask: it jumps where parameters pass a point: "order" of <, sign and their kin; "equal" of ==, by which the
            derivative of a maximum tells its operands apart, and safe divisions their zeros.
        positive: it is never negative, so that its sign, its absolute value and its maximum with 0 are smooth.
        value: of a number that is written in the program, such as the samples by which a variance is divided.
        bent: its direction has met a jump.
    """

    moves: bool = False
    tangent: bool = False
    mask: str = ""
    positive: bool = False
    value: float | None = None
    bent: bool = False


_PASSING = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "copy", "not", "and", "or")
_POSITIVE = ("exp", "square", "abs", "logistic", "exp2")
_KEEPING = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "copy", "reduce_sum", "add")
_KEEPING += ("mul", "div", "sqrt", "rsqrt", "reduce_max", "dynamic_slice", "slice", "select_n")

_OF_NUMBERS = {"convert_element_type": lambda a: a, "sub": operator.sub, "add": operator.add, "mul": operator.mul}


def _read(jaxpr: Any, given: list[_Known]) -> list[_Known]:
    """What is known of the outputs."""
    known: dict[Any, _Known] = dict(zip(jaxpr.invars, given, strict=True))

    def of(atom: Any) -> _Known:
        if isinstance(atom, Literal):
            real = getattr(atom.val, "ndim", 0) == 0 and np.asarray(atom.val).dtype.kind in "biuf"
            return _number(float(atom.val)) if real else _Known()
        return known.get(atom, _Known())

    for equation in jaxpr.eqns:
        inputs, name = [of(atom) for atom in equation.invars], equation.primitive.name
        entering = inputs[equation.params.get("cond_nconsts", 0) :]
        inner = [body for body in _bodies(equation) if len(body.invars) in (len(entering), len(entering) - 1)]
        found = _read_body(equation, inner[0], entering[len(entering) - len(inner[0].invars) :]) if inner else []
        if len(found) != len(equation.outvars):
            found = [_after(name, inputs)] * len(equation.outvars)
        known |= dict(zip(equation.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _read_body(equation: Any, body: Any, inputs: list[_Known]) -> list[_Known]:
    """What is known of the results of a program inside; of a loop, after any number of its steps."""
    found = _read(body, inputs)
    if equation.primitive.name not in ("scan", "while") or len(found) != len(equation.outvars):
        return found
    is_scan = equation.primitive.name == "scan"
    first, carried = scan_counts(equation) if is_scan else (equation.params["body_nconsts"], len(found))
    after = [_either(*pair) for pair in zip(inputs[first : first + carried], found[:carried], strict=True)]
    return _read(body, [*inputs[:first], *after, *inputs[first + carried :]])


def _either(one: _Known, two: _Known) -> _Known:
    moves, tangent, bent = (getattr(one, name) or getattr(two, name) for name in ("moves", "tangent", "bent"))
    return _Known(moves, tangent, one.mask or two.mask, one.positive and two.positive, bent=bent)


def _number(value: float) -> _Known:
    return _Known(positive=not value < 0, value=value)


def _bodies(equation: Any) -> list[Any]:
    """The programs that an equation runs; of a loop not its condition."""
    if "body_jaxpr" in equation.params:
        return [equation.params["body_jaxpr"].jaxpr]
    return [program.jaxpr for program in inside(equation)]


def _jumps(name: str, inputs: list[_Known]) -> bool:
    if name.startswith("select_and"):  # of pooled maxima
        return True
    masks = [known.mask for known in inputs if known.mask]
    return bool(masks) and (name == "mul" or (name == "select_n" and inputs[0].mask == "order"))


def _after(name: str, inputs: list[_Known]) -> _Known:
    moves, tangent = (any(getattr(known, field) for known in inputs) for field in ("moves", "tangent"))
    if name == "stop_gradient":
        return inputs[0]
    if name in _OF_NUMBERS and all(known.value is not None for known in inputs):
        return _number(_OF_NUMBERS[name](*(known.value for known in inputs)))
    safe = all(known.positive for known in inputs[name == "select_n" :])
    mask = ""
    if moves and not tangent:
        if name in ("lt", "le", "gt", "ge", "sign"):
            mask = "" if safe else "order"
        elif name == "eq":
            mask = "" if safe else "equal"
        elif name in _PASSING or (name == "select_n" and not any(known.moves for known in inputs[1:])):
            mask = next((known.mask for known in inputs if known.mask), "")
        elif name in ("mul", "div", "select_n"):
            mask = next((known.mask for known in inputs if known.mask == "equal"), "")
    positive = name in _POSITIVE or (name in _KEEPING and safe) or (name == "max" and any(k.positive for k in inputs))
    bent = any(known.bent for known in inputs) or (tangent and _jumps(name, inputs))
    return _Known(moves, tangent, mask, positive, bent=bent)
