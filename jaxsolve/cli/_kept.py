"""Compiled programs, kept between processes: most of a command's time goes into compiling what it compiled before."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


MOST = 1_000_000_000  # bytes; what has not been used for longest goes first


@contextlib.contextmanager
def kept_programs(wanted: bool) -> Iterator[None]:
    """Has JAX keep its programs in the user's cache folder, where nothing else is said by `JAX_COMPILATION_CACHE_DIR`.

    By the environment, which JAX reads when it is first imported, and which child processes inherit.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxsolve" / "programs"
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(MOST),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    before = dict(os.environ)
    if wanted and _writable(folder):
        os.environ.update({name: value for name, value in settings.items() if name not in before})
    elif not wanted:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
