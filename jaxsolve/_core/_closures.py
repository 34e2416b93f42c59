"""Functions as pytrees: the arrays they close over are leaves, everything else is static.

An optax transformation is a pair of closures, and the sampler of a stream is a closure. A static field would be
compared by identity, and a traced rate inside it could not leave its trace, as it must in a sweep over rates. So
closures are opened here: Equinox's rule (arrays are traced, everything else is static) then holds for what they close
over.
"""

import dataclasses
import pickle
import types
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._extras import needs


# Functions of these libraries do not change. A user's function may read a global that is later rebound.
LIBRARIES = ("jax", "jaxsolve", "optax")


@dataclasses.dataclass(eq=False)
class _Fixed:
    """A static value, for which programs are compiled.

    Numbers, strings and functions of `LIBRARIES` are compared by value, anything else by identity: two optimizers that
    hold a user's function compile twice, which is slow but never wrong.
    """

    value: Any

    def __post_init__(self):
        if isinstance(self.value, bool | int | float | complex | str | np.generic):
            self._key: Any = (type(self.value), repr(self.value))  # 1, 1.0 and True are equal, their programs are not
        elif type(self.value) is types.FunctionType and _module(self.value) in LIBRARIES:
            # Two closures made by one function share their code object; what they close over is compared separately.
            self._key = self.value.__code__
        else:
            self._key = object()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> Any:
        # Python's pickle stores functions by name, and nested functions cannot be imported by name.
        with needs("sweeps", "pickling an optimizer"):
            import cloudpickle
        return _loaded, (cloudpickle.dumps(self.value),)

    def __deepcopy__(self, memo: Any) -> "_Fixed":
        return self


def _loaded(content: bytes) -> _Fixed:
    return _Fixed(pickle.loads(content))


class _Part(eqx.Module):
    """A function with the variables it closes over and its defaults; or another value, with `held` None."""

    held: PyTree
    fixed: _Fixed = eqx.field(static=True)  # code and settings


def _value(part: _Part) -> Any:
    """The function of a part, with its current arrays; not a method, because Equinox takes longer to bind one."""
    if part.held is None:
        return part.fixed.value
    names = part.fixed.value.__code__.co_freevars
    variables, defaults, keywords = closed(part.held)
    return _with(part.fixed.value, tuple(types.CellType(variables[name]) for name in names), defaults, keywords)


def _with(function: types.FunctionType, cells: tuple[types.CellType, ...], defaults: Any, keywords: Any) -> Any:
    """A function with the same code and other contents."""
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
    made.__kwdefaults__, made.__qualname__, made.__module__ = keywords, function.__qualname__, function.__module__
    return made


def _module(function: types.FunctionType) -> str:
    """The library that a function's code is from; `__module__` of a wrapper may name the function it wraps."""
    return str(function.__globals__.get("__name__")).partition(".")[0]


def contents(function: Any) -> dict[str, Any] | None:
    """The variables that a function closes over, by name; None for anything else, or if one has no value yet."""
    if type(function) is not types.FunctionType:
        return None
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        return dict(zip(function.__code__.co_freevars, cells, strict=True))
    except ValueError:
        return None


def opened(tree: PyTree, around: tuple[int, ...] = ()) -> PyTree:
    """Turns a tree of functions and values into a pytree whose leaves are arrays; `closed` is the inverse.

    A function that closes over itself is left as it is; `around` holds the ids of the functions being opened.
    """

    def part(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        variables = None if id(leaf) in around else contents(leaf)
        if variables is None:
            return _Part(None, _Fixed(leaf))
        held = opened((variables, leaf.__defaults__, leaf.__kwdefaults__), (*around, id(leaf)))
        bare = _with(leaf, tuple(types.CellType() for _ in variables), None, None)  # `leaf` would keep arrays alive
        return _Part(held, _Fixed(bare))

    return jax.tree.map(part, tree)


def closed(tree: PyTree) -> PyTree:
    """Turns the pytree made by `opened` back into functions and values."""
    is_part = lambda node: isinstance(node, _Part)
    return jax.tree.map(lambda node: _value(node) if is_part(node) else node, tree, is_leaf=is_part)
