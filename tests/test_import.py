import ast

import pytest

import jaxsolve
from tests.processes import fresh, ROOT


# What almost every use of the library needs, and what only some do. Each takes a good part of a second to load.
CORE = {"jax", "equinox", "diffrax", "lineax", "optimistix", "optax"}
HEAVY = {
    "neural_tangents",
    "tensorflow",
    "matplotlib",
    "xarray",
    "zarr",
    "sklearn",
    "scipy",
    "pandas",
    "dask",
    "distributed",
    "plotly",
    "rich",
}


def _stub_names():
    """The public names, as `__init__.pyi` declares them."""
    tree = ast.parse((ROOT / "jaxsolve" / "__init__.pyi").read_text())
    imported = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return [alias.asname or alias.name for alias in imported]


def _loaded_after(code: str) -> set[str]:
    """The libraries above that a fresh Python has loaded after running the code."""
    return set(fresh(f"import sys\n{code}\nprint(*({CORE | HEAVY!r} & set(sys.modules)))").split())


def test_import_loads_nothing():
    """`import jaxsolve` only lists names: it does not even load JAX."""
    assert not _loaded_after("import jaxsolve; jaxsolve.__version__; dir(jaxsolve)")


def test_what_was_loaded_is_seen():
    assert _loaded_after("import jaxsolve, xarray; jaxsolve.solve") >= {"jax", "equinox", "xarray", "pandas"}


def test_the_command_starts_without_jax():
    """JAX reads where programs are kept when it is imported, and a wrong path is refused before that."""
    refused = """
from jaxsolve.cli import main
try:
    main(["report", "absent.zarr"])
except SystemExit as stop:
    assert stop.code == 2
"""
    assert not _loaded_after(refused) & (CORE | HEAVY - {"rich"})


def test_a_store_that_is_not_there_loads_no_library_for_stores():
    refused = """
import jaxsolve
try:
    jaxsolve.sweeps.load("absent.zarr")
except FileNotFoundError:
    pass
"""
    assert not _loaded_after(refused) & {"zarr", "xarray", "pandas"}


def test_importing_does_nothing_else():
    """No write to jax.config, no change of a warning filter or of the environment, nothing printed, nothing heavy."""
    printed = fresh(f"""
import os, sys, warnings
import jax, diffrax, optax, equinox
settings, filters, environment = dict(jax.config.values), list(warnings.filters), dict(os.environ)
import jaxsolve
jaxsolve.nets, jaxsolve.losses, jaxsolve.data, jaxsolve.kernels, jaxsolve.until, jaxsolve.observe, jaxsolve.theory
jaxsolve.solve, jaxsolve.compare, jaxsolve.sweep, jaxsolve.Problem, jaxsolve.GradientFlow, jaxsolve.Descent
assert dict(jax.config.values) == settings
assert warnings.filters == filters
assert dict(os.environ) == environment
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
""")
    assert printed == ""


@pytest.mark.parametrize("name", _stub_names())
def test_every_public_name_is_there(name):
    assert getattr(jaxsolve, name) is not None
    assert name in dir(jaxsolve)


def test_other_names_are_not_there():
    assert set(dir(jaxsolve)) == set(_stub_names())
    with pytest.raises(AttributeError, match="module 'jaxsolve' has no attribute 'nothing_of_this_name'"):
        jaxsolve.nothing_of_this_name  # noqa: B018  # pyright: ignore
    assert jaxsolve.__version__.count(".") == 2
