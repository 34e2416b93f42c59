import ast

import pytest

import jaxsolve
from tests.processes import fresh, ROOT


LIMIT = 2.0  # seconds
HEAVY = ("neural_tangents", "tensorflow", "matplotlib", "xarray", "zarr", "sklearn", "scipy", "pandas", "dask", "rich")


def _stub_names():
    """The public names, as `__init__.pyi` declares them."""
    tree = ast.parse((ROOT / "jaxsolve" / "__init__.pyi").read_text())
    imported = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return [alias.asname or alias.name for alias in imported]


def _quickest(code: str) -> float:
    """Seconds printed by fresh processes: the best of three, or the first that is within the limit."""
    best = float("inf")
    for _ in range(3):
        best = min(best, float(fresh(code)))
        if best < LIMIT:
            break
    return best


def test_import_takes_under_two_seconds():
    code = "import time; start = time.perf_counter(); import jaxsolve; print(time.perf_counter() - start)"
    assert _quickest(code) < LIMIT


def test_first_use_adds_little_to_what_it_depends_on():
    code = """
import time
import diffrax, equinox, jax, lineax, optax, optimistix
start = time.perf_counter()
import jaxsolve
jaxsolve.nets, jaxsolve.solve, jaxsolve.GradientFlow
print(time.perf_counter() - start)
"""
    assert _quickest(code) < LIMIT


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
    with pytest.raises(AttributeError, match="No jaxsolve attribute nothing_of_this_name"):
        jaxsolve.nothing_of_this_name  # noqa: B018  # pyright: ignore
    assert jaxsolve.__version__.count(".") == 2
