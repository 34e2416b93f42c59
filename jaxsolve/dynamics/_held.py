"""Functions as pytrees: the arrays they close over are leaves, all else is compared by value.

An optax transformation is a tuple of closures. As a static field it would be compared by identity, so each new
`optax.sgd(rate)` would compile its program again, and a traced rate inside could not leave its trace. Here closures are
opened: Equinox's rule (arrays are traced, everything else is static) then holds for what they close over. Nothing is
read that depends on how optax names things.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


# Of containers that functions read by name, or objects keep: others are caches more likely than settings.
DEEPEST, LONGEST = 6, 1000


@dataclasses.dataclass(frozen=True)
class _Hole:
    """Where an array was."""

    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Template:
    """A value whose arrays are holes, compared by what it consists of: Python's own functions compare by identity."""

    value: Any

    def __post_init__(self):
        # JAX may ask for it much later, when names of a module that functions read stand for something else.
        _ = self._key

    @functools.cached_property
    def _key(self) -> Hashable:
        return _key(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Template) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Held(eqx.Module):
    """A function, or a tuple of functions, as a pytree.

    Arguments:
        value: the function.
        floats: whether Python's floats are leaves as well.

    Attributes:
        arrays: what it closes over, at any depth; an array that is used twice appears once.
    """

    arrays: list[Array]
    template: _Template = eqx.field(static=True)  # code

    def __init__(self, value: Any, *, floats: bool = False):
        arrays: list[Array] = []

        def take(leaf):
            if floats and isinstance(leaf, float):
                arrays.append(jnp.asarray(leaf))
                return _Hole(len(arrays) - 1)
            if not isinstance(leaf, jax.Array):
                return leaf
            found = [index for index, array in enumerate(arrays) if array is leaf]
            if not found:
                arrays.append(leaf)
            return _Hole(found[0] if found else len(arrays) - 1)

        self.template = _Template(_replace(value, take))
        self.arrays = arrays

    @property
    def value(self) -> Any:
        """What was given, with the arrays as they are now."""
        return _replace(self.template.value, lambda leaf: self.arrays[leaf.index] if isinstance(leaf, _Hole) else leaf)

    @property
    def __name__(self) -> str:  # captions show it
        return name_of(self.template.value)

    def astype(self, dtype: Any) -> "Held":
        """The same with its real arrays in another precision."""
        real = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if real(leaf) else leaf, self)


class _Same:
    """A value of unknown kind, which equals itself only, while what is known of its contents stays as it is."""

    def __init__(self, value: Any, contents: Hashable = ()):
        self._value, self._contents = value, contents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value and self._contents == other._contents

    def __hash__(self) -> int:
        return id(self._value)


def _object(value: Any) -> _Same:
    """An object with the attributes that it has now: somebody may set others."""
    fixed = isinstance(value, types.ModuleType | types.FunctionType | type)
    return _Same(value, () if fixed else _now(getattr(value, "__dict__", {})))


def _now(value: Any, depth: int = 0) -> Hashable:
    """What a value that may change is made of at this time, as far as numbers, text and small containers go."""
    plain = _plain_key(value)
    if plain is not None:
        return plain
    if type(value) in (dict, list, tuple) and depth < DEEPEST and len(value) <= LONGEST:
        parts = value.items() if isinstance(value, dict) else value
        return type(value), tuple(_now(part, depth + 1) for part in parts)
    return _Same(value)


_EMPTY = _Same(object())  # a cell that has not been assigned


def _parts(value: Any) -> tuple[Hashable, list[Any], Callable[[list[Any]], Any]] | None:
    """What a function or container is, what it holds, and how it is made of that; None for anything else."""
    kind = type(value)
    if kind is types.FunctionType:
        return _parts_of_function(value)
    if kind is functools.partial:
        held = [value.func, value.args, value.keywords]
        return kind, held, lambda new: kind(new[0], *new[1], **new[2])
    if kind is dict:
        names = tuple(value)
        return (kind, names), list(value.values()), lambda new: dict(zip(names, new, strict=True))
    if kind in (list, tuple):
        return kind, list(value), kind
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, list(value), lambda new: kind(*new)
    return None


def _parts_of_function(function: types.FunctionType):
    code, scope, name, qualified = function.__code__, function.__globals__, function.__name__, function.__qualname__
    cells, defaults, keywords = function.__closure__ or (), function.__defaults__ or (), function.__kwdefaults__ or {}
    names = tuple(keywords)
    held = [_content(cell) for cell in cells]

    def make(new):
        closure = tuple(types.CellType() if part is _EMPTY else types.CellType(part) for part in new[: len(cells)])
        plain, named = new[len(cells) : len(cells) + len(defaults)], new[len(cells) + len(defaults) :]
        made = types.FunctionType(code, scope, name, tuple(plain) or None, closure)
        made.__kwdefaults__ = dict(zip(names, named, strict=True)) or None
        made.__qualname__, made.__module__ = qualified, function_module
        return made

    function_module = function.__module__
    # What code does also depends on the module whose names it uses, and on what these stand for now.
    return (code, id(scope), qualified, names, _globals(code, scope)), [*held, *defaults, *keywords.values()], make


def _globals(code: types.CodeType, scope: dict[str, Any]) -> Hashable:
    """What the names that code uses stand for in its module, also in functions of that module that it calls."""
    found, seen, waiting = [], set[types.CodeType](), [code]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        for name in (name for name in code.co_names if name in scope):
            value, told = scope[name], _plain_key(scope[name])
            if type(value) is types.FunctionType and value.__globals__ is scope:
                waiting.append(value.__code__)
                told = None if value.__closure__ or value.__defaults__ or value.__kwdefaults__ else value.__code__
            if told is None:
                told = _now(value) if isinstance(value, dict | list) else _object(value)
            found.append((name, told))
    return tuple(found)


def _plain_key(value: Any) -> Hashable:
    """Numbers and text by their values; None for anything else."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        return type(value), repr(value)  # 1, 1.0 and True are equal, but not the same
    if isinstance(value, np.ndarray) and value.dtype != object:
        return np.ndarray, value.shape, str(value.dtype), value.tobytes()
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _replace(value: Any, swap: Callable[[Any], Any], inside: tuple[int, ...] = ()) -> Any:
    """The value with everything it holds swapped; the very same object where nothing changes.

    A function that closes over itself is left as it is.
    """
    parts = None if id(value) in inside else _parts(value)
    if parts is None:
        return swap(value)
    _, held, make = parts
    new = [_replace(part, swap, (*inside, id(value))) for part in held]
    return value if all(a is b for a, b in zip(held, new, strict=True)) else make(new)


def _key(value: Any, inside: tuple[int, ...] = ()) -> Hashable:
    parts = None if id(value) in inside else _parts(value)
    if parts is not None:
        label, held, _ = parts
        return label, tuple(_key(part, (*inside, id(value))) for part in held)
    plain = _plain_key(value)
    if plain is not None:
        return plain
    if id(value) in inside:
        return "a function that closes over itself", inside.index(id(value))
    return value if isinstance(value, _Hole | _Same) else _object(value)


# Functions of optax that pass gradients on to others, and those that do no more than plain descent does.
_WRAPPERS = ("chain", "named_chain", "with_extra_args_support", "inject_hyperparams")
_PLAIN = ("identity", "trace", "scale", "scale_by_schedule", "scale_by_learning_rate")
_RULE = "scale_by_"


def name_of(optimizer: Any) -> str:
    """What an optax transformation does, by the functions that made its parts: `sgd`, `clip_by_global_norm + adam`."""
    steps = [step for step in _steps(getattr(optimizer, "update", optimizer)) if step not in _PLAIN]
    named = steps if any(step.startswith(_RULE) for step in steps) or "custom" in steps else [*steps, "sgd"]
    return " + ".join(dict.fromkeys(step.removeprefix(_RULE) for step in named))


def _steps(value: Any) -> list[str]:
    value = getattr(value, "update", value)
    if type(value) is not types.FunctionType:
        return [name for part in value for name in _steps(part)] if isinstance(value, list | tuple) else []
    maker, *inner = value.__qualname__.split(".")
    if maker in _WRAPPERS:
        return [name for part in _parts_of_function(value)[1] for name in _steps(part)]
    return [(maker if inner else _RULE + maker) if maker.isidentifier() else "custom"]
