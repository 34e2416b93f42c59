"""Names that the library had before: each works for one more version, and says what it is called now."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(room: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room.

    Arguments:
        room: such as "jaxsolve.nets".
        renamed: by old name, the new one with its module, such as "jaxsolve.nets.LambdaBalanced".
    """

    def get(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module, _, new = renamed[name].rpartition(".")
        message = f"{room}.{name} is now {renamed[name]}; the old name goes with the next version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), new)

    return get
