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

from .._checks import concrete
from . import _code


LISTED = 1000  # numbers of an array that are written out; of longer ones some sums
CAPTURED = 1  # the same for arrays that a function only refers to


def describe_value(value: Any) -> Any:
    """Settings as JSON: numbers and text as they are, arrays by value, objects by type and fields, functions by code.

    What cannot be described is named by its type: two different values may look the same, never one value different.
    """
    return _Describer().value(value, LISTED)


class _Describer:
    """Describes each function once, and by its name from then on."""

    def __init__(self):
        self._seen: set[int] = set()

    def value(self, value: Any, listed: int) -> Any:
        inner = functools.partial(self.value, listed=listed)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float | np.generic):
            return _number(value)
        if isinstance(value, np.ndarray | jax.Array):
            return _array(value, listed)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, functools.partial):
            parts = {"function": value.func, "arguments": value.args, "keywords": value.keywords}
            return {"type": "partial", **{key: inner(part) for key, part in parts.items()}}
        if isinstance(value, type) or (_code.is_function(value) and not dataclasses.is_dataclass(value)):
            return self._function(_code.unwrapped(value))
        if id(value) in self._seen:
            return f"<{type(value).__qualname__}>"
        return self._object(value, listed, inner)

    def _object(self, value: Any, listed: int, inner: Any) -> Any:
        self._seen.add(id(value))  # it may hold itself; objects that are alive have different ids
        try:
            if dataclasses.is_dataclass(value):
                fields = {field.name: inner(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
                kind = type(value)
                return {"type": self._function(kind) if _code.written_here(kind) else kind.__qualname__, **fields}
            if listed == CAPTURED and isinstance(value, dict | list | set) and not (value and _plain(value)):
                return f"<{type(value).__qualname__}>"  # a cache or a log more likely than settings
            if isinstance(value, Mapping):
                return {str(key): inner(item) for key, item in value.items()}
            if isinstance(value, set | frozenset):
                return sorted((inner(item) for item in value), key=repr)
            if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
                return [inner(item) for item in value]
            if _code.written_here(type(value)):
                fields = {name: self._captured(item) for name, item in getattr(value, "__dict__", {}).items()}
                return {"type": self._function(type(value)), **fields}
            return f"<{type(value).__qualname__}>"
        finally:
            self._seen.discard(id(value))

    def _function(self, function: Any) -> Any:
        name = _code.name(function)
        if id(function) in self._seen:
            return name
        self._seen.add(id(function))
        described: dict[str, Any] = {}
        if _code.written_here(function):
            described["code"] = _code.digest(function)
        held = _code.held(function)
        if hasattr(function, "__self__") and not isinstance(function, type | types.BuiltinFunctionType):  # a method
            held["self"] = function.__self__
        if held:
            described["refers to"] = {key: self._captured(value) for key, value in held.items()}
        return {"function": name, **described} if described else name

    def _captured(self, value: Any) -> Any:
        """What a function refers to may be anything, also what cannot be looked at."""
        try:
            return self.value(value, CAPTURED)
        except Exception:
            return f"<{type(value).__qualname__}>"


def _plain(value: Any) -> bool:
    """Whether a container holds nothing but numbers and text."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.generic)


def _number(value: Any) -> Any:
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)  # JSON has none
    return number if isinstance(number, bool | int | float | str) else str(number)


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
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        return {"dtype": str(array.dtype), "shape": list(array.shape)}
    # Means that know nothing of cancellation, so that rounding on another machine changes no leading digit. The second
    # one, weighted, tells an order of the numbers from another.
    largest = float(np.max(np.abs(array.astype(np.float64))))
    shifted = array.astype(np.float64).ravel() / (largest or 1.0) + 2
    means = [_number(float(np.mean(shifted * w))) for w in (1.0, 2 + np.cos(np.arange(array.size)))]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "largest": _number(largest), "means": means}
