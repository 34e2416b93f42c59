"""Guards against files of unknown origin: where modules are imported from, and what errors show."""

import contextlib
import os
import site
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def installed_modules_only() -> Iterator[None]:
    """A context without imports from the working directory, whatever `sys.path` says: its `xarray.py` is not xarray."""
    before, here = list(sys.path), os.path.realpath("")
    installed = {os.path.realpath(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if here not in installed:
        sys.path[:] = [folder for folder in before if os.path.realpath(folder) != here]
    try:
        yield
    finally:
        sys.path[:] = before


def look_here_last() -> None:
    """Allows imports from the working directory, after those of installed modules."""
    sys.path.append(os.getcwd())


@contextlib.contextmanager
def one_line(store: Path | None = None, *, code: bool) -> Iterator[None]:
    """A context that turns errors in a config into a ConfigError of one line.

    Arguments:
        store: errors about this store keep their lines.
        code: whether a function of the user's own may run: if it raises anything but ValueError or TypeError, the user
            needs the traceback.
    """
    from ..configs import ConfigError

    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:
        expected = isinstance(error, ValueError | TypeError)
        if (code and not expected) or (store is not None and str(error).startswith(f"{store.absolute()} ")):
            raise
        raise ConfigError(str(error) if expected else f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def warnings_after() -> Iterator[None]:
    """A context that shows warnings at its end, unless it raises: an error says more."""
    with warnings.catch_warnings(record=True) as found:
        yield
    for item in found:
        warnings.showwarning(item.message, item.category, item.filename, item.lineno)


def choose_precision(*, double: bool) -> None:
    """Sets JAX's precision. A command owns its process, so it may do this; the library never does."""
    import jax

    config: Any = jax.config
    config.update("jax_enable_x64", double)
    if not double and config.jax_default_matmul_precision is None:  # by default, accelerators round float32 factors
        config.update("jax_default_matmul_precision", "highest")
