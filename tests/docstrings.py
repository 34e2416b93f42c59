"""The examples in the docstrings of public names: each has one, and prints what it says."""

import doctest
import importlib
import io
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest


FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _public(room: types.ModuleType) -> dict[str, type | types.FunctionType]:
    values = {name: getattr(room, name) for name in dir(room) if not name.startswith("_")}
    kinds = type | types.FunctionType
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, kinds) and value.__module__.startswith("jaxsolve")
    }


def _run(docstring: str, name: str) -> None:
    names = {"jax": jax, "jnp": jnp, "js": importlib.import_module("jaxsolve")}
    test = doctest.DocTestParser().get_doctest(docstring, names, name, None, None)
    said = io.StringIO()
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.write)
    assert not failed, said.getvalue()


def examples_of(room: types.ModuleType) -> Callable:
    """A test of every class and function that a room exports. `jax`, `jnp` and `js` are imported for the examples."""
    public = _public(room)

    @pytest.mark.parametrize("name", public)
    def test_examples(name):
        value = public[name]
        assert ">>> " in (value.__doc__ or ""), f"{name} has no example in its docstring"
        _run(value.__doc__ or "", name)
        for member_name, member in vars(value).items() if isinstance(value, type) else ():
            if not member_name.startswith("_") and ">>> " in (getattr(member, "__doc__", None) or ""):
                _run(member.__doc__, f"{name}.{member_name}")

    return test_examples
