"""Problems whose gradient flow is only piecewise smooth."""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ... import losses, nets
from ..._core import Problem
from ..._programs import read, Rules


def kinked(problem: Problem) -> bool:
    """True if the velocity is known to have kinks or jumps: of the activation, or of the loss."""
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
    """True if the derivative of the outputs of a network of unknown layers jumps, as its jaxpr says."""
    arrays, static = eqx.partition(problem, eqx.is_array)

    def slope(arrays: Any, params: Any, direction: Any) -> Any:
        whole: Problem = eqx.combine(arrays, static)
        return jax.jvp(whole.outputs, (params,), (direction,))[1]

    params = problem.params
    program = jax.make_jaxpr(slope)(arrays, params, params)
    # Inputs of the program: the arrays of the problem, then parameters, then their direction.
    moving = len(jax.tree.leaves(params))
    given = [_ValueProperties()] * (len(program.jaxpr.invars) - 2 * moving)
    state = _ValueProperties(moves=True)
    inputs = [*given, *[state] * moving, *[state._replace(tangent=True)] * moving]
    outputs = read(program, inputs, Rules(_constant, _apply, join=_either))
    return any(known.bent for known in outputs)


class _ValueProperties(NamedTuple):
    """The known properties of a value in a program.

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


_ORDERS = ("lt", "le", "gt", "ge", "sign")
_PASSING = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "copy", "not", "and", "or")
_POSITIVE = ("exp", "square", "abs", "logistic", "exp2")
_KEEPING = ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "copy", "reduce_sum", "add")
_KEEPING += ("mul", "div", "sqrt", "rsqrt", "reduce_max", "dynamic_slice", "slice", "select_n")

_OF_NUMBERS = {"convert_element_type": lambda a: a, "sub": operator.sub, "add": operator.add, "mul": operator.mul}


def _constant(value: Any) -> _ValueProperties:
    real = isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"
    return _number(float(value)) if real else _ValueProperties()


def _number(value: float) -> _ValueProperties:
    return _ValueProperties(positive=not value < 0, value=value)


def _either(one: _ValueProperties, two: _ValueProperties) -> _ValueProperties:
    moves, tangent, bent = (getattr(one, name) or getattr(two, name) for name in ("moves", "tangent", "bent"))
    return _ValueProperties(moves, tangent, one.mask or two.mask, one.positive and two.positive, bent=bent)


def _apply(equation: Any, inputs: list[_ValueProperties]) -> list[_ValueProperties]:
    return [_after(equation.primitive.name, inputs)] * len(equation.outvars)


def _after(name: str, inputs: list[_ValueProperties]) -> _ValueProperties:
    """The knowledge of an operation's result that follows from that of its inputs."""
    if name == "stop_gradient":
        return inputs[0]
    if name in _OF_NUMBERS and all(known.value is not None for known in inputs):
        return _number(_OF_NUMBERS[name](*(known.value for known in inputs)))
    moves, tangent, bent = (any(getattr(known, field) for known in inputs) for field in ("moves", "tangent", "bent"))
    # Masks are of values alone. What depends on the direction is a derivative, which a mask may meet (`_jumps`).
    mask = _mask(name, inputs) if moves and not tangent else ""
    return _ValueProperties(
        moves, tangent, mask, _is_positive(name, inputs), bent=bent or (tangent and _jumps(name, inputs))
    )


def _are_positive(name: str, inputs: list[_ValueProperties]) -> bool:
    return all(known.positive for known in inputs[name == "select_n" :])  # its first operand only chooses


def _is_positive(name: str, inputs: list[_ValueProperties]) -> bool:
    if name == "max":
        return any(known.positive for known in inputs)
    return name in _POSITIVE or (name in _KEEPING and _are_positive(name, inputs))


def _mask(name: str, inputs: list[_ValueProperties]) -> str:
    """The jumps of an operation on parameters: its own, or those that it hands on."""
    if name in _ORDERS or name == "eq":
        # Numbers that are never negative are mostly compared with 0, which they do not pass.
        own = "equal" if name == "eq" else "order"
        return "" if _are_positive(name, inputs) else own
    masks = [known.mask for known in inputs if known.mask]
    chooses_fixed = name == "select_n" and not any(known.moves for known in inputs[1:])
    if name in _PASSING or chooses_fixed:
        return masks[0] if masks else ""
    # JAX's derivative of a maximum is a quotient of such masks, which weighs operands that are equal by a half.
    return "equal" if name in ("mul", "div", "select_n") and "equal" in masks else ""


def _jumps(name: str, inputs: list[_ValueProperties]) -> bool:
    """Says of an operation on a direction whether a jump meets it there."""
    if name.startswith("select_and"):  # of pooled maxima
        return True
    masks = [known.mask for known in inputs if known.mask]
    # A choice by ==, as in a safe division, is passed over; one by an order counts, whatever its sides are.
    return bool(masks) and (name == "mul" or (name == "select_n" and inputs[0].mask == "order"))
