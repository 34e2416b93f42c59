"""What a function does, as far as its own code and what it refers to tell."""

import hashlib
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


PACKAGE = Path(os.path.realpath(__file__)).parent.parent
LIBRARIES = tuple(Path(os.path.realpath(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))
DIGITS = 16  # of a digest: enough to tell versions of a function apart


def is_function(value: Any) -> bool:
    """Whether a value is code: a function, a method, a class, or one of them wrapped (cached, compiled)."""
    return isinstance(value, type) or (callable(value) and hasattr(unwrapped(value), "__name__"))


def unwrapped(value: Any) -> Any:
    """The function inside of `functools.cache`, `jax.jit` and the like."""
    return inspect.unwrap(value) if hasattr(value, "__wrapped__") else value


def name(function: Any) -> str:
    """What a function is called; those of libraries with the library, those of the user wherever they stand."""
    called = getattr(function, "__qualname__", function.__name__)
    package = (getattr(function, "__module__", None) or "").split(".")[0]
    return called if written_here(function) or not package else f"{package}.{called}"


def written_here(function: Any) -> bool:
    """Whether the user wrote it: its code is in no library, whose version is recorded anyway."""
    code = getattr(function, "__code__", None)
    file = getattr(code, "co_filename", "")
    if not os.path.isabs(file):  # a class, or code that was typed in or made by a program
        file = getattr(sys.modules.get(function.__module__ or ""), "__file__", None)
        if file is None:
            return code is not None or function.__module__ == "__main__"
    return not any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in (PACKAGE, *LIBRARIES))


def digest(function: Any) -> str:
    """A digest of what a function or class executes, which comments, names of variables and line breaks leave alone.

    It depends on the version of Python, which it names.
    """
    parts = sorted(_members(function)) if isinstance(function, type) else [("", function)]
    content = repr([(key, _content(member.__code__)) for key, member in parts])
    short = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    return f"{short} (Python {sys.version_info.major}.{sys.version_info.minor})"


def held(function: Any) -> dict[str, Any]:
    """What a function refers to, by name: its closure and defaults, and, if the user wrote it, globals.

    Of a method also the object that it belongs to; of a class of the user's what its methods refer to.
    """
    if isinstance(function, type):
        methods = sorted(_members(function)) if written_here(function) else []
        return {key: value for _, method in reversed(methods) for key, value in held(method).items()}
    owner = _owner(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return owner
    found = _closure(code, function.__closure__ or ()) | _defaults(function)
    if written_here(function):
        known = function.__globals__
        found |= {key: known[key] for key in sorted(set(_names(code)) & known.keys() - found.keys())}
    return {key: value for key, value in found.items() if not isinstance(value, types.ModuleType)} | owner


def _owner(function: Any) -> dict[str, Any]:
    """The object that a method belongs to; of what is built in it would be a module."""
    if isinstance(function, types.BuiltinFunctionType) or not hasattr(function, "__self__"):
        return {}
    return {"self": function.__self__}


def _closure(code: types.CodeType, cells: tuple[types.CellType, ...]) -> dict[str, Any]:
    found = {}
    for key, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[key] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _defaults(function: Any) -> dict[str, Any]:
    code, last = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(last) : code.co_argcount]
    return dict(zip(names, last, strict=True)) | (function.__kwdefaults__ or {})


def _members(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for base in cls.__mro__:
        if written_here(base):
            for key, member in vars(base).items():
                function = unwrapped(getattr(member, "fget", None) or getattr(member, "__func__", member))
                if isinstance(function, types.FunctionType) and written_here(function):
                    yield f"{base.__qualname__}.{key}", function


def _content(code: types.CodeType) -> tuple:
    constants = list(code.co_consts)
    if _has_docstring(code):
        constants[0] = None
    plain = [_content(c) if isinstance(c, types.CodeType) else _stable(c) for c in constants]
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # axes are passed by name
    return code.co_code.hex(), code.co_names, arguments, plain


def _has_docstring(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring. Until Python 3.13 that of a function's code is one, or None."""
    marked = sys.version_info < (3, 14) or bool(code.co_flags & 0x4000000)
    function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
    return marked and function and bool(code.co_consts) and isinstance(code.co_consts[0], str)


def _stable(constant: Any) -> str:
    """A constant as text that does not depend on the order of sets."""
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_stable, constant)))}}}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_stable, constant))})"
    return repr(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
