"""The examples of the names at the top of the package. Those that come from a room are tested there."""

import types

import jaxsolve as js
from tests.docstrings import examples_of


_core = types.ModuleType("core")
for _name in dir(js):
    _value = getattr(js, _name)
    if getattr(_value, "__module__", "").startswith("jaxsolve._"):
        setattr(_core, _name, _value)

test_examples = examples_of(_core)
