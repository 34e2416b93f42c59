"""The house stands as CONTRIBUTING.md says: who imports whom, and what modules look like."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

from tests.house import FILES, imports, PACKAGE, private_imports, room_of, ROOT, tree


EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))

# An arrow points to the importer; rooms on one line do not import each other.
STEPS = (
    ("_extras",),
    ("_checks", "_lazy", "_numerics", "_results"),
    ("_programs",),
    ("nets", "losses", "data"),
    ("kernels",),
    ("_core",),
    ("_kernel_machine", "until"),
    ("integrators", "theory"),
    ("dynamics",),
    ("observe",),
    ("_solve",),
    ("_compare", "sweeps"),
    ("plot", "configs"),
    ("papers", "report", "_quickstart", "_diagnose"),
    ("cli",),
)
STEP = {room: index for index, rooms in enumerate(STEPS) for room in rooms}
# Closed forms and simulations check each other, so neither may use the other (an arrow alone would allow the second).
STRANGERS = {("theory", "dynamics"), ("dynamics", "theory"), ("theory", "integrators")}

# Library: the rooms, folders and files that may import it.
GUARDED = {
    "matplotlib": ("plot", "papers", "_quickstart/_figures.py", "_diagnose/_figure.py"),
    "zarr": ("sweeps/store",),
    "xarray": ("sweeps/store", "_core/_trajectory.py", "_diagnose/_dataset.py"),
    "dask": ("sweeps/cluster",),
    "plotly": ("report",),
    "pooch": ("data",),
    "distributed": ("sweeps/cluster",),
    "cloudpickle": ("sweeps/cluster", "_core/_closures.py"),
    "neural_tangents": ("kernels/wide/_neural_tangents.py",),
    "tensorflow": (),
    "sklearn": (),
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
    "pooch",
    "sklearn",
    "rich",
)
MAX_LINES = 600
REASON = re.compile(r"^# long: \S.{9,}", re.MULTILINE)  # a line near the top of a file that may be longer
NEAR_THE_TOP = 40  # lines


def _imports(path: Path, *, at_import: bool = False) -> tuple[tuple[str, ...], ...]:
    return imports(path, tree(path), at_import=at_import)


@functools.cache
def _public_homes() -> dict[str, str]:
    """The room from which the package exports each of its names."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    return {
        alias.name: (node.module or alias.name).split(".")[0]
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _rooms_used(path: Path) -> set[str]:
    used = {parts[1] for parts in _imports(path) if parts[0] == "jaxsolve" and len(parts) > 1}
    return {_public_homes().get(name, name) for name in used} - {"__version__"}


# --- arrows


def test_every_room_has_its_step():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set(STEP), f"no step is known for {sorted(rooms - set(STEP))}"


@EACH_FILE
def test_arrows(path):
    room = room_of(path)
    if room == "__init__":
        assert _rooms_used(path) == {"_lazy"}
        return
    for used in _rooms_used(path) - {room}:
        assert used in STEP, f"{room} imports {used}, which is no room"
        assert STEP[used] < STEP[room], f"{room} must not import {used}: it is not on an earlier step"
        assert (room, used) not in STRANGERS, f"{room} must not import {used}: each checks the other"


def _files_used(path: Path) -> set[Path]:
    """The files of the package that a file imports, inside of functions too."""
    used = set()
    for parts in _imports(path):
        if parts[0] != "jaxsolve":
            continue
        # The longest part of the dotted name that is a file; what stands behind it are names in there.
        places = [PACKAGE.joinpath(*parts[1:end]) for end in range(len(parts), 0, -1)]
        files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
        used.add(next(file for file in files if file in FILES))
    return used - {path}


def test_no_circles_of_files():
    """Each file can be read after those that it imports: it needs none that needs it."""
    try:
        graphlib.TopologicalSorter({path: _files_used(path) for path in FILES}).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(path.relative_to(PACKAGE).as_posix() for path in error.args[1]))


def test_a_circle_of_files_would_be_found(monkeypatch):
    """Also one by a lazy import."""
    figure, fit = PACKAGE / "_diagnose" / "_figure.py", PACKAGE / "_diagnose" / "_fit.py"
    assert fit in _files_used(figure)
    lazy = ast.parse("def plot():\n    from ._figure import draw")
    real = tree
    monkeypatch.setitem(globals(), "tree", lambda path: lazy if path == fit else real(path))
    with pytest.raises(pytest.fail.Exception, match="_diagnose/_fi"):
        test_no_circles_of_files()


@EACH_FILE
def test_guarded_libraries(path):
    where, libraries = path.relative_to(PACKAGE), {parts[0] for parts in _imports(path)}
    for library in libraries & set(GUARDED):
        places = {room_of(path), where.parent.as_posix(), where.as_posix()}
        assert places & set(GUARDED[library]), f"{where} must not import {library}"
    assert not libraries & set(FOREIGN.get(room_of(path), ())), "theory never integrates"


@EACH_FILE
def test_heavy_libraries_are_imported_when_used(path):
    if room_of(path) == "cli":  # nothing imports it: it runs, and then needs them
        return
    heavy = {parts[0] for parts in _imports(path, at_import=True)} & set(LAZY)
    assert not heavy, f"import {heavy} inside the function that needs it"


@EACH_FILE
def test_private_modules_are_for_their_own_room(path):
    found = private_imports(path, tree(path))
    assert not found, f"{sorted(found)}: import it from its room, which exports it if others need it"


def test_tests_reach_into_private_modules_in_one_place():
    """`tests/inside.py` says which private names tests need, and why; `tests/sweeps/inside.py` those of the sweeps."""
    found = {
        where: sorted(private)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (where := path.relative_to(ROOT).as_posix())
        not in ("tests/inside.py", "tests/sweeps/inside.py", "tests/test_house.py")
        if (private := private_imports(path, tree(path)))
    }
    assert not found, f"import public names, or import these from tests/inside.py: {found}"


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
    monkeypatch.setitem(globals(), "tree", lambda path: imagined)
    path = PACKAGE / "theory" / "_imagined.py"
    assert _rooms_used(path) == {"observe", "nets", "_solve", "kernels", "theory", "sweeps"}
    assert {parts[0] for parts in _imports(path)} == {"typing", "jaxsolve", "zarr", "pandas", "matplotlib"}
    assert "matplotlib" not in {parts[0] for parts in _imports(path, at_import=True)}
    checks = (
        test_arrows,
        test_guarded_libraries,
        test_heavy_libraries_are_imported_when_used,
        test_private_modules_are_for_their_own_room,
    )
    for check in checks:
        with pytest.raises(AssertionError, match="theory|import"):
            check(path)


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("from ..sweeps._store import read", "jaxsolve.sweeps._store.read"),
        ("from ..sweeps import _store", "jaxsolve.sweeps._store"),
        ("from jaxsolve.sweeps.store._zarr import read", "jaxsolve.sweeps.store._zarr.read"),
        ("import jaxsolve.sweeps._store", "jaxsolve.sweeps._store"),
        ("from .._results import _hidden", "jaxsolve._results._hidden"),
        ("from .._results import RESULTS", None),
        ("from ..sweeps import read", None),
        ("from ..sweeps._internal import read", None),
        ("from ..sweeps._internal import _read", "jaxsolve.sweeps._internal._read"),
        ("from ._exact import exact", None),
        ("from .sub._folder import exact", None),
        ("from .. import __version__", None),
    ],
)
def test_what_is_private(line, private):
    path = PACKAGE / "theory" / "_imagined.py"
    assert private_imports(path, ast.parse(line)) == ({private} if private else set())
    for text in (
        "from jaxsolve._numerics._phi import phi",
        "'jaxsolve._numerics._phi.phi'",
        "'import jax\\nfrom jaxsolve import _phi'",
    ):
        assert private_imports(ROOT / "tests" / "imagined.py", ast.parse(text)), text
    assert private_imports(ROOT / "tests" / "imagined.py", ast.parse("from jaxsolve.nets._internal import takes_state"))
    below = PACKAGE / "theory" / "folder" / "_imagined.py"  # a folder of a room belongs to it
    assert not private_imports(below, ast.parse("from .._exact import exact\nfrom ..other._file import x"))


# --- modules


def _too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > MAX_LINES and not REASON.search("\n".join(lines[:NEAR_THE_TOP]))


@pytest.mark.parametrize("folder", ["jaxsolve", "tests", "benchmarks", ".ci"])
def test_files_are_short_or_say_why_not(folder):
    long = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if _too_long(path.read_text())
    ]
    assert not long, (
        f"more than {MAX_LINES} lines: split {long}, or say why not in a line '# long: <reason>' near the top"
    )


def test_what_is_listed_as_slow_is_there():
    lines = (ROOT / "tests" / "slow.txt").read_text("utf-8").splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == sorted(set(listed))
    text = functools.cache(lambda file: (ROOT / "tests" / file).read_text("utf-8"))
    for line in listed:
        file, name = line.partition("[")[0].split("::")
        assert re.search(rf"^(def {name}\(|{name} = )", text(file), re.MULTILINE), line


def test_too_long():
    body = "x = 1\n" * MAX_LINES
    assert not _too_long(body)
    assert _too_long(body + "x = 1\n")
    assert not _too_long("# long: one table that is read from top to bottom\n" + body)
    assert _too_long("# long: is\n" + body)  # no reason
    assert _too_long(body + "# long: one table that is read from top to bottom\n")  # not near the top


@EACH_FILE
def test_modules_are_private_and_plain(path):
    assert path.stem.startswith("_"), "modules are private; a room exports its names from __init__"
    own_process = [node for node in tree(path).body if getattr(node, "name", "") == "_begin_process"]  # not the user's
    taken_over = {inner for node in own_process for inner in ast.walk(node)}
    for node in ast.walk(tree(path)):
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__"), "breaks AbstractVar"
        assert not (isinstance(node, ast.Name) and node.id == "super"), "classes are abstract or final"
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("config.update") and node not in taken_over:
            assert room_of(path) == "cli", "only the command line sets jax.config"


@EACH_FILE
def test_rooms_only_list_names(path):
    if path.name != "__init__.py" or path.parent == PACKAGE:
        return
    stub = path.with_suffix(".pyi")
    if stub.exists():  # names are imported when first used
        assert "__getattr__, __dir__, __all__ = attach(__name__, __file__)" in path.read_text()
    for node in tree(stub).body if stub.exists() else tree(path).body[1:]:
        if isinstance(node, ast.With):  # an extra that the names need
            assert ast.unparse(node.items[0]).startswith("_extras.needs(")
            continue
        assert isinstance(node, ast.ImportFrom | ast.Import), "an __init__ only exports names"
        for alias in node.names:
            if not alias.name.startswith("_") and alias.asname is not None:
                assert alias.asname == alias.name
