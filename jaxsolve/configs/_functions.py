"""Functions of axes from a config: its problem and dynamics, or a function of the user's own."""

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax

from .._checks import attempt
from .._core import AbstractDynamics, Problem
from ..losses import MSE
from ._catalogue import kinds, names_in, Node, read_arguments, read_object, Recipe, value_of
from ._refusals import ConfigError, shown, words


SIDE_BY_SIDE = "dynamics"  # the axis of several dynamics
LABEL = "name"  # the key that names one of several dynamics


@dataclasses.dataclass(frozen=True)
class ConfiguredProblem:
    """Makes the problem of a cell from the table `[problem]`, which the manifest of a store shows unchanged.

    Raises ConfigError if the table does not describe one, with `network`, `data` and other arguments of `Problem`.
    """

    table: Mapping[str, Any]

    def __post_init__(self):
        _ = self._recipe

    def __call__(self, /, **cell: Any) -> Problem:
        return self._recipe.value(cell)

    @property
    def names(self) -> frozenset[str]:
        """The axes that the table refers to."""
        return self._recipe.names

    @functools.cached_property
    def _recipe(self) -> Recipe:
        return Recipe(_problem, read_arguments(_problem, self.table, "problem", "[problem]"), "problem")


def _problem(
    *, network: Any, data: Any, transform: Any = (), loss: Any = MSE(), centered: bool = False, weight_decay: Any = None
) -> Problem:
    """The problem that the entries of a table `[problem]` describe."""
    for each in transform if isinstance(transform, tuple) else (transform,):
        data = data.transform(each)
    rest: dict[str, Any] = {"test": data.test, "loss": loss, "centered": centered, "weight_decay": weight_decay}
    state = eqx.nn.State(network)  # of batch normalization
    if jax.tree.leaves(state):
        network, rest["state"] = eqx.nn.delete_init_state(network), state
    return Problem(network, *data.train, **rest)


@dataclasses.dataclass(frozen=True)
class ConfiguredDynamics:
    """Makes the dynamics of a cell from the table `[dynamics]`, or from several under `[[dynamics]]`.

    The axis `dynamics` chooses among several by name. Raises ConfigError if a table describes none, or names clash.
    """

    tables: Any

    def __post_init__(self):
        _ = self._nodes

    def __call__(self, /, **cell: Any) -> AbstractDynamics:
        [node] = self._nodes.values() if len(self._nodes) == 1 else [self._nodes[cell[SIDE_BY_SIDE]]]
        return value_of(node, cell)

    @property
    def labels(self) -> list[str]:
        """The names of the dynamics, if there are several; empty for a single one."""
        return list(self._nodes) if isinstance(self.tables, list) else []

    @property
    def names(self) -> frozenset[str]:
        """The axes on which they depend, including `dynamics` if there are several."""
        return names_in(tuple(self._nodes.values())) | ({SIDE_BY_SIDE} if self.labels else set())

    @functools.cached_property
    def _nodes(self) -> dict[str, Node]:
        kind, found = kinds()["dynamics"], dict[str, Node]()
        if not isinstance(self.tables, list):
            return {SIDE_BY_SIDE: read_object(self.tables, kind, SIDE_BY_SIDE)}
        for i, table in enumerate(self.tables):
            where, table = f"{SIDE_BY_SIDE}[{i}]", dict(table) if isinstance(table, Mapping) else {"type": table}
            label = table.pop(LABEL, table.get("type"))
            if not isinstance(label, str) or not label:
                raise ConfigError(f"{where}.{LABEL} must be a string, the name of this one, got {shown(label)}")
            if label in found:
                raise ConfigError(f"{where}: there are two called {label!r}; give each a {LABEL!r} of its own")
            found[label] = read_object(table, kind, where)
        if not found:
            raise ConfigError(f"{SIDE_BY_SIDE} holds none; give a table [dynamics], or several [[dynamics]]")
        return found


def import_problem(text: str, *, allow_code: bool) -> Callable[..., Problem]:
    """The function that `"module:function"` names; importing the module runs its code.

    Raises ConfigError if this is not allowed, or if it is not a function of a module of the user's own.
    """
    if not allow_code:
        raise ConfigError(
            f"problem: {text!r} is code, which a config may run only if you allow it. If you trust that module, give "
            "--allow-code on the command line, or allow_code=True to read_config"
        )
    module, _, name = text.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"problem: {text!r} cannot be imported; give 'module:function'")
    package = module.split(".")[0]
    if package in sys.stdlib_module_names or package in (*sys.builtin_module_names, "jaxsolve"):
        raise ConfigError(f"problem: {text!r} is not in a module of your own; give 'module:function' with one that is")
    found, error = attempt(lambda: getattr(importlib.import_module(module), name))
    if error is not None:
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
