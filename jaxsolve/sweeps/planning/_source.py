"""What a function does, as far as its source text and what it refers to tell."""

import ast
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


PACKAGE = Path(os.path.realpath(__file__)).parents[2]
LIBRARIES = tuple(Path(os.path.realpath(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))
DIGITS = 16  # of a digest: enough to tell versions of a function apart

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


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
    return not _in_library(file)


def _in_library(file: str | Path) -> bool:
    return any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in (PACKAGE, *LIBRARIES))


def digest(function: Any) -> str:
    """A digest of the source of a function or class, without comments, docstrings and line breaks.

    It is the same in every version of Python. Where there is no source (code made by a program), it is the bytecode's,
    which depends on the version of Python; the digest then names it.
    """
    if isinstance(function, type):
        found = [_of_class(base) for base in function.__mro__ if written_here(base)]
        return _short(repr(found))
    node = _node(function.__code__)
    if node is not None:
        # Neither the name nor decorators: a lambda and its copy under another name do the same.
        body = node.body if isinstance(node.body, list) else [node.body]
        return _short(_text([node.args, *_without_docstring(body)]))
    code = function.__code__
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{_short(repr((code.co_code, code.co_names, _constants(code))))} (bytecode of Python {version})"


def held(function: Any) -> dict[str, Any]:
    """What a function refers to, by name: its closure and defaults, and, if the user wrote it, globals.

    Of a method also the object that it belongs to; of a class of the user's what its methods refer to.
    """
    if isinstance(function, type):
        methods = sorted(_methods(function)) if written_here(function) else []
        return {key: value for _, method in reversed(methods) for key, value in held(method).items()}
    owner = _owner(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return owner
    found = _closure(code, function.__closure__ or ()) | _defaults(function)
    if written_here(function):
        known = function.__globals__
        found |= {key: known[key] for key in sorted(set(_names(code)) & known.keys() - found.keys())}
    return _seen_through(found, set(_names(code))) | owner


def _seen_through(found: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """In the place of modules, if the user wrote them, those of their members whose names the code has."""
    seen = {}
    for key, value in found.items():
        if not isinstance(value, types.ModuleType):
            seen[key] = value
        elif not _in_library(getattr(value, "__file__", None) or PACKAGE):
            members = {f"{key}.{name}": vars(value)[name] for name in sorted(names & vars(value).keys())}
            seen |= _seen_through(members, names)
    return seen


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # a cell with magic commands
        return None


def _module(code: types.CodeType | type) -> ast.Module | None:
    """The file, or cell of a notebook, in which something was written."""
    try:
        return _parsed("".join(inspect.findsource(code)[0]))
    except (OSError, TypeError):
        return None


def _node(code: types.CodeType) -> Function | None:
    """The function of this code, found by its first line and, among the lambdas of one line, by columns."""
    module = _module(code)
    if module is None:
        return None
    nodes = [item for item in ast.walk(module) if isinstance(item, Function) and _begin(item) == code.co_firstlineno]
    nodes = [item for item in nodes if getattr(item, "name", "<lambda>") == code.co_name]
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    inside = lambda node: all(
        (node.lineno, node.col_offset) <= place <= (node.end_lineno or 0, node.end_col_offset or 0) for place in places
    )
    return min(filter(inside, nodes), key=lambda node: (node.end_col_offset or 0) - node.col_offset, default=None)


def _of_class(cls: type) -> Any:
    """The text of a class; where there is none, digests of its methods."""
    module = _module(cls)
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__ and _begin(node) == _line_of(cls):
            return _text([*node.decorator_list, *node.bases, *_without_docstring(node.body)])
    return [(key, digest(method)) for key, method in sorted(_methods(cls))]


def _begin(node: Any) -> int:
    """The line where it begins, with its decorators."""
    return min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", ()))])


def _line_of(cls: type) -> int | None:
    try:
        line = inspect.findsource(cls)[1] + 1
    except (OSError, TypeError):
        return None
    return line


def _text(node: Any) -> str:
    """A syntax tree as text that all versions of Python agree on: newer ones add fields, which are empty here."""
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        node.body = _without_docstring(node.body) or [ast.Pass()]
    if isinstance(node, ast.Set):  # whose order means nothing
        return f"Set({sorted(map(_text, node.elts))})"
    fields = [(key, value) for key, value in ast.iter_fields(node) if key not in ("ctx", "kind", "type_comment")]
    inner = ",".join(f"{key}={_text(value)}" for key, value in fields if value is not None and value != [])
    return f"{type(node).__name__}({inner})"


def _without_docstring(body: list[Any]) -> list[Any]:
    first = body[0] if body else None
    has_one = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if has_one else body


def _constants(code: types.CodeType) -> list[Any]:
    inner = lambda value: (value.co_code, value.co_names, _constants(value))
    stable = lambda value: sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
    return [inner(value) if isinstance(value, types.CodeType) else stable(value) for value in code.co_consts]


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


def _methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    for base in cls.__mro__:
        if written_here(base):
            for key, member in vars(base).items():
                function = unwrapped(getattr(member, "fget", None) or getattr(member, "__func__", member))
                if isinstance(function, types.FunctionType) and written_here(function):
                    yield f"{base.__qualname__}.{key}", function


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
