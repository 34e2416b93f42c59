"""Reads the sources of jaxsolve, its tests and benchmarks, for the tests of the house."""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import jaxsolve


PACKAGE = Path(inspect.getfile(jaxsolve)).parent
ROOT = PACKAGE.parent
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The folder of jaxsolve that holds a file, or the name of a file beside these folders."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file, parsed."""
    return ast.parse(path.read_text(), str(path))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, except what stands under `if TYPE_CHECKING` and never runs."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not _is_type_checking(child):
            yield from _running(child)
        elif isinstance(child, ast.If):
            for other in child.orelse:
                yield other
                yield from _running(other)


@functools.cache
def imports(path: Path, source: ast.Module, *, at_import: bool = False) -> tuple[tuple[str, ...], ...]:
    """Every import of a file as the parts of an absolute dotted name; with `at_import` only those outside functions."""
    return tuple(_imports(path, source, at_import=at_import))


def _imports(path: Path, source: ast.Module, *, at_import: bool) -> Iterator[tuple[str, ...]]:
    package = path.relative_to(ROOT).parts[:-1]
    inside = {
        id(below)
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for below in ast.walk(node)
        if at_import
    }
    for node in _running(source):
        if at_import and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


def private_imports(path: Path, source: ast.Module) -> set[str]:
    """The private modules and names of jaxsolve that a file imports from a room other than its own, as dotted names.

    The files beside the rooms (`_results.py`) and the face that a room has for others (`kernels/_internal.py`) belong
    to all of jaxsolve: their public names are free to its rooms.
    """
    own = path.relative_to(ROOT).parts[:2]
    found = set()
    for parts in imports(path, source):
        start = 2 if own[0] == "jaxsolve" else 1
        if own[0] == "jaxsolve" and parts[2:3] == ("_internal",):
            start = 3
        if parts[0] == "jaxsolve" and parts[:2] != own and any(_is_private(part) for part in parts[start:]):
            found.add(".".join(parts))
    if own[0] == "tests":  # they patch names that are written as text, and run programs that are
        for text in (str(node.value) for node in ast.walk(source) if isinstance(node, ast.Constant)):
            found |= set(re.findall(r"\bjaxsolve(?:\.\w+)*\._[a-z]\w*", text))
            found |= {".".join(pair) for pair in re.findall(r"from (jaxsolve[\w.]*) import (_[a-z]\w*)", text)}
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
