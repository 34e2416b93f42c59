"""How many threads LAPACK takes: one while a run is computed."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Limit:
    """The limit of this process, while anyone is inside."""

    def __init__(self):
        self.lock, self.inside = threading.Lock(), 0
        self.libraries: list[Any] = []  # that are loaded: to find them takes longer than a small run
        self.before: list[int] = []


_limit = _Limit()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """LAPACK on one thread while anyone is inside; as it was when the last one has left, by an exception or not.

    On the matrices of a run, of tens to thousands of rows, more threads are no faster, and where others use the cores
    they wait for each other: up to forty times as long. With more threads results would also be rounded otherwise, and
    depend on the cores of a machine. It is a setting of the process, of the OpenBLAS that jaxlib takes from SciPy and
    of NumPy's: other threads that factorize meanwhile do so on one, too. Threads may be inside at the same time.
    """
    from threadpoolctl import ThreadpoolController  # which sets a variable of the environment when it is imported

    with _limit.lock:
        if not _limit.inside:
            found = _limit.libraries or ThreadpoolController().lib_controllers
            _limit.libraries = [library for library in found if library.user_api == "blas"]
            _limit.before = [library.num_threads for library in _limit.libraries]
            for library in _limit.libraries:
                _set(library, 1)
        _limit.inside += 1
    try:
        yield
    finally:
        with _limit.lock:
            _limit.inside -= 1
            if not _limit.inside:
                for library, threads in zip(_limit.libraries, _limit.before, strict=True):
                    _set(library, threads)


def _set(library: Any, threads: int) -> None:
    # threadpoolctl leaves a library to the first thread that has limited it; here the last one out may be another.
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)
