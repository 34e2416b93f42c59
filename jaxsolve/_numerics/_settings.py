"""Settings of the process during a run: one thread for LAPACK, and JAX's NaN and infinity flags off."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def unwatched() -> Iterator[Callable[[], contextlib.AbstractContextManager[bool]]]:
    """A context, or a function decorated with `@unwatched()`, in which `jax_debug_nans` and `jax_debug_infs` are off.

    They raise for each NaN or infinity that a program returns, even for the NaN in a row that is not saved yet and the
    infinity that stands for no bound. The context yields another one, for what the user's network computes, in which
    the flags are as before and which yields whether either is on.
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
    """The limit on LAPACK's threads in this process, while any caller is inside `one_thread`."""

    def __init__(self):
        self.lock, self.inside = threading.Lock(), 0
        self.libraries: list[Any] = []  # kept once loaded: finding them takes longer than a small run
        self.before: list[int] = []


_thread_limit = _ThreadLimit()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits LAPACK to one thread while any caller is inside, until the last one leaves, by an exception or not.

    On the matrices of a run, with tens to thousands of rows, more threads are no faster. When other work uses the
    cores, the threads wait for each other, up to forty times as long. More threads would also round differently, so
    that results depend on the number of cores. The setting applies to the whole process, to NumPy's OpenBLAS and the
    one that jaxlib takes from SciPy, and so to all other threads. Several threads may be inside at once.
    """
    from threadpoolctl import ThreadpoolController  # imported late, since it sets an environment variable

    with _thread_limit.lock:
        # The first caller in sets the limit, and the last one out restores; those between change nothing.
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
    # threadpoolctl lets only the thread that limited a library first change it; here the last one out may be another.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)
