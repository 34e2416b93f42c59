"""The house stands as DESIGN.md and CONTRIBUTING.md say: who imports whom, what classes and modules look like."""

import abc
import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import pytest

import jaxsolve


PACKAGE = Path(inspect.getfile(jaxsolve)).parent
FILES = sorted(PACKAGE.rglob("*.py"))
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))

# An arrow points to the importer; rooms on one line do not import each other.
STEPS = (
    ("_results", "_checks", "_clock", "_phi", "_safe", "_regime"),
    ("nets", "losses", "data", "_validity"),
    ("kernels",),
    ("_problem",),
    ("_dynamics", "_trajectory"),
    ("until",),
    ("integrators", "theory"),
    ("dynamics",),
    ("observe",),
    ("_solve",),
    ("_compare", "sweeps"),
    ("plot",),
    ("papers", "report", "_quickstart"),
    ("cli",),
)
STEP = {room: index for index, rooms in enumerate(STEPS) for room in rooms}
NEIGHBOURS = {("_trajectory", "_dynamics")}  # the one pair on one line with an arrow
# Closed forms and simulations check each other, so neither may use the other (an arrow alone would allow the second).
STRANGERS = {("theory", "dynamics"), ("dynamics", "theory"), ("theory", "integrators")}

# Library: the rooms and files that may import it.
GUARDED = {
    "matplotlib": ("plot", "papers", "_quickstart/_figures.py"),
    "zarr": ("sweeps/_store.py",),
    "xarray": ("sweeps/_store.py", "_trajectory.py"),
    "dask": ("sweeps/_cluster.py",),
    "plotly": ("report",),
    "distributed": ("sweeps/_cluster.py",),
    "cloudpickle": ("sweeps/_cluster.py",),
    "neural_tangents": ("kernels/_neural_tangents.py",),
    "tensorflow": (),
    "sklearn": ("data",),
}
FOREIGN = {"theory": ("diffrax", "optax")}  # theory never integrates
LAZY = (
    "matplotlib",
    "zarr",
    "xarray",
    "dask",
    "distributed",
    "cloudpickle",
    "neural_tangents",
    "plotly",
    "sklearn",
    "rich",
)
MAX_LINES = 350


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def _tree(path: Path) -> ast.Module:
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


def _imports(path: Path, *, at_import: bool = False) -> Iterator[tuple[str, ...]]:
    """Every import as the parts of an absolute dotted name; with `at_import` only those outside functions."""
    package = ("jaxsolve", *path.relative_to(PACKAGE).parts[:-1])
    inside = {
        id(below)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for below in ast.walk(node)
    }
    for node in _running(_tree(path)):
        if at_import and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*base, alias.name) for alias in node.names)


@functools.cache
def _public_homes() -> dict[str, str]:
    """The room from which the package exports each of its names."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        alias.name: (node.module or alias.name).split(".")[0]
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _rooms_used(path: Path) -> set[str]:
    used = {parts[1] for parts in _imports(path) if parts[0] == "jaxsolve" and len(parts) > 1}
    return {_public_homes().get(name, name) for name in used} - {"__version__"}


# --- arrows


def test_every_room_has_its_step():
    rooms = {_room(path) for path in FILES} - {"__init__"}
    assert rooms <= set(STEP), f"no step is known for {sorted(rooms - set(STEP))}"


@EACH_FILE
def test_arrows(path):
    room = _room(path)
    if room == "__init__":
        assert not _rooms_used(path)
        return
    for used in _rooms_used(path) - {room}:
        assert used in STEP, f"{room} imports {used}, which is no room"
        allowed = STEP[used] < STEP[room] or (room, used) in NEIGHBOURS
        assert allowed, f"{room} must not import {used}: it is not on an earlier step"
        assert (room, used) not in STRANGERS, f"{room} must not import {used}: each checks the other"


@EACH_FILE
def test_guarded_libraries(path):
    where, libraries = path.relative_to(PACKAGE), {parts[0] for parts in _imports(path)}
    for library in libraries & set(GUARDED):
        assert {_room(path), where.as_posix()} & set(GUARDED[library]), f"{where} must not import {library}"
    assert not libraries & set(FOREIGN.get(_room(path), ())), "theory never integrates"


@EACH_FILE
def test_heavy_libraries_are_imported_when_used(path):
    if _room(path) == "cli":  # nothing imports it: it runs, and then needs them
        return
    heavy = {parts[0] for parts in _imports(path, at_import=True)} & set(LAZY)
    assert not heavy, f"import {heavy} inside the function that needs it"


def test_the_guards_see_what_they_must(monkeypatch):
    """The reader of imports finds relative, absolute and nested ones, and passes over those for type checkers."""
    source = """
from typing import TYPE_CHECKING
import jaxsolve.observe as o, zarr.storage
from .. import nets, solve
from ..kernels import empirical
from . import exact
if TYPE_CHECKING:
    import xarray
else:
    import pandas
def f():
    from ..sweeps._store import save
    import matplotlib.pyplot
"""
    imagined = ast.parse(source)
    monkeypatch.setitem(globals(), "_tree", lambda path: imagined)
    path = PACKAGE / "theory" / "_imagined.py"
    assert _rooms_used(path) == {"observe", "nets", "_solve", "kernels", "theory", "sweeps"}
    assert {parts[0] for parts in _imports(path)} == {"typing", "jaxsolve", "zarr", "pandas", "matplotlib"}
    assert "matplotlib" not in {parts[0] for parts in _imports(path, at_import=True)}
    for check in (test_arrows, test_guarded_libraries, test_heavy_libraries_are_imported_when_used):
        with pytest.raises(AssertionError, match="theory|import"):
            check(path)


# --- modules


@EACH_FILE
def test_modules_are_short_private_and_plain(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES, f"{len(lines)} lines"
    assert path.stem.startswith("_"), "modules are private; a room exports its names from __init__"
    for node in ast.walk(_tree(path)):
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__"), "breaks AbstractVar"
        assert not (isinstance(node, ast.Name) and node.id == "super"), "classes are abstract or final"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("config.update"):
            assert _room(path) == "cli", "only the command line sets jax.config"


@EACH_FILE
def test_rooms_only_list_names(path):
    if path.name != "__init__.py" or path.parent == PACKAGE:
        return
    stub = path.with_suffix(".pyi")
    if stub.exists():  # names are imported when first used
        assert "__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)" in path.read_text()
    for node in _tree(stub).body if stub.exists() else _tree(path).body[1:]:
        assert isinstance(node, ast.ImportFrom | ast.Import), "an __init__ only exports names"
        for alias in node.names:
            if not alias.name.startswith("_") and alias.asname is not None:
                assert alias.asname == alias.name


# --- classes


def _modules() -> list[types.ModuleType]:
    return [importlib.import_module(item.name) for item in pkgutil.walk_packages([str(PACKAGE)], "jaxsolve.")]


def _classes() -> list[type]:
    found = {
        value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("jaxsolve")
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


CLASSES = _classes()
EQUINOX = [cls for cls in CLASSES if issubclass(cls, eqx.Module)]
EACH_CLASS = pytest.mark.parametrize("cls", EQUINOX, ids=lambda cls: cls.__name__)


def _open_ends(cls: type) -> frozenset[str]:
    """What a class leaves to its subclasses."""
    return frozenset().union(
        *(getattr(cls, name, ()) for name in ("__abstractmethods__", "__abstractvars__", "__abstractclassvars__"))
    )


def _is_code(member: object) -> bool:
    return not isinstance(member, type) and (callable(member) or hasattr(type(member), "__get__"))


def _generated(name: str) -> bool:
    """Names that Equinox and dataclasses write into every class."""
    return name in ("__init__", "__check_init__", "__setattr__", "__delattr__") or name.startswith("__dataclass")


def _faults(cls: type, package: str) -> list[str]:
    """Where a class is neither abstract nor final, among the classes of a package."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith(package)]
    children = [child.__name__ for child in cls.__subclasses__() if child.__module__.startswith(package)]
    faults = []
    if cls.__name__.lstrip("_").startswith("Abstract"):
        if not _open_ends(cls):
            faults.append("an abstract class leaves something to its subclasses")
    else:
        if _open_ends(cls):
            faults.append(f"not abstract by name, but {sorted(_open_ends(cls))} are open")
        if children:
            faults.append(f"a final class has no subclasses, but {children}")
    for base in bases:
        for name, member in vars(base).items():
            if name in vars(cls) and _is_code(member) and not _generated(name):
                if not getattr(member, "__isabstractmethod__", False):
                    faults.append(f"overrides {base.__name__}.{name}")
        foreign = [b for b in base.__mro__ if not b.__module__.startswith(package) and dataclasses.is_dataclass(b)]
        fields = _fields(base) - _open_ends(base) - {name for other in foreign for name in _fields(other)}
        if fields:
            faults.append(f"inherits the fields {sorted(fields)} of {base.__name__}: fields and __init__ in one class")
    return faults


def _fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def test_there_are_classes_to_check():
    names = {cls.__name__ for cls in EQUINOX}
    assert {"MLP", "AbstractNetwork", "Problem", "GradientFlow", "MSE", "Trajectory", "Scaling"} <= names
    assert any(_open_ends(cls) for cls in EQUINOX)


@EACH_CLASS
def test_classes_are_abstract_or_final(cls):
    assert not _faults(cls, "jaxsolve")


def test_the_classes_are_looked_at():
    """Each rule finds the imagined class that breaks it."""

    class AbstractShape(eqx.Module):
        size: eqx.AbstractVar[float]

        @abc.abstractmethod
        def area(self) -> float: ...

        def twice(self):
            return 2 * self.area()

    class Square(AbstractShape):
        size: float

        def area(self):
            return self.size**2

    class Half(AbstractShape):
        size: float

    class Odd(Square):
        def area(self):
            return 1.0

    class Bold(AbstractShape):
        size: float

        def area(self):
            return 1.0

        def twice(self):
            return 3.0

    class AbstractNothing(eqx.Module):
        pass

    def faults(cls):
        return " ".join(_faults(cls, __name__))

    assert not faults(AbstractShape)
    assert faults(Square) == "a final class has no subclasses, but ['Odd']"
    assert faults(Half) == "not abstract by name, but ['area'] are open"
    assert "overrides Square.area" in faults(Odd)
    assert "inherits the fields ['size'] of Square" in faults(Odd)
    assert faults(Bold) == "overrides AbstractShape.twice"
    assert "leaves something" in faults(AbstractNothing)


# --- documentation


def _exported() -> dict[str, object]:
    """Every public name: what the package and its rooms export."""
    found = {}
    for room in (jaxsolve, *(module for module in _modules() if hasattr(module, "__path__"))):
        names = dir(jaxsolve) if room is jaxsolve else [name for name in vars(room) if not name.startswith("_")]
        found |= {f"{room.__name__}.{name}": getattr(room, name) for name in names if name != "jaxtyping"}
    return found


DOCUMENTED = type | types.FunctionType | types.ModuleType
EXPORTED = {name: value for name, value in _exported().items() if isinstance(value, DOCUMENTED)}


def _has_docstring(value: object) -> bool:
    text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    written_by_dataclass = isinstance(value, type) and bool(text) and text.startswith(f"{value.__name__}(")
    return bool(text) and not written_by_dataclass


@pytest.mark.parametrize("name", EXPORTED)
def test_public_names_have_docstrings(name):
    value = EXPORTED[name]
    assert _has_docstring(value), f"{name} has no docstring"
    if not isinstance(value, type) or not value.__module__.startswith("jaxsolve"):
        return
    for member_name, member in vars(value).items():
        if member_name.startswith("_") or not _is_code(member):
            continue
        assert inspect.getdoc(getattr(value, member_name)), f"{name}.{member_name} has no docstring"


@EACH_FILE
def test_modules_have_docstrings(path):
    assert ast.get_docstring(_tree(path)), "a module begins with a line on what it holds"
