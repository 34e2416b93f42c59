"""What a config makes of the values of axes: problems and dynamics, or what a function of the reader's own does."""

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax

from .._dynamics import AbstractDynamics
from .._problem import Problem
from ._catalogue import kinds
from ._recipe import names_in, Node, read_arguments, read_object, value_of
from ._refusals import ConfigError, shown, words


SIDE_BY_SIDE = "dynamics"  # the axis of several
LABEL = "name"  # the key of a table that says what one of several is called


@dataclasses.dataclass(frozen=True)
class ConfiguredProblem:
    """Makes the problem of a cell from the table `[problem]`, which the manifest of a store shows as it is.

    Raises ConfigError if the table says none: `network` and `data`, and what else `Problem` takes.
    """

    table: Mapping[str, Any]

    def __post_init__(self):
        _ = self._nodes

    def __call__(self, /, **cell: Any) -> Problem:
        nodes = self._nodes
        try:
            parts = {name: value_of(node, cell) for name, node in nodes.items()}
            net, data = parts.pop("network"), parts.pop("data")
            transforms = parts.pop("transform", ())
            for transform in transforms if isinstance(transforms, tuple) else (transforms,):
                data = data.transform(transform)
            state = eqx.nn.State(net)  # of batch normalisation
            if jax.tree.leaves(state):
                net, parts["state"] = eqx.nn.delete_init_state(net), state
            return Problem(net, *data.train, test=data.test, **parts)
        except (ConfigError, OSError):
            raise
        except Exception as error:  # nothing but what the config says is called here
            raise ConfigError(f"problem: {words(error)}") from error

    @property
    def names(self) -> frozenset[str]:
        """The axes that the table refers to."""
        return names_in(tuple(self._nodes.values()))

    @functools.cached_property
    def _nodes(self) -> dict[str, Node]:
        return read_arguments(_problem_parts, self.table, "problem", "[problem]")


def _problem_parts(*, network: Any, data: Any, transform: Any = (), loss: Any = None, centered: bool = False) -> None:
    """What a table `[problem]` may hold."""


@dataclasses.dataclass(frozen=True)
class ConfiguredDynamics:
    """Makes the dynamics of a cell from the table `[dynamics]`, or from several under `[[dynamics]]`.

    Of several the axis `dynamics` chooses one by its name. Raises ConfigError if a table says none, or two share one.
    """

    tables: Any

    def __post_init__(self):
        _ = self._nodes

    def __call__(self, /, **cell: Any) -> AbstractDynamics:
        [node] = self._nodes.values() if len(self._nodes) == 1 else [self._nodes[cell[SIDE_BY_SIDE]]]
        return value_of(node, cell)

    @property
    def labels(self) -> list[str]:
        """What several are called; nothing of a single one."""
        return list(self._nodes) if isinstance(self.tables, list) else []

    @property
    def names(self) -> frozenset[str]:
        """The axes that the tables refer to."""
        return names_in(tuple(self._nodes.values()))

    @functools.cached_property
    def _nodes(self) -> dict[str, Node]:
        kind, found = kinds()["dynamics"], dict[str, Node]()
        if not isinstance(self.tables, list):
            return {SIDE_BY_SIDE: read_object(self.tables, kind, SIDE_BY_SIDE)}
        for i, table in enumerate(self.tables):
            where, table = f"{SIDE_BY_SIDE}[{i}]", dict(table) if isinstance(table, Mapping) else {"type": table}
            label = table.pop(LABEL, table.get("type"))
            if not isinstance(label, str) or not label:
                raise ConfigError(f"{where}.{LABEL} must be a text, what this one is called, got {shown(label)}")
            if label in found:
                raise ConfigError(f"{where}: there are two called {label!r}; give each a {LABEL!r} of its own")
            found[label] = read_object(table, kind, where)
        if not found:
            raise ConfigError(f"{SIDE_BY_SIDE} holds none; give a table [dynamics], or several [[dynamics]]")
        return found


def import_problem(text: str, *, allow_code: bool) -> Callable[..., Problem]:
    """The function that `"module:function"` names; importing the module runs its code.

    Raises ConfigError if the reader does not allow it, or if it is no function of a module of the reader's own.
    """
    if not allow_code:
        raise ConfigError(
            f"problem: {text!r} is code, and a config may run none unless you allow it. If you trust that module, give "
            "--allow-code on the command line, or allow_code=True to read_config"
        )
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"problem: {text!r} cannot be imported; give 'module:function'")
    package = module.split(".")[0]
    if package in sys.stdlib_module_names or package in (*sys.builtin_module_names, "jaxsolve"):
        raise ConfigError(f"problem: {text!r} is no module of your own; give 'module:function' with one that is")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigError(
            f"problem: {text!r} cannot be imported ({words(error)}); give 'module:function', with a module that Python "
            "finds; the command also looks into the working directory"
        ) from error
    if not callable(found):
        raise ConfigError(f"problem: {text!r} must be a function that returns a Problem, got {shown(found)}")
    home = _home(found)
    if home.split(".")[0] != package:
        raise ConfigError(
            f"problem: {text!r} is a function of {home or 'another module'}, not of your module {module!r}"
        )
    made: Callable[..., Any] = found
    return made


def _home(function: Any) -> str:
    """The module in which a function, a class, or the class of a callable object was written."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function, "__module__", None) or type(function).__module__
