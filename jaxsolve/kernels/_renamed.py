"""Old names of this room, each kept for one version."""

import functools
import warnings
from typing import Any

from ._empirical import unit_rates


_OLD = {"plain": ("unit_rates", unit_rates)}


def _find(name: str) -> Any:
    if name not in _OLD:
        raise AttributeError(f"module 'jaxsolve.kernels' has no attribute {name!r}")
    new, value = _OLD[name]
    warnings.warn(f"kernels.{name} is now called kernels.{new}", DeprecationWarning, stacklevel=2)
    return value


# No function, for type checkers: those take any name for known where a module has a function `__getattr__`.
__getattr__ = functools.partial(_find)
