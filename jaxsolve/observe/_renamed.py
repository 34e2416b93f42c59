"""Old names of this room, each kept for one version."""

import functools
import warnings
from typing import Any

from ._regimes import KERNEL_REGIME_LIMIT


_OLD = {"KERNEL_CHANGE": ("KERNEL_REGIME_LIMIT", KERNEL_REGIME_LIMIT)}


def _find(name: str) -> Any:
    if name not in _OLD:
        raise AttributeError(f"module 'jaxsolve.observe' has no attribute {name!r}")
    new, value = _OLD[name]
    warnings.warn(f"observe.{name} is now called observe.{new}", DeprecationWarning, stacklevel=2)
    return value


# No function, for type checkers: those take any name for known where a module has a function `__getattr__`.
__getattr__ = functools.partial(_find)
