"""Functions as pytrees: the arrays they close over are leaves, everything else is static.

An optax transformation is a pair of closures. As a static field it would be compared by identity, and a traced rate
inside it could not leave its trace, as it must in a sweep over rates. Here closures are opened, so that Equinox's rule
(arrays are traced, everything else is compiled in) holds for what they close over.
"""

import types
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree


# Their functions do not change what they do. One of the user's may read a name that comes to stand for something else.
LIBRARIES = ("jax", "jaxsolve", "optax")


class _Fixed:
    """A value that programs are compiled for.

    Numbers, text and functions of `LIBRARIES` are equal where they look equal. Anything else equals itself only: two
    optimizers that hold a function of the user's compile twice, which is slow, but never wrong.
    """

    def __init__(self, value: Any):
        self.value = value
        if isinstance(value, bool | int | float | complex | str | np.generic):
            self._key: Any = (type(value), repr(value))  # 1, 1.0 and True are equal, but make different programs
        elif type(value) is types.FunctionType and _module(value) in LIBRARIES:
            self._key = value.__code__
        else:
            self._key = object()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class _Part(eqx.Module):
    """A function with what it closes over and its defaults; or another value, which holds None."""

    held: PyTree
    fixed: _Fixed = eqx.field(static=True)  # code and settings

    def value(self) -> Any:
        """Returns the function, with its arrays as they are now."""
        function = self.fixed.value
        if self.held is None:
            return function
        cells, defaults, keywords = closed(self.held)
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults, tuple(map(types.CellType, cells))
        )
        made.__kwdefaults__ = keywords
        return made


def _module(function: types.FunctionType) -> str:
    """The library that a function's code is from; a wrapper may go by the name of what it wraps."""
    return str(function.__globals__.get("__name__")).partition(".")[0]


def contents(function: Any) -> list[Any] | None:
    """What a function closes over; None for what is no function of Python's, or has a variable without a value yet."""
    if type(function) is not types.FunctionType:
        return None
    try:
        return [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None


def opened(tree: PyTree, around: tuple[int, ...] = ()) -> PyTree:
    """Returns a tree of functions and values as a pytree whose leaves are arrays; `closed` is the way back.

    A function that closes over itself stays as it is, as it would never end; `around` are those being opened.
    """

    def part(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        cells = None if id(leaf) in around else contents(leaf)
        if cells is None:
            return _Part(None, _Fixed(leaf))
        held = cells, leaf.__defaults__, leaf.__kwdefaults__
        return _Part(opened(held, (*around, id(leaf))), _Fixed(leaf))

    return jax.tree.map(part, tree)


def closed(tree: PyTree) -> PyTree:
    """Returns the functions and values of which `opened` made a pytree."""
    is_part = lambda node: isinstance(node, _Part)
    return jax.tree.map(lambda node: node.value() if is_part(node) else node, tree, is_leaf=is_part)
