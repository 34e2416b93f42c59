"""The names that a config may use, and where: public ones of jaxsolve, solvers of diffrax, optimizers of optax.

Arguments are checked when the config is read; objects are made when the values of axes are known.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optax

from .. import data, dynamics, integrators, losses, nets, observe, theory, until
from .._checks import describe
from .._core import AbstractDynamics
from ..nets._internal import AbstractNormalization, find_activation
from ._formula import Formula, MARK
from ._refusals import check_memory, check_sizes, ConfigError, errors_of, shown, unknown


TYPE = "type"  # the key of a table that names what it makes
BIAS = "bias"  # the key of a scaling with the scales of biases
# Arguments that cannot be written as text.
UNSAYABLE = frozenset({"dtype", "fn", "law", "optimizers", "problem", "self", "tableau", "target"})
# Transformations that may precede an optimizer in a chain, and rates that change from step to step.
CHAINED = (optax.add_decayed_weights, optax.adaptive_grad_clip, optax.centralize, optax.clip, optax.clip_by_global_norm)
SCHEDULES = (
    optax.constant_schedule,
    optax.cosine_decay_schedule,
    optax.exponential_decay,
    optax.linear_schedule,
    optax.polynomial_schedule,
    optax.warmup_cosine_decay_schedule,
)
# Arguments that are arrays, as lists of lists.
ARRAYS = ("x", "y", "x_test", "y_test", "covariance", "direction")


@dataclasses.dataclass(frozen=True)
class Kind:
    """The objects that may stand in one place of a config."""

    noun: str  # their name in messages
    known: Mapping[str, Callable[..., Any]]  # their makers, by name
    plain: Callable[[Any], Any] | None = None  # reads a value that is not a table; None if such a value is a name
    arrays: bool = False  # whether a list stands for an array instead
    together: Callable[..., Any] | None = None  # combines the objects in a list, if there may be several

    def find(self, name: Any) -> Callable[..., Any]:
        """The maker with this name; raises ValueError, with the nearest name, if there is none."""
        if isinstance(name, str) and name in self.known:
            return self.known[name]
        raise ValueError(unknown(name, self.known, self.noun))

    def of(self, value: Any) -> Any:
        """The object that a value other than a table stands for."""
        return self.find(value)() if self.plain is None else self.plain(value)


ARRAY = Kind("array", {}, plain=jnp.asarray)  # from a list of numbers or of lists


@functools.cache
def kinds() -> dict[str, Kind]:
    """The kinds of objects that a config holds, by the name of the argument that takes them."""
    networks = Kind("network", _makers(nets.AbstractNetwork, nets))
    scalings = {name: rule.__func__ for name, rule in vars(nets.Scaling).items() if isinstance(rule, staticmethod)}
    takes_a_rate = lambda f: inspect.isfunction(f) and [*inspect.signature(f).parameters][:1] == ["learning_rate"]
    optimizers = Kind("optimizer of optax", _public(takes_a_rate, optax))
    chained, schedules = ({make.__name__: make for make in several} for several in (CHAINED, SCHEDULES))
    solvers = Kind("integrator", _makers(diffrax.AbstractSolver, diffrax, integrators))
    return {
        "network": networks,
        "teacher": dataclasses.replace(networks, arrays=True),
        "scaling": Kind("scaling", {"Scaling": nets.Scaling, **scalings}),
        "init": Kind("initialization", _makers(nets.AbstractInit, nets)),
        "normalization": Kind("normalization", _makers(AbstractNormalization, nets)),
        "activation": Kind("activation", _makers(nets.Activation, nets), plain=find_activation),
        "loss": Kind("loss", _makers(losses.AbstractLoss, losses)),
        "data": Kind("data set", _makers(data.Dataset, data)),
        "dynamics": Kind("dynamics", _makers(AbstractDynamics, dynamics, theory)),
        "flow": Kind("dynamics", _makers(AbstractDynamics, dynamics)),
        "integrator": solvers,
        "solver": solvers,  # an integrator inside another one
        "optimizer": Kind(optimizers.noun, {**optimizers.known, **chained}, together=optax.chain),
        **dict.fromkeys(("learning_rate", "rate"), Kind("schedule of optax", schedules, plain=lambda rate: rate)),
        "transform": Kind("transform", _makers(data.AbstractTransform, data), together=lambda *several: several),
        "at": Kind("network", {"RunEnd": dynamics.RunEnd}),
        "until": Kind("condition", _makers(until.AbstractCondition, until)),
        **dict.fromkeys(("observe", "observable"), Kind("observable", _makers(observe.Observable, observe))),
        "key": Kind("random key", {}, plain=random_key),
        **dict.fromkeys(ARRAYS, ARRAY),
    }


def _public(fits: Callable[[Any], bool], *rooms: types.ModuleType) -> dict[str, Callable[..., Any]]:
    """The public contents of modules that fit a place, by name, except those named Abstract... or find_..."""
    every = [(name, value) for room in rooms for name, value in vars(room).items()]
    return {name: value for name, value in every if not name.startswith(("_", "Abstract", "find_")) and fits(value)}


def _makers(base: type, *rooms: types.ModuleType) -> dict[str, Callable[..., Any]]:
    """The makers of a type, by name: functions, and classes all of whose required arguments a config can state."""

    def fits(value: Any) -> bool:
        if isinstance(value, type) and issubclass(value, base):
            given = inspect.signature(value).parameters.items()
            return not any(name in UNSAYABLE and item.default is item.empty for name, item in given)
        return inspect.isfunction(value) and inspect.signature(value).return_annotation is base

    return _public(fits, *rooms)


def random_key(seed: Any) -> Any:
    """The random key of an integer seed, which may be traced."""
    real = hasattr(seed, "dtype") and not jnp.issubdtype(seed.dtype, jnp.integer)
    if real or isinstance(seed, bool | float | str | tuple):
        raise TypeError(f"key must be an integer, the seed of jax.random.key, got {describe(seed)}")
    return jax.random.key(seed)


Node = Any
"""A `Recipe`, a `Formula`, a tuple of nodes, or a known value."""


class Recipe:
    """A call of `make` that waits for the values of axes: its arguments are nodes. `where` is its place in a config."""

    def __init__(self, make: Callable[..., Any], arguments: Mapping[str, Node], where: str):
        self.make = make
        self.arguments = dict(arguments)
        self.where = where
        self.names = names_in(tuple(self.arguments.values()))
        check_sizes(make, self.arguments, where)  # as far as they are known

    def value(self, values: Mapping[str, Any]) -> Any:
        """The object for these values of axes. Raises ConfigError if `make` rejects them."""
        with errors_of(self.where):  # all calls in here come from the config, and so do their errors
            arguments = {name: value_of(node, values) for name, node in self.arguments.items()}
            check = check_sizes if self.names else check_memory  # the sweep itself limits the memory of traced parts
            check(self.make, arguments, self.where)
            return self.make(**arguments)


def names_in(node: Node) -> frozenset[str]:
    """The axes on which a node depends."""
    if isinstance(node, Recipe | Formula):
        return node.names
    return frozenset().union(*map(names_in, node)) if type(node) is tuple else frozenset()


def value_of(node: Node, values: Mapping[str, Any]) -> Any:
    """The value of a node, given the values of axes."""
    if isinstance(node, Recipe | Formula):
        return node.value(values)
    return tuple(value_of(part, values) for part in node) if type(node) is tuple else node


def read_object(value: Any, kind: Kind, where: str) -> Node:
    """Reads a name, or a table with a `type` and arguments.

    An object that depends on no axis is made immediately, so that its errors show early and data are read once. Raises
    ConfigError if a name or key is unknown, with the nearest one, or an argument is missing or of another type.
    """
    if _is_formula(value) or (kind.plain is not None and not isinstance(value, Mapping)):
        return _made(kind.of, {"value": _read_value(value, where)}, where)
    if isinstance(value, str):
        value = {TYPE: value}
    if not isinstance(value, Mapping) or TYPE not in value:
        known = ", ".join(sorted(kind.known))
        raise ConfigError(f"{where} must be a table with a {TYPE!r}, one of {known}, got {shown(value)}")
    given = dict(value)
    make = _made(kind.find, {"name": given.pop(TYPE)}, where)
    if BIAS in given and kind.noun == "scaling":
        bias = read_arguments(nets.ScalingRule.with_bias, given.pop(BIAS), f"{where}.{BIAS}", BIAS)
        rule = Recipe(make, read_arguments(make, given, where), where)
        return _made(lambda rule, **scales: rule.with_bias(**scales), {"rule": rule, **bias}, where)
    return _made(make, read_arguments(make, given, where), where)


def read_arguments(make: Callable[..., Any], given: Any, where: str, called: str = "") -> dict[str, Node]:
    """Reads the arguments of a call. Raises ConfigError as `read_object` does."""
    called, named = called or make.__name__, (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    every = inspect.signature(make).parameters
    accepted = {name: p for name, p in every.items() if p.kind in named and name not in UNSAYABLE}
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
    if kind is not None and isinstance(value, list) and (together := kind.together) is not None:
        parts = {str(i): read_object(part, kind, f"{where}[{i}]") for i, part in enumerate(value)}
        return _made(lambda **several: together(*several.values()), parts, where)
    if kind is not None:
        return read_object(value, ARRAY if kind.arrays and isinstance(value, list) else kind, where)
    types_of, accepted = typing.get_args(annotation), _plain_types(annotation)
    if type(value) is int and float in types_of and int not in types_of:
        return float(value)
    fits = type(value) in accepted or (type(value) is int and float in accepted)
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

    `None` means to leave the argument out; `Padded` comes from an axis.
    """
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    plain = tuple(part for part in parts if part in (bool, int, float, str))
    return plain if all(part in (*plain, types.NoneType, nets.Padded) for part in parts) else ()
