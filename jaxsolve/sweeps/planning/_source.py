"""What a function does, as far as its source text and what it refers to tell."""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


PACKAGE = Path(os.path.realpath(__file__)).parents[2]
INSTALLED = [*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), *site.getsitepackages()]
LIBRARIES = (PACKAGE, *(Path(os.path.realpath(place)) for place in (*INSTALLED, site.getusersitepackages())))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
CHECKERS = ("beartype", "jaxtyping", "typeguard")
DIGITS = 16  # of a digest: enough to tell versions of a function apart


def unwrapped(value: Any) -> Any:
    """The function inside of `functools.cache`, `jax.jit` and the like; what the user's own decorators make is one."""
    return inspect.unwrap(value, stop=_by_the_user) if hasattr(value, "__wrapped__") else value


def _by_the_user(value: Any) -> bool:
    """Whether the user wrote a function or the class of an object; what beartype makes of one is not the user's."""
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType):  # an object
        return written_here(type(value))
    return written_here(value) and not code.co_filename.startswith("<@beartype")


def layers(value: Any, core: Any, seen: set[int] | None = None) -> Iterator[dict[str, Any]]:
    """What functions of libraries such as `jax.grad` put around a core, outermost first: names and plain settings.

    They hold each other by `__wrapped__` or in closures. `jax.jit` and decorators of the standard library make none.
    """
    seen = {id(core)} if seen is None else seen
    while id(value) not in seen and not _by_the_user(value):
        seen.add(id(value))
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType) and not _transparent(value):
            cells = _cells(value)
            # JAX puts a layer of its own around each, which shortens errors.
            if not value.__globals__.get("__name__", "").endswith(".traceback_util"):
                yield {"function": code.co_qualname, **_settings(cells)}
            for item in cells.values():
                if isinstance(item, types.FunctionType) or (hasattr(item, "__wrapped__") and callable(item)):
                    yield from layers(item, core, seen)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):  # of Equinox
            yield {"function": type(value).__qualname__, **_settings(vars(value))}
        value = getattr(value, "__wrapped__", core)


def _transparent(function: types.FunctionType) -> bool:
    """Whether it is of the standard library, or checks types."""
    package = function.__globals__.get("__name__", "").split(".")[0]
    known = package in sys.stdlib_module_names or package in CHECKERS
    return known or function.__code__.co_filename.startswith("<@beartype")


def _settings(held: dict[str, Any]) -> dict[str, Any]:
    """What is set, as far as it is plain: another release may have more settings, which are not."""
    unset = lambda item: item is None or item is False or item == ()
    return {key: item for key, item in held.items() if _is_plain(item) and not unset(item)}


def _is_plain(value: Any) -> bool:
    """Whether it is the same in every process: no cache, no trace and no address."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


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
        # A decorated function says that it is of the module of the function inside.
        module = function.__globals__.get("__name__") if isinstance(code, types.CodeType) else function.__module__
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        if file is None:
            return isinstance(code, types.CodeType) or function.__module__ == "__main__"
    return not _in_library(file)


def _in_library(file: str | Path) -> bool:
    return any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in LIBRARIES)


def short(content: str | bytes) -> str:
    """A digest."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:DIGITS]


def digest(thing: Any) -> str:
    """A digest of the source of a function or class, without comments, docstrings and line breaks.

    It is the same in every version of Python. Where there is no source (code made by a program), it is the bytecode's,
    which depends on the version of Python; the digest then names it.
    """
    if isinstance(thing, type):
        return short(repr([_of_class(base) for base in thing.__mro__ if written_here(base)]))
    code: types.CodeType = thing.__code__
    if node := _node(code):
        # Neither the name nor decorators: a lambda and its copy under another name do the same.
        return short(_text([node.args, *(_statements(node) if isinstance(node.body, list) else [node.body])]))
    return f"{short(repr(_bytecode(code)))} (bytecode of Python {sys.version_info.major}.{sys.version_info.minor})"


def held(function: Any) -> dict[str, Any]:
    """What a function refers to, by name: its closure and defaults, and, if the user wrote it, globals and imports.

    Of a method also the object that it belongs to; of a class of the user's what its methods refer to.
    """
    if isinstance(function, type):
        methods = sorted(_methods(function)) if written_here(function) else []
        return _members(function) | {
            f"{called}.{key}" if hasattr(method, "__wrapped__") else key: value  # decorators call all of theirs alike
            for called, method in reversed(methods)
            for key, value in held(method).items()
        }
    owner = {"self": function.__self__} if hasattr(function, "__self__") else {}
    code: types.CodeType | None = getattr(function, "__code__", None)
    if code is None:  # of what is built in, the owner would be a module
        return {} if inspect.isbuiltin(function) else owner
    found = _cells(function)
    parameters = inspect.signature(function, follow_wrapped=False).parameters.items()
    found |= {key: item.default for key, item in parameters if item.default is not item.empty}
    named = set(names(code))
    if written_here(function):
        known = function.__globals__
        found |= {key: known[key] for key in sorted(named & known.keys() - found.keys())}
        body = getattr(_node(code), "body", None)
        found = (dict(_imports(body, known)) if isinstance(body, list) else {}) | found
    return _seen_through(found, named) | owner


def _cells(function: Any) -> dict[str, Any]:
    """The closure of a function."""
    found = {}
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[key] = cell.cell_contents
    return found


def attributes(thing: Any) -> dict[str, Any]:
    """What an object keeps by name, in slots too, but for what decorators copy and cached properties remember."""
    passed = lambda key: isinstance(getattr(type(thing), key, None), functools.cached_property)
    members = [item for base in type(thing).__mro__ if "__slots__" in vars(base) for item in vars(base).items()]
    slots = [key for key, member in members if isinstance(member, types.MemberDescriptorType) and hasattr(thing, key)]
    kept = {key: getattr(thing, key) for key in slots} | getattr(thing, "__dict__", {})
    return {key: item for key, item in kept.items() if key not in functools.WRAPPER_ASSIGNMENTS and not passed(key)}


def _seen_through(found: dict[str, Any], named: set[str]) -> dict[str, Any]:
    """In the place of modules, if the user wrote them, those of their members whose names the code has."""
    seen = {}
    for key, value in found.items():
        if not isinstance(value, types.ModuleType):
            seen[key] = value
        elif not _in_library(getattr(value, "__file__", None) or PACKAGE):
            members = {f"{key}.{name}": vars(value)[name] for name in sorted(named & vars(value).keys())}
            seen |= _seen_through(members, named)
    return seen


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _nodes(thing: types.CodeType | type) -> list[Any]:
    """What may be the syntax tree of a function or class, by its name and first line; none where there is no source."""
    try:
        lines, above = inspect.findsource(thing)
        module = _parsed("".join(lines))
    except (OSError, TypeError, SyntaxError):  # a cell with magic commands
        return []
    if isinstance(thing, type):
        kinds, wanted = ast.ClassDef, (thing.__name__, above + 1)
    else:
        kinds, wanted = FUNCTIONS, (thing.co_name, thing.co_firstlineno)
    # They begin with their decorators.
    first = lambda node: min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
    nodes = (node for node in ast.walk(module) if isinstance(node, kinds))
    return [node for node in nodes if (getattr(node, "name", "<lambda>"), first(node)) == wanted]


def _node(code: types.CodeType) -> Any:
    """The syntax tree of a function; None where there is no source."""
    begin = lambda node: (node.lineno, node.col_offset)
    nodes = _nodes(code)
    if len(nodes) > 1:  # the lambdas of one line
        places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
        covers = lambda node, place: begin(node) <= place <= (node.end_lineno, node.end_col_offset)
        nodes = [node for node in nodes if all(covers(node, place) for place in places)]
    return max(nodes, key=begin, default=None)


def _of_class(cls: type) -> Any:
    """The text of a class; where there is none, digests of its methods."""
    for node in _nodes(cls):
        return _text([*node.decorator_list, *node.bases, *_statements(node)])
    return [(key, digest(method)) for key, method in sorted(_methods(cls))]


def _text(node: Any) -> str:
    """A syntax tree as text that all versions of Python agree on: newer ones add fields, which are empty here."""
    if isinstance(node, list):
        return f"[{','.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Set):  # whose order means nothing
        return f"Set({sorted(map(_text, node.elts))})"
    fields = {key: value for key, value in ast.iter_fields(node) if key not in ("ctx", "kind", "type_comment")}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        fields["body"] = _statements(node) or [ast.Pass()]
    inner = ",".join(f"{key}={_text(value)}" for key, value in fields.items() if value is not None and value != [])
    return f"{type(node).__name__}({inner})"


def _statements(node: Any) -> list[Any]:
    """The body of a function or class, without its docstring."""
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def _bytecode(code: types.CodeType) -> Any:
    stable = lambda value: sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
    inner = [_bytecode(item) if isinstance(item, types.CodeType) else stable(item) for item in code.co_consts]
    return code.co_code, code.co_names, inner


def _methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    for base in filter(written_here, cls.__mro__):
        for key, member in vars(base).items():
            called, function = f"{base.__qualname__}.{key}", getattr(member, "fget", None)
            function = unwrapped(function or getattr(member, "__func__", member))
            while isinstance(function, types.FunctionType) and written_here(function):
                yield called, function
                called, function = f"{called}.__wrapped__", unwrapped(getattr(function, "__wrapped__", None))


def _members(cls: type) -> dict[str, Any]:
    """What classes of the user's hold themselves, as values: their text may name a constant, and others may set it."""
    return {
        f"{base.__qualname__}.{key}": member
        for base in filter(written_here, cls.__mro__)
        for key, member in vars(base).items()
        if not key.startswith("__") and (_is_plain(member) or hasattr(member, "dtype"))
    }


def _imports(statements: list[Any], known: dict[str, Any]) -> Iterator[tuple[str, types.ModuleType]]:
    """The user's modules that a function imports whenever it runs, which may be loaded now: not those in branches."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.With):
            yield from _imports(statement.body, known)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                yield from _loaded(alias.name, ["*"], 0, known)
        elif isinstance(statement, ast.ImportFrom):
            yield from _loaded(statement.module or "", [one.name for one in statement.names], statement.level, known)


def _loaded(name: str, wanted: list[str], level: int, known: dict[str, Any]) -> Iterator[tuple[str, types.ModuleType]]:
    with contextlib.suppress(Exception, SystemExit):  # that it fails, the function itself will say
        if level == 0:
            spec: Any = importlib.util.find_spec(name.split(".")[0])
            place = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations), PACKAGE)
            if _in_library(place):
                return
        module = __import__(name, known, None, wanted, level)
        yield module.__name__, module


def names(code: types.CodeType) -> Iterator[str]:
    """Names that a function uses, those of attributes too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names(constant)
