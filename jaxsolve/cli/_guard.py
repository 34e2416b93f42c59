"""Guards between the command and files of unknown origin: where modules come from, and what errors show."""

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
    """Imports nothing from the working directory, whatever `sys.path` says: an `xarray.py` there is not xarray."""
    before, here = list(sys.path), os.path.realpath("")
    installed = {os.path.realpath(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())}
    if here not in installed:
        sys.path[:] = [folder for folder in before if os.path.realpath(folder) != here]
    try:
        yield
    finally:
        sys.path[:] = before


def look_here_last() -> None:
    """Also imports from the working directory, but what is installed comes first."""
    sys.path.append(os.getcwd())


@contextlib.contextmanager
def one_line(store: Path | None = None, *, code: bool) -> Iterator[None]:
    """Turns what a config does wrong into an error of one line.

    Arguments:
        store: errors that tell of this store keep their lines.
        code: whether a function of the reader's own may run: where that fails otherwise than by ValueError or
            TypeError, the reader needs the traceback.
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
    """Shows warnings only where no error follows, which says more."""
    with warnings.catch_warnings(record=True) as found:
        yield
    for item in found:
        warnings.showwarning(item.message, item.category, item.filename, item.lineno)


def choose_precision(*, double: bool) -> None:
    """The command line owns its process, so it may choose the precision; the library never does."""
    import jax

    config: Any = jax.config
    config.update("jax_enable_x64", double)
    if not double and config.jax_default_matmul_precision is None:  # accelerators round the factors of such products
        config.update("jax_default_matmul_precision", "highest")
