"""A function of the reader's own that a config names: the one way from a config to code."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .._problem import Problem
from ._errors import ConfigError, shown, words


def import_problem(text: str, *, allow_code: bool) -> Callable[..., Problem]:
    """The function that `"module:function"` names; importing the module runs its code.

    Arguments:
        text: what the config says.
        allow_code: whether the reader allows it.

    Raises:
        ConfigError: it is not allowed, is not in a module of the reader's own, or returns no problem.
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
