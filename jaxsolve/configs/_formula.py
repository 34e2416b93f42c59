"""Arithmetic with the values of axes, as written in a config."""

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ._refusals import ConfigError, unknown


MARK = "="  # the first character of a formula
MAX_LENGTH = 1000  # characters
MAX_DEPTH = 50  # of nested brackets, signs and operators
MAX_BITS = 64  # of an integer
MAX_EXPONENT = 64  # of an array to an integer power, which is multiplied out
MAX_DIGITS = 20  # that `round` keeps


def _power(base: Any, exponent: Any) -> Any:
    """A power, if it can be computed cheaply."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent > 0 and abs(base) > 1 and exponent * (abs(base).bit_length() - 1) > MAX_BITS:
            raise OverflowError(f"an integer of more than {MAX_BITS} bits")
    elif isinstance(exponent, int) and abs(exponent) > MAX_EXPONENT:
        exponent = float(exponent)
    return base**exponent


def _product(one: Any, two: Any) -> Any:
    """The product, exact for integers. 32-bit arrays become floats: integers overflow silently, keys reject floats."""
    exact = jnp.result_type(int).itemsize == 8
    return _number(one, exact=exact) * _number(two, exact=exact)


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _product,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
# The functions for plain numbers and for arrays: a width must stay an integer.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sqrt": (math.sqrt, jnp.sqrt),
    "exp": (math.exp, jnp.exp),
    "log": (math.log, jnp.log),
    "abs": (abs, jnp.abs),
    "min": (min, lambda *values: functools.reduce(jnp.minimum, values)),
    "max": (max, lambda *values: functools.reduce(jnp.maximum, values)),
    "round": (round, jnp.round),
}
EXACT_FUNCTIONS = ("abs", "min", "max")


class Formula:
    """A formula such as `=2 * gamma**-2`: numbers, names of axes, + - * / // % **, and a few functions.

    A name alone may stand for any value, also for text. Raises ConfigError, with the place, if it is not a formula.
    """

    def __init__(self, text: str, where: str):
        self.text = text
        self.where = where
        self.names = frozenset[str]()
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"{where}: a formula of {len(text)} characters; at most {MAX_LENGTH} are read")
        try:
            tree = ast.parse(text.removeprefix(MARK).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConfigError(f"{where}: {text!r} is not a formula: {getattr(error, 'msg', error)}") from None
        if _depth(tree) > MAX_DEPTH:
            raise ConfigError(f"{where}: {text!r} is nested more than {MAX_DEPTH} times")
        self._of = self._read(tree)

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> Any:  # the functions made from the text cannot be pickled
        return Formula, (self.text, self.where)

    def value(self, values: Mapping[str, Any]) -> Any:
        """The value for these values of axes, numbers or traced arrays. Raises ConfigError if there is none."""
        try:
            return _whole(self._of(values))
        except (ArithmeticError, TypeError, ValueError) as error:
            known = {name: values[name] for name in sorted(self.names)}
            raise ConfigError(f"{self.where}: {self.text!r} has no value for {known}: {error}") from error

    def _read(self, node: ast.AST) -> Callable[[Mapping[str, Any]], Any]:
        """The function of axis values that a node stands for; raises ConfigError if no formula may hold the node."""
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                if isinstance(number, int) and number.bit_length() > MAX_BITS:
                    raise ConfigError(f"{self.where}: {self.text!r} holds an integer of more than {MAX_BITS} bits")
                return lambda values: number
            case ast.Name(id=name):
                self.names |= {name}
                return lambda values: values[name]
            case ast.UnaryOp(op=op) | ast.BinOp(op=op) if type(op) in OPERATORS:
                parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
                function, exact = OPERATORS[type(op)], not isinstance(op, ast.Div | ast.Pow)  # for integers, arrays too
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as parts, keywords=[]):
                if name not in FUNCTIONS:
                    raise ConfigError(f"{self.where}: {unknown(name, FUNCTIONS, 'function of formulas')}")
                function, exact = functools.partial(_call, name), name in EXACT_FUNCTIONS
            case _:
                raise ConfigError(
                    f"{self.where}: {self.text!r} holds {ast.unparse(node)!r}; a formula has numbers, names of axes, "
                    f"+ - * / // % ** and {', '.join(FUNCTIONS)}"
                )
        read = [self._read(part) for part in parts]
        return lambda values: _whole(function(*(_number(part(values), exact=exact) for part in read)))


def _call(name: str, *arguments: Any) -> Any:
    if name == "round" and any(abs(digits) > MAX_DIGITS for digits in arguments[1:]):
        raise ValueError(f"round keeps at most {MAX_DIGITS} digits")
    plain, traced = FUNCTIONS[name]
    return (plain if all(isinstance(argument, int | float) for argument in arguments) else traced)(*arguments)


def _depth(tree: ast.AST) -> int:
    """The depth of a tree: the largest number of nested nodes."""
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _number(value: Any, *, exact: bool) -> Any:
    """A value for arithmetic. Text raises TypeError, since % and * could make texts of any length.

    Arrays of integers become floats unless they may stay exact: a power of -2 has no integer value.
    """
    if value is None or isinstance(value, str | bytes | tuple | list | dict):
        raise TypeError(f"arithmetic is for numbers, got {type(value).__name__}")
    whole = not exact and hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.integer)
    return value.astype(jnp.result_type(float)) if whole else value


def _whole(value: Any) -> Any:
    """A result, if it is real and not an integer beyond 64 bits."""
    if isinstance(value, complex):
        raise ValueError("the result is complex")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(f"an integer of more than {MAX_BITS} bits")
    return value
