"""Names that rooms had before: each works for one more version, and says what it is called now."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def old_names(room: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room.

    Arguments:
        room: such as "nets".
        renamed: by old name, the new one with its room, such as "nets.LambdaBalanced".
    """

    def get(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module 'jaxsolve.{room}' has no attribute {name!r}")
        new = renamed[name]
        message = f"{room}.{name} is now {new}; the old name goes with the next version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        place, _, name = new.partition(".")
        return getattr(importlib.import_module(f"jaxsolve.{place}"), name)

    return get
