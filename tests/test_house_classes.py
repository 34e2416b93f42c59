"""Classes are abstract or final, and what is public has a docstring: the rules of CONTRIBUTING.md."""

import abc
import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types

import equinox as eqx
import pytest

import jaxsolve
from tests.house import FILES, PACKAGE, tree


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
    """Every public name: what the package and its public rooms export."""
    found = {}
    rooms = (module for module in _modules() if hasattr(module, "__path__"))
    for room in (jaxsolve, *(room for room in rooms if re.fullmatch(r"jaxsolve\.[a-z]\w*", room.__name__))):
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_have_docstrings(path):
    assert ast.get_docstring(tree(path)), "a module begins with a line on what it holds"
