"""A cache of compiled programs between processes: without it, most of a command's time goes into recompiling."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


MOST = 1_000_000_000  # bytes; the least recently used programs are removed first
# Environment variables of JAX.
FOLDER = "JAX_COMPILATION_CACHE_DIR"
ENABLED = "JAX_ENABLE_COMPILATION_CACHE"
SETTINGS = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(MOST), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@contextlib.contextmanager
def kept_programs(wanted: bool) -> Iterator[None]:
    """A context in which JAX caches programs in the user's cache folder, or where `JAX_COMPILATION_CACHE_DIR` says.

    It sets environment variables, which JAX reads when it is first imported, and which child processes inherit.
    """
    folder = programs_folder()
    before = dict(os.environ)
    if wanted and FOLDER not in before and writable(folder):  # no limit is set for the user's own cache
        settings = {FOLDER: str(folder), **SETTINGS}
        os.environ.update({name: value for name, value in settings.items() if name not in before})
    elif not wanted:
        os.environ[ENABLED] = "false"
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def programs_folder() -> Path:
    """The default folder of compiled programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxsolve" / "programs"


def writable(folder: Path) -> bool:
    """True if files can be made in a folder, which is created if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
