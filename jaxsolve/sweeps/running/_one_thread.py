"""LAPACK on one thread, while other threads have the cores."""

import threading

from threadpoolctl import threadpool_limits


class OneThread:
    """One thread of LAPACK while anyone is inside; groups may run in several threads of a process."""

    def __init__(self):
        self._lock, self._inside, self._limit = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self._lock:
            self._limit = self._limit or threadpool_limits(1, "blas")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._limit is not None:
                self._limit.restore_original_limits()
                self._limit = None


ONE_THREAD = OneThread()  # of the process, as the setting is
