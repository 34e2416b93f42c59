"""One writer at a time."""

import datetime
import errno
import json
import os
import socket
import sys
import warnings
from pathlib import Path


if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        os.lseek(file, 2**30, os.SEEK_SET)  # beyond the text, which the others read
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}


class Lock:
    """The right to write, which the operating system takes back when the process that holds it dies.

    Arguments:
        path: a small file that says who holds the lock. It stays behind and blocks nobody.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            BlockingIOError: another process, or another sweep of this one, holds it.
            OSError: the file cannot be written.

        Warns:
            UserWarning: the file system knows no locks.
        """
        while self._file is None:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._require(file)
            except BaseException:
                os.close(file)
                raise
            if self._stands(file):
                self._file = file
            else:  # its last holder removed the file in between
                os.close(file)
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, _holder().encode())

    def release(self) -> None:
        """Gives the lock back. A lock that is not held stays so."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _require(self, file: int) -> None:
        try:
            _take(file)
        except OSError as error:
            if error.errno in UNSUPPORTED:
                warnings.warn(
                    f"the file system of {self.path} has no locks, so nothing keeps a second process from writing to "
                    "this store; make sure that only one does",
                    stacklevel=2,
                )
            elif error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(errno.EAGAIN, f"{self._who()}; wait for it, or choose another store") from None
            else:
                raise

    def _stands(self, file: int) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(file))

    def _who(self) -> str:
        store = self.path.parent.parent
        try:
            holder = json.loads(self.path.read_text())
            return f"{store} is being written by process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError):  # it has not written its name yet
            return f"{store} is being written by another process"


def _holder() -> str:
    since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
