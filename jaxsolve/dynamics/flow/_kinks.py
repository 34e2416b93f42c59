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
    """True if the velocity is known to have kinks or jumps, from the activation or from the loss."""
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
    """True if the derivative of the outputs jumps according to the jaxpr, for a network of unknown layers."""
    arrays, static = eqx.partition(problem, eqx.is_array)

    def slope(arrays: Any, params: Any, direction: Any) -> Any:
        whole: Problem = eqx.combine(arrays, static)
        return jax.jvp(whole.outputs, (params,), (direction,))[1]

    params = problem.params
    program = jax.make_jaxpr(slope)(arrays, params, params)
    # Inputs of the program: the arrays of the problem, then the parameters, then their direction.
    moving = len(jax.tree.leaves(params))
    given = [_ValueProperties()] * (len(program.jaxpr.invars) - 2 * moving)
    state = _ValueProperties(moves=True)
    inputs = [*given, *[state] * moving, *[state._replace(tangent=True)] * moving]
    outputs = read(program, inputs, Rules(_constant, _apply, join=_either))
    return any(known.bent for known in outputs)


class _ValueProperties(NamedTuple):
    """The known properties of a value in a program.

    Attributes:
        moves: whether it depends on the parameters.
        tangent: whether it also depends on their direction.
        mask: how it jumps where parameters pass a point: "order" for <, sign and the like; "equal" for ==, which the
            derivative of a maximum uses to tell its operands apart, and a safe division to find zeros.
        positive: whether it is never negative, so that its sign, its absolute value and its maximum with 0 are smooth.
        value: the value of a literal in the program, such as the number of samples that divides a variance.
        bent: whether its direction has met a jump.
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
    """The properties of an operation's result, given those of its inputs."""
    if name == "stop_gradient":
        return inputs[0]
    if name in _OF_NUMBERS and all(known.value is not None for known in inputs):
        return _number(_OF_NUMBERS[name](*(known.value for known in inputs)))
    moves, tangent, bent = (any(getattr(known, field) for known in inputs) for field in ("moves", "tangent", "bent"))
    # Only values are masks. A value that depends on the direction is a derivative, which a mask may meet (`_jumps`).
    mask = _mask(name, inputs) if moves and not tangent else ""
    return _ValueProperties(
        moves, tangent, mask, _is_positive(name, inputs), bent=bent or (tangent and _jumps(name, inputs))
    )


def _are_positive(name: str, inputs: list[_ValueProperties]) -> bool:
    return all(known.positive for known in inputs[name == "select_n" :])  # the first operand only selects


def _is_positive(name: str, inputs: list[_ValueProperties]) -> bool:
    if name == "max":
        return any(known.positive for known in inputs)
    return name in _POSITIVE or (name in _KEEPING and _are_positive(name, inputs))


def _mask(name: str, inputs: list[_ValueProperties]) -> str:
    """The jumps of an operation on parameters: its own, or those that it passes on."""
    if name in _ORDERS or name == "eq":
        # Nonnegative numbers are mostly compared with 0, which they do not cross.
        own = "equal" if name == "eq" else "order"
        return "" if _are_positive(name, inputs) else own
    masks = [known.mask for known in inputs if known.mask]
    chooses_fixed = name == "select_n" and not any(known.moves for known in inputs[1:])
    if name in _PASSING or chooses_fixed:
        return masks[0] if masks else ""
    # JAX's derivative of a maximum is a quotient of such masks, which gives equal operands a weight of one half.
    return "equal" if name in ("mul", "div", "select_n") and "equal" in masks else ""


def _jumps(name: str, inputs: list[_ValueProperties]) -> bool:
    """True if a jump meets the direction in this operation."""
    if name.startswith("select_and"):  # the derivative of max pooling
        return True
    masks = [known.mask for known in inputs if known.mask]
    # A selection by ==, as in a safe division, is ignored; one by "order" counts, whatever its branches are.
    return bool(masks) and (name == "mul" or (name == "select_n" and inputs[0].mask == "order"))
