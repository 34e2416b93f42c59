"""What a value is, as JSON that is the same in every process: for manifests, and to tell two plans apart."""

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._checks import concrete
from . import _source as source


LISTED = 10_000  # numbers of an array that are written out, and agree to rounding; of longer ones there is a hash
CAPTURED = 1  # the same for arrays that a function refers to: one changed pixel of the data is another plan


def describe_value(value: Any) -> Any:
    """Settings as JSON.

    | value | its description |
    |---|---|
    | number, text, None | itself |
    | array, random key | its numbers; of a long array, or one that a function refers to, shape, dtype and a hash |
    | list, tuple, set, dict | their items |
    | dataclass, network, dynamics, `functools.partial` | its type and fields |
    | function, class | its name; if the user wrote it, a digest of its source; and what it refers to |
    | another object of a class of the user's, `SimpleNamespace` | its class and attributes |
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
        if value is None or isinstance(value, bool | int | str | float | np.generic):
            return _number(value)
        if isinstance(value, np.ndarray | jax.Array):
            return _array(value, listed)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        function = source.unwrapped(value)
        has_fields = dataclasses.is_dataclass(value) or isinstance(value, functools.partial)
        if isinstance(value, type) or (callable(value) and hasattr(function, "__name__") and not has_fields):
            return self._function(function)
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
            fields = {field.name: inner(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
            return {"type": self._function(kind) if source.written_here(kind) else kind.__qualname__, **fields}
        if listed == CAPTURED and isinstance(value, dict | list | set) and not (value and _plain(value)):
            return _type_of(value)  # a cache or a log more likely than settings
        if isinstance(value, Mapping):
            return {str(key): inner(item) for key, item in value.items()}
        if isinstance(value, set | frozenset):
            return sorted((inner(item) for item in value), key=repr)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [inner(item) for item in value]
        if source.written_here(kind) or kind is types.SimpleNamespace:
            attributes = self._captured(getattr(value, "__dict__", {}))
            return {"type": self._function(kind), **attributes}
        return _type_of(value)

    def _function(self, function: Any) -> Any:
        name = source.name(function)
        if id(function) in self._told:
            return name
        self._told.add(id(function))
        described: dict[str, Any] = {"code": source.digest(function)} if source.written_here(function) else {}
        if held := source.held(function):
            described["refers to"] = self._captured(held)
        return {"function": name, **described} if described else name

    def _captured(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What a function or object refers to may be anything, also what cannot be looked at."""
        found = {}
        for name, value in values.items():
            try:
                found[name] = self.value(value, CAPTURED)
            except Exception:
                found[name] = _type_of(value)
        return found


def _type_of(value: Any) -> str:
    return f"<{type(value).__qualname__}>"


def _plain(value: Any) -> bool:
    """Whether a container holds nothing but numbers, text and arrays."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic | np.ndarray | jax.Array)


def _number(value: Any) -> Any:
    """A number, text or None as JSON knows it, which has no NaN."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
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
