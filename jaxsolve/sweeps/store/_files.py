"""The files of a store that are not Zarr's, its lock, and errors of the system in words."""

import contextlib
import datetime
import errno
import json
import os
import re
import socket
import stat
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._extras import needs


OURS = "_jaxsolve"  # the folder of a store that holds what is not Zarr's
MANIFEST, LOCK, WRITER, ID = "manifest.json", "lock", "writer.json", "id"
PARTIAL = ".partial"  # ending of files that are being written, here as in Zarr's `LocalStore`
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}  # what the file should be is not there
LARGEST = 2**26  # bytes of a file that is read as a whole without knowing how long it should be
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
AGAIN = "what has run is kept: call the sweep again with the same arguments to run the rest"


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file of which readers see everything or, until then, what was there before.

    By hand, since what it writes (the manifest, and last of all the root's metadata) says that other files are
    complete: it must have reached the disk before it has its name, which Zarr's `LocalStore` does not see to.
    """
    part = _part(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_together(root: Path, files: Mapping[Path, bytes]) -> None:
    """Writes several files below a folder, in this order, and each as a whole.

    All of them are on their way before the first has its name, so that hardly anything can come in between. Folders are
    made only below those in `root`: if `root` has been moved away, it does not come back as a shell of itself.
    """
    parts: dict[Path, Path] = {}
    try:
        for file, data in files.items():
            part = _part(file)
            for folder in reversed([each for each in file.parents if len(each.parts) > len(root.parts) + 1]):
                folder.mkdir(exist_ok=True)
            parts[file] = part
            part.write_bytes(data)
        for file, part in parts.items():
            os.replace(part, file)
    except BaseException:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise


def _part(file: Path) -> Path:
    """A file that is to take the place of another one when it is whole."""
    return file.with_name(f"{file.name}.{uuid.uuid4().hex}{PARTIAL}")


def read_regular(file: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file of at most so many.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is a link, a device or the like, or is larger: a store may come from anybody.
        OSError, MemoryError: the system does not give it, which says nothing of what it holds.
    """
    try:
        # Neither flag has a say for a plain file; without them a link would be followed, and a FIFO waited for.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{file} is no plain file")
            if found.st_size > most:
                raise ValueError(f"{file} has {found.st_size} bytes, and {most} are the most that it may have")
            return opened.read(most)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{file} is a link") from error
        if error.errno in ABSENT:
            raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
        said = f"reading {file} failed ({error.strerror}), which says nothing of what it holds; try again"
        raise OSError(error.errno, said) from error
    except MemoryError as error:
        raise MemoryError(f"reading {file} failed for want of memory; try again") from error


def odd_entry(path: Path) -> str | None:
    """The first entry below a folder that is neither a plain file nor a folder, in words; None if there is none."""
    for item in path.rglob("*"):
        mode = item.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "something that is neither a file nor a folder"
            return f"{kind}, {item.relative_to(path)}"
    return None


def require_own(path: Path, identity: str) -> None:
    """Raises OSError where a store is no longer the one that this process opened: it was moved, removed or replaced."""
    try:
        found = read_regular(path / OURS / ID).decode(errors="replace")
    except (FileNotFoundError, ValueError):
        found = None
    if found == identity:
        return
    then = (
        "so this sweep has stopped, and writes no more. To carry on, call it again with the path that the store has "
        "now, if it still is somewhere, or"
    )
    if path.exists():
        raise FileExistsError(f"the store at {path} was replaced while it was filled, {then} with another path")
    raise FileNotFoundError(f"the store at {path} was moved or removed while it was filled, {then} as before")


def write_json(path: Path, value: Any) -> None:
    """Writes JSON for people to read: lists of numbers stay on one line."""
    # In JSON no text holds a line break.
    on_one_line = lambda found: re.sub(r"\n *", "", re.sub(r",\n *", ", ", found[0]))
    text = re.sub(r"\[[^\[\]{}]*\]", on_one_line, json.dumps(value, indent=1, allow_nan=False))
    write_whole(path, f"{text}\n".encode())


def remove_partial(path: Path) -> None:
    """Removes what a process that died was writing."""
    for part in path.rglob(f"*.{32 * '[0-9a-f]'}{PARTIAL}"):  # a user's own stays
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path, then: str = AGAIN) -> Iterator[None]:
    """Turns the system's errors of writing to a store into OSErrors that say what is wrong and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BlockingIOError):  # our own, which says it all
            raise
        why, text = error.strerror or error, f"writing to {path} failed"
        if error.errno in FULL:
            text, then = f"there is no space left to write to {path}", f". Free some; {then}"
        elif error.errno in READ_ONLY:
            text, then = f"{path} cannot be written to", f". Choose another store or its permissions; {then}"
        else:
            then = f"; {then}"
        # The number alone chooses the class of the error: PermissionError and so on.
        raise OSError(error.errno, f"{text} ({why}){then}") from error


class Lock:
    """The right to write to a store: filelock's, and a file beside it that says who holds it.

    The operating system takes the lock back from a process that dies.
    """

    def __init__(self, path: Path):
        with needs("sweeps", "a store"):
            import filelock

        self._path, self._held_elsewhere = path, filelock.Timeout
        self._lock = filelock.FileLock(path / OURS / LOCK, blocking=False, thread_local=False)
        self._free = False  # whether the file system has no locks

    @property
    def held(self) -> bool:
        """True if this object holds the lock, or goes on without one where the file system has none."""
        return self._lock.is_locked or self._free

    def acquire(self) -> None:
        """Takes the lock, or raises BlockingIOError. Where the file system has none it warns, and goes on."""
        try:
            self._lock.acquire()
        except self._held_elsewhere:
            raise BlockingIOError(errno.EAGAIN, f"{self._who()}; wait for it, or choose another store") from None
        except (OSError, NotImplementedError) as error:
            if not isinstance(error, NotImplementedError) and error.errno not in NO_LOCKS:
                raise
            self._free = True
            warnings.warn(
                f"the file system of {self._path} has no locks, so nothing keeps a second process from writing to this "
                "store; make sure that only one does",
                stacklevel=2,
            )
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        try:
            write_whole(self._path / OURS / WRITER, json.dumps(holder).encode())
        except BaseException:  # a full disk
            self.release()
            raise

    def release(self) -> None:
        """Gives the lock back. A lock that is not held stays so."""
        self._free = False
        self._lock.release()

    def _who(self) -> str:
        try:
            holder = json.loads((self._path / OURS / WRITER).read_text())
            who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError):  # it has not written its name yet
            who = "another process"
        return f"{self._path} is being written by {who}"


def now() -> str:
    """The time, as manifests have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
