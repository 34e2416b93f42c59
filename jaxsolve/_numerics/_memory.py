"""The memory of the device: checked before large arrays are made, and reported when it runs out."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer


def free_memory() -> int | None:
    """The free memory of the default device, in bytes; None if the device does not say."""
    default: Any = jax.config.jax_default_device
    device = default if isinstance(default, jax.Device) else jax.local_devices(backend=default)[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return None if device.platform != "cpu" else free_on_host()


def readable(size: int, form: str = ".3g") -> str:
    """A number of bytes, in the largest unit that it fills."""
    unit = min(max(len(str(size)) - 1, 0) // 3, 4)
    return f"{size / 1000**unit:{form if unit else 'g'}} {('bytes', 'kB', 'MB', 'GB', 'TB')[unit]}"


def free_on_host() -> int | None:
    """The free memory of this machine, in bytes; None if it does not say."""
    # MemAvailable includes caches that Linux frees on demand; sysconf, used on other systems, does not.
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


LARGE = 100_000_000  # bytes; smaller arrays are not checked


def require_room(needed: int, what: str, key: Any, *, advice: str = "make it smaller") -> None:
    """Raises MemoryError for arrays of more bytes than are free, unless they are traced, which their key shows.

    JAX itself would continue without the array, and crash the process when NumPy reads it.
    """
    if needed < LARGE or isinstance(key, Tracer):
        return
    free = free_memory()
    if free is not None and needed > free:
        raise MemoryError(f"{what} needs {readable(needed)}, and {readable(free)} are free; {advice}")


def out_of_memory(error: BaseException) -> bool:
    """True if JAX has refused an array for lack of memory."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


@contextlib.contextmanager
def memory_for(what: str, advice: str) -> Iterator[None]:
    """Raises MemoryError, with advice, in place of JAX's own error."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        raise MemoryError(f"{what} does not fit into memory; {advice}. JAX says: {error}") from error
