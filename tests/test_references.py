"""What docstrings and pages name in code exists: `js.solve`, `jaxsolve.nets`, `theory.TwoLayerLine`."""

import ast
import re
from collections.abc import Iterator
from inspect import isfunction

import pytest

import jaxsolve
from tests.house import FILES, ROOT, tree


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
# A room's name says a room, unless people name their variables so.
ROOMS = {"nets", "losses", "theory", "until", "observe", "kernels", "integrators", "sweeps", "papers"}
NAMED = re.compile(rf"(?<![\w./])(?:(?:js|jaxsolve)|(?:{'|'.join(sorted(ROOMS))}))(?:\.[A-Za-z]\w*)+(?![\w/*])")
FILE = re.compile(r"\.(?:md|py|toml|zarr|html|cli)$")  # names of files; the room of the command line is for processes


def _named(text: str) -> set[str]:
    """The names of the library in the code of a text, without what stands in blocks, which run."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`]+)`", text)
    found = {name.removeprefix("jaxsolve.").removeprefix("js.") for span in spans for name in NAMED.findall(span)}
    return {name for name in found if not FILE.search(name)}


def _resolves(name: str) -> bool:
    where: object = jaxsolve
    for part in name.split("."):
        # An attribute of instances is annotated, or set by the field of a dataclass.
        annotated = part in getattr(where, "__annotations__", {}) or part in getattr(where, "__dataclass_fields__", {})
        if annotated:
            return True
        if not hasattr(where, part):
            return False
        where = getattr(where, part)
    return True


def _docstrings(path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def test_docstrings_name_what_exists():
    absent = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for text in _docstrings(path)
        for name in _named(text)
        if not _resolves(name)
    }
    assert not absent


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_name_what_exists(page):
    assert not {name for name in _named(page.read_text("utf-8")) if not _resolves(name)}


def _listed() -> set[str]:
    """What the tables of the reference list: a name without a room is of the room before it in its row."""
    found = set[str]()
    for row in re.findall(r"^\|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE):
        room = ""
        for span in re.findall(r"`([a-zA-Z]\w*(?:\.\w+)?)`", row):
            before, _, name = span.rpartition(".")
            room = before if before in {*ROOMS, "data", "plot"} else room
            found.add(f"{room}.{name}" if before in ("", room) else f"{room}.{span}")
    return {name.removeprefix(".") for name in found}


def test_the_reference_lists_what_exists():
    listed = _listed()
    assert {"as_kernel_machine", "nets.MLP", "nets.DeepLinear", "nets.Scaling.mup"} < listed
    assert not {name for name in listed if not _resolves(name)}


@pytest.mark.parametrize("room", ["observe", "plot"])
def test_the_reference_lists_every_observable_and_figure(room):
    public = {f"{room}.{name}" for name, what in vars(getattr(jaxsolve, room)).items() if isfunction(what)}
    assert public - {"observe.__getattr__"} <= _listed()


def test_what_is_named_and_what_is_there():
    text = (
        "`js.solve(x)` with `js.nets.MLP`, `theory.exact`, `sweeps.md`, js.nothing and `my.nets.MLP`\n```\n`js.no`\n```"
    )
    assert _named(text) == {"solve", "nets.MLP", "theory.exact"}
    assert all(map(_resolves, ("solve", "nets", "nets.Scaling.mup", "Problem.x")))
    assert not any(map(_resolves, ("sovle", "nets.Scaling.pum", "nets.nothing.at", "Problem.z")))
