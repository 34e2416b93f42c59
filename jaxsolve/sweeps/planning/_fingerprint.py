"""What a plan and its values are, as JSON that is the same in every process."""

import dataclasses
import enum
import functools
import inspect
import math
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._checks import concrete
from ..running._builder import Builder
from . import _source as source
from ._plan import Plan


ANYTHING = "*"  # what a person writes into a manifest for what need not agree
LISTED = 10_000  # numbers of an array that are written out, and agree to rounding; of longer ones there is a hash
CAPTURED = 1  # the same for arrays that a function refers to: one changed pixel of the data is another plan
CODE = "problem_fn"  # a field of a plan


def describe_value(value: Any) -> Any:
    """Settings as JSON.

    | value | its description |
    |---|---|
    | number, text, path, slice, None | itself, as text where JSON has none; of bytes a hash |
    | array, random key | its numbers; of a long array, or one that a function refers to, shape, dtype and a hash |
    | list, tuple, set, dict | their items |
    | dataclass, network, dynamics, `functools.partial` | its type and fields |
    | function, class | its name; if the user wrote it, a digest of its source; and what it refers to |
    | function in `jax.grad`, `jax.vmap` and the like of libraries | the same, what it is inside of, and its settings |
    | another object of a class of the user's, `SimpleNamespace` | its class and attributes |
    | method of an object of a library | its name, and the object's attributes but for lists, dicts and sets |
    | module of the user's that a function refers to | those of its members that the function names |
    | anything else | its type |

    Two values that differ may be described alike (objects of libraries are, by their type). A value that does not
    change always has the same description, in every process and version of Python.
    """
    return _Describer().value(value, LISTED)


class _Describer:
    """Describes each function once, and by its name from then on."""

    def __init__(self):
        self._told: set[int] = set()  # functions that have been described
        self._inside: set[int] = set()  # objects that are being described: they may hold themselves

    def value(self, value: Any, listed: int) -> Any:
        """Describes anything; of an array so many numbers are written out."""
        if value is None or isinstance(value, bool | int | str | float | complex | np.generic):
            return _number(value)
        if isinstance(value, bytes | bytearray):
            return {"bytes": len(value), "sha256": source.short(bytes(value))}
        if isinstance(value, PurePath | slice):
            return value.as_posix() if isinstance(value, PurePath) else str(value)
        if isinstance(value, np.ndarray | jax.Array):
            return _array(value, listed)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        function = source.unwrapped(value)
        an_object = isinstance(value, functools.partial) or dataclasses.is_dataclass(value)
        an_object = an_object or source.written_here(type(value))
        if isinstance(value, type) or (callable(value) and hasattr(function, "__name__") and not an_object):
            described = self._function(function)
            around = () if function is value else source.layers(value, function)
            if not (layers := [self.value(layer, listed) for layer in around]):
                return described
            return {**({"function": described} if isinstance(described, str) else described), "inside": layers}
        if id(value) in self._inside:
            return _type_of(value)
        self._inside.add(id(value))
        try:
            return self._object(value, listed)
        finally:
            self._inside.discard(id(value))

    def _object(self, value: Any, listed: int) -> Any:
        inner = functools.partial(self.value, listed=listed)
        if isinstance(value, functools.partial):
            parts = {"function": value.func, "arguments": value.args, "keywords": value.keywords}
            return {"type": "partial", **{key: inner(part) for key, part in parts.items()}}
        kind = type(value)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            # Arguments that a field does not hold as they were given, such as the rate that an optimizer shows.
            names += [name for name in inspect.signature(kind).parameters if _is_property(kind, name)]
            fields = {name: inner(getattr(value, name, None)) for name in names}
            return {"type": self._function(kind) if source.written_here(kind) else kind.__qualname__, **fields}
        if listed == CAPTURED and isinstance(value, dict | list | set) and not (value and _plain(value)):
            return _type_of(value)  # a cache or a log more likely than settings
        if isinstance(value, Mapping):
            return {str(key): inner(item) for key, item in value.items()}
        if isinstance(value, set | frozenset):
            # In an order of names: a function is described where it comes up first.
            named = sorted(value, key=lambda item: str(getattr(item, "__qualname__", None) or repr(item)))
            return sorted((inner(item) for item in named), key=repr)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [inner(item) for item in value]
        if source.written_here(kind) or kind is types.SimpleNamespace:
            attributes = self._captured(source.attributes(value))
            return {"type": self._function(kind), **attributes}
        return _type_of(value)

    def _function(self, function: Any) -> Any:
        name = source.name(function)
        if id(function) in self._told:
            return name
        self._told.add(id(function))
        described: dict[str, Any] = {"code": source.digest(function)} if source.written_here(function) else {}
        if held := source.held(function):
            described["refers to"] = refers = self._captured(held)
            owner = getattr(function, "__self__", None)
            known = type(owner).__module__.split(".")[0] in sys.stdlib_module_names
            if refers.get("self") == _type_of(owner) and id(owner) not in self._inside and not known:
                refers["self"] = self._owner(owner, set(source.names(function.__code__)))
        return {"function": name, **described} if described else name

    def _owner(self, owner: Any, names: set[str]) -> Any:
        """The object of a library that a method belongs to: what that does depends on the attributes that it names."""
        self._inside.add(id(owner))
        held = {key: item for key, item in source.attributes(owner).items() if key in names}
        kept = {key: item for key, item in held.items() if not isinstance(item, dict | list | set)}
        described = self._captured(kept)  # a container is a cache or a log more likely than a setting
        self._inside.discard(id(owner))
        return {"type": _type_of(owner), **described}

    def _captured(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a function or object refers to may be anything, also what cannot be looked at."""
        found = {}
        for name, value in values.items():
            try:
                found[name] = self.value(value, CAPTURED)
            except Exception:
                found[name] = _type_of(value)
        return found


def _is_property(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), property)


def _type_of(value: Any) -> str:
    return f"<{type(value).__qualname__}>"


def _plain(value: Any) -> bool:
    """Whether a container holds nothing but numbers, text, arrays, functions, and dataclasses such as dynamics."""
    if isinstance(value, Mapping):
        return all(_is_key(key) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    known = isinstance(value, bool | int | float | complex | str | bytes | PurePath | slice | enum.Enum)
    known = known or isinstance(value, np.generic | np.ndarray | jax.Array)
    return value is None or known or callable(value) or dataclasses.is_dataclass(value)


def _is_key(key: Any) -> bool:
    """Whether a key of a dict is the same text in every process."""
    return all(map(_is_key, key)) if type(key) is tuple else isinstance(key, str | int | float | enum.Enum)


def _number(value: Any) -> Any:
    """A number, text or None as JSON knows it, which has no NaN. The text that agrees with anything gets quotes."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
    if isinstance(plain, str) and plain == ANYTHING:
        return repr(ANYTHING)
    return plain if plain is None or isinstance(plain, bool | int | float | str) else str(plain)


def _array(value: Any, listed: int) -> Any:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"key": jax.random.key_data(value).tolist(), "impl": str(jax.random.key_impl(value))}
    array = concrete(value)
    if array is None:
        return "<traced>"
    if array.ndim == 0:
        return _number(array[()])
    if array.size <= listed:
        return [_number(x) if array.ndim == 1 else _array(x, listed) for x in array]
    facts = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.hasobject or array.dtype.kind == "T":
        return facts
    return facts | {"sha256": source.short(array.tobytes())}


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Everything that decides the results of a sweep, as JSON."""
    config: Any = jax.config
    values = lambda item: {"traced": np.asarray(item.values)} if item.traced else {"static": list(item.values)}
    return {
        "dims": [axis.dim for axis in plan.axes],
        "axes": {axis.dim: {item.name: describe_value(values(item)) for item in axis.arguments} for axis in plan.axes},
        "dynamics": {"name": plan.name, "settings": describe_value(plan.dynamics)},
        "ts": describe_value(plan.ts),
        "observe": {item.name: describe_value(item) for item in plan.observables},
        "precision": {
            "x64": config.jax_enable_x64,
            "matmul": str(config.jax_default_matmul_precision),
            "prng": str(config.jax_default_prng_impl),
            "threefry_partitionable": config.jax_threefry_partitionable,
        },
        CODE: describe_value(plan.problem_fn),
    }


def first_problem(plan: Plan) -> dict[str, list[Any]]:
    """Two numbers for each array of the first cell's problem.

    They differ where what no description of a function shows has changed: files, the environment, objects of libraries.
    """
    group = plan.groups[0]
    builder = Builder(plan.problem_fn, plan.dynamics, group)
    made = jax.jit(lambda cell: eqx.filter(builder.lane(builder.leaves(cell))[0], eqx.is_inexact_array))
    leaves = jax.tree_util.tree_leaves_with_path(made(builder.cell))
    return {jax.tree_util.keystr(path, simple=True, separator="."): _numbers(np.asarray(leaf)) for path, leaf in leaves}


def _numbers(array: np.ndarray) -> list[Any]:
    """The sum of an array's absolute values, and another sum in units of it; neither cancels."""
    flat = array.astype(complex if array.dtype.kind == "c" else float).ravel()
    size = float(np.sum(np.abs(flat)))
    mixed = float(np.sum(np.real(flat) * np.cos(np.arange(flat.size)))) / (size or 1.0)
    return [describe_value(size), describe_value(2 + mixed)]
