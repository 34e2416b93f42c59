"""Compiled programs, kept between processes: most of a command's time goes into compiling what it compiled before."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


MOST = 1_000_000_000  # bytes; what has not been used for longest goes first
# What JAX is told by the environment.
FOLDER = "JAX_COMPILATION_CACHE_DIR"
ENABLED = "JAX_ENABLE_COMPILATION_CACHE"
SETTINGS = {"JAX_COMPILATION_CACHE_MAX_SIZE": str(MOST), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@contextlib.contextmanager
def kept_programs(wanted: bool) -> Iterator[None]:
    """Has JAX keep its programs in the user's cache folder, where nothing else is said by `JAX_COMPILATION_CACHE_DIR`.

    By the environment, which JAX reads when it is first imported, and which child processes inherit.
    """
    folder = programs_folder()
    before = dict(os.environ)
    if wanted and FOLDER not in before and writable(folder):  # the user's own may be larger, and is left as it is
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
    """The folder in which programs are kept, if nothing else is said."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxsolve" / "programs"


def writable(folder: Path) -> bool:
    """Makes a folder, and says whether files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
