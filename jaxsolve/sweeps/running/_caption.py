"""What ran, in a line."""

import dataclasses
import inspect
from typing import Any

import numpy as np

from ..._checks import concrete
from ..._dynamics import AbstractDynamics, is_key
from ..._problem import Problem
from ...dynamics import AbstractFlow
from ...until import AbstractCondition


def caption(given: AbstractDynamics, chosen: AbstractDynamics, problem: Problem) -> str:
    """A dynamics with its settings, such as `GradientFlow(integrator=Tsit5, rtol=1e-06, atol=1e-09)`.

    What is left to its defaults is left out, but for the integrator and tolerances that the problem (of which shapes
    will do) chooses.
    """
    if type(chosen) is not type(given):  # users do not know what stands in for it
        return _with_settings(given, {})
    return _with_settings(chosen, chosen.tolerances(problem) if isinstance(chosen, AbstractFlow) else {})


def _with_settings(thing: Any, known: dict[str, Any]) -> str:
    """A thing as it would be made again, but for what its defaults say."""
    defaults = {name: p.default for name, p in inspect.signature(type(thing)).parameters.items()}
    fields = [field.name for field in dataclasses.fields(thing)]
    values = {name: known.get(name, getattr(thing, name)) for name in sorted(fields, key=[*defaults, *fields].index)}
    said = {name: _value(value) for name, value in values.items() if not _is_left_out(value, defaults.get(name))}
    name = type(thing).__name__.removeprefix("_")
    return f"{name}({', '.join(f'{key}={text}' for key, text in said.items())})" if said else name


def _is_left_out(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | tuple)
    return value is None or is_key(value) or (plain and value == default)


def _value(value: Any) -> str:
    if isinstance(value, AbstractDynamics | AbstractCondition):
        return _with_settings(value, {})
    number = concrete(value) if hasattr(value, "dtype") else value
    if isinstance(number, float) or (isinstance(number, np.ndarray) and number.ndim == 0):
        return f"{float(number):g}"
    if isinstance(number, tuple):
        return f"({', '.join(map(_value, number))})"
    if number is None or isinstance(number, bool | int | str):
        return str(number)
    return getattr(number, "__name__", type(number).__name__)
