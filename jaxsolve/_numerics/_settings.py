"""Settings of the process while a run is computed: one thread for LAPACK, and JAX's flags for every number off."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def unwatched() -> Iterator[Callable[[], contextlib.AbstractContextManager[bool]]]:
    """A context, or as `@unwatched()` a function, in which `jax_debug_nans` and `jax_debug_infs` are off.

    They raise for each NaN or infinity that a program returns, also for the NaN in a row that is not saved yet and the
    infinity that stands for no bound. It gives a context in which they are as they were, and which says whether any is
    on: for what the user's network computes.
    """
    config: Any = jax.config
    nans, infs = config.jax_debug_nans, config.jax_debug_infs

    @contextlib.contextmanager
    def watched() -> Iterator[bool]:
        with jax.debug_nans(nans), jax.debug_infs(infs):
            yield nans or infs

    with jax.debug_nans(False), jax.debug_infs(False):
        yield watched


class _ThreadLimit:
    """The limit on LAPACK's threads in this process, while anyone is inside."""

    def __init__(self):
        self.lock, self.inside = threading.Lock(), 0
        self.libraries: list[Any] = []  # that are loaded: to find them takes longer than a small run
        self.before: list[int] = []


_thread_limit = _ThreadLimit()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """LAPACK on one thread while anyone is inside; as it was when the last one has left, by an exception or not.

    On the matrices of a run, of tens to thousands of rows, more threads are no faster, and where others use the cores
    they wait for each other: up to forty times as long. With more threads results would also be rounded otherwise, and
    depend on the cores of a machine. It is a setting of the process, of the OpenBLAS that jaxlib takes from SciPy and
    of NumPy's: other threads that factorize meanwhile do so on one, too. Threads may be inside at the same time.
    """
    from threadpoolctl import ThreadpoolController  # which sets a variable of the environment when it is imported

    with _thread_limit.lock:
        # The first one in remembers and limits, the last one out restores: those between change nothing.
        if not _thread_limit.inside:
            found = _thread_limit.libraries or ThreadpoolController().lib_controllers
            _thread_limit.libraries = [library for library in found if library.user_api == "blas"]
            _thread_limit.before = [library.num_threads for library in _thread_limit.libraries]
            for library in _thread_limit.libraries:
                _set(library, 1)
        _thread_limit.inside += 1
    try:
        yield
    finally:
        with _thread_limit.lock:
            _thread_limit.inside -= 1
            if not _thread_limit.inside:
                for library, threads in zip(_thread_limit.libraries, _thread_limit.before, strict=True):
                    _set(library, threads)


def _set(library: Any, threads: int) -> None:
    # threadpoolctl leaves a library to the first thread that has limited it; here the last one out may be another.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)
