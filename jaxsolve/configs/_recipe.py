"""Objects described by tables: checked when a config is read, made when the values of its axes are known."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ..nets import Padded
from ._catalogue import array, Kind, kinds, parameters
from ._formula import Formula, MARK
from ._refusals import check_memory, check_sizes, ConfigError, shown, unknown, words


TYPE = "type"  # the key of a table that names what it makes
BIAS = "bias"  # the key of a scaling with the scales of biases

Node = Any
"""A `Recipe`, a `Formula`, a tuple of nodes, or a value that is known already."""


class Recipe:
    """A call that waits for the values of axes: of `make` with arguments that are nodes, somewhere in the config."""

    def __init__(self, make: Callable[..., Any], arguments: Mapping[str, Node], where: str):
        self.make = make
        self.arguments = dict(arguments)
        self.where = where
        self.names = names_in(tuple(self.arguments.values()))
        check_sizes(make, self.arguments, where)  # as far as they are known

    def value(self, values: Mapping[str, Any]) -> Any:
        """The object for these values of axes. Raises ConfigError if it does not take them."""
        arguments = {name: value_of(node, values) for name, node in self.arguments.items()}
        product = check_sizes(self.make, arguments, self.where)
        try:
            if not self.names:  # else it is traced, and a sweep knows its memory
                check_memory(self.make, arguments, product, self.where)
            return self.make(**arguments)
        except (ConfigError, OSError):
            raise
        except Exception as error:  # nothing but what the config says is called here
            raise ConfigError(f"{self.where}: {words(error)}") from error


def names_in(node: Node) -> frozenset[str]:
    """The axes on which a node depends."""
    if isinstance(node, Recipe | Formula):
        return node.names
    return frozenset().union(*map(names_in, node)) if type(node) is tuple else frozenset()


def value_of(node: Node, values: Mapping[str, Any]) -> Any:
    """What a node stands for."""
    if isinstance(node, Recipe | Formula):
        return node.value(values)
    return tuple(value_of(part, values) for part in node) if type(node) is tuple else node


def read_object(value: Any, kind: Kind, where: str) -> Node:
    """Reads a name, or a table with a `type` and arguments.

    What depends on no axis is made at once, so that its errors are known at once, and data are read once. Raises
    ConfigError if a name or key is unknown, with the nearest one, or an argument is missing or of another type.
    """
    if _is_formula(value) or (kind.plain is not None and not isinstance(value, Mapping)):
        return _made(kind.of, {"value": _read_value(value, where)}, where)
    if isinstance(value, str):
        value = {TYPE: value}
    if not isinstance(value, Mapping) or TYPE not in value:
        known = ", ".join(sorted(kind.known))
        raise ConfigError(f"{where} must be a table with a {TYPE!r}, one of {known}, got {shown(value)}")
    given = {name: part for name, part in value.items() if name != TYPE}
    try:
        make = kind.find(value[TYPE])
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if BIAS in given and kind.noun == "scaling":
        bias = read_arguments(_bias, given.pop(BIAS), f"{where}.{BIAS}", BIAS)
        rule = Recipe(make, read_arguments(make, given, where), where)
        return _made(lambda rule, **scales: rule.with_bias(**scales), {"rule": rule, **bias}, where)
    return _made(make, read_arguments(make, given, where), where)


def _bias(*, sigma: Any = 0.0, eta: Any = 1.0) -> None:
    """What a rule of scaling says of biases."""


def read_arguments(make: Callable[..., Any], given: Any, where: str, called: str = "") -> dict[str, Node]:
    """Reads the arguments of a call. Raises ConfigError as `read_object`."""
    accepted, called = parameters(make), called or make.__name__
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of {', '.join(accepted)}, got {shown(given)}")
    for name in given:
        if name not in accepted:
            raise ConfigError(f"{where}: {unknown(name, accepted, f'argument of {called}')}")
    missing = [name for name, p in accepted.items() if p.default is inspect.Parameter.empty and name not in given]
    if missing:
        raise ConfigError(f"{where}: {called} also needs {', '.join(missing)}")
    return {
        name: _read_argument(part, kinds().get(name), accepted[name].annotation, f"{where}.{name}")
        for name, part in given.items()
    }


def _read_argument(value: Any, kind: Kind | None, annotation: Any, where: str) -> Node:
    if kind is not None and kind.arrays and isinstance(value, list):
        return _made(array, {"value": _read_value(value, where)}, where)
    if kind is not None and isinstance(value, list) and (together := kind.together) is not None:
        parts = {str(i): read_object(part, kind, f"{where}[{i}]") for i, part in enumerate(value)}
        return _made(lambda **several: together(*several.values()), parts, where)
    if kind is not None:
        return read_object(value, kind, where)
    types_of = typing.get_args(annotation)
    if isinstance(value, int) and not isinstance(value, bool) and float in types_of and int not in types_of:
        return float(value)
    accepted = _plain_types(annotation)
    alike = (*accepted, int) if float in accepted else accepted
    fits = bool in accepted if isinstance(value, bool) else isinstance(value, alike)
    if accepted and not _is_formula(value) and not fits:
        raise ConfigError(f"{where} must be {' or '.join(t.__name__ for t in accepted)}, got {shown(value)}")
    return _read_value(value, where)


def _read_value(value: Any, where: str) -> Node:
    if _is_formula(value):
        return Formula(value, where)
    if isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a value, got a table")
    return tuple(_read_value(part, where) for part in value) if isinstance(value, list) else value


def _made(make: Callable[..., Any], arguments: Mapping[str, Node], where: str) -> Node:
    recipe = Recipe(make, arguments, where)
    return recipe if recipe.names else recipe.value({})


def _is_formula(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(MARK)


def _plain_types(annotation: Any) -> tuple[type, ...]:
    """The types that an annotation accepts, if all of them can be written in TOML.

    `None` is to leave it out; `Padded` comes from an axis.
    """
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    plain = tuple(part for part in parts if part in (bool, int, float, str))
    return plain if all(part in (*plain, types.NoneType, Padded) for part in parts) else ()
