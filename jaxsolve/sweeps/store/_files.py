"""The files of a store that are not Zarr's, its lock, and system errors with explanations."""

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


OURS = "_jaxsolve"  # the folder of a store for files that are not Zarr's
MANIFEST, LOCK, WRITER, ID = "manifest.json", "lock", "writer.json", "id"
PARTIAL = ".partial"  # suffix of files that are being written, as in Zarr's `LocalStore`
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}  # there is no such file
LARGEST = 2**26  # bytes; limit for files whose expected size is unknown
NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
AGAIN = "what has run is kept: call the sweep again with the same arguments to run the rest"


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: readers see either the whole file or what was there before.

    The files it writes (the manifest, and last the root's metadata) say that other files are complete, so they must
    reach the disk before they get their names. Zarr's `LocalStore` does not ensure this.
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
    """Writes several files below a folder, in this order, each atomically.

    All of them are written before the first gets its name, so an interruption in between is unlikely. Folders are made
    only below those in `root`: if `root` has been moved away, it does not reappear as an empty shell.
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
    """The temporary name of a file until it is complete."""
    return file.with_name(f"{file.name}.{uuid.uuid4().hex}{PARTIAL}")


def read_regular(file: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file that has at most `most` of them.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is a link, a device or the like, or it is larger: stores may come from untrusted sources.
        OSError, MemoryError: the system cannot read it, which says nothing about its content.
    """
    try:
        # The flags do not affect plain files. Without them, links would be followed, and a FIFO would block.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{file} is not a plain file")
            if found.st_size > most:
                raise ValueError(f"{file} has {found.st_size} bytes, and {most} are the most that it may have")
            return opened.read(most)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{file} is a link") from error
        if error.errno in ABSENT:
            raise FileNotFoundError(error.errno, error.strerror, str(file)) from error
        said = f"reading {file} failed ({error.strerror}), so it is not known what it holds; try again"
        raise OSError(error.errno, said) from error
    except MemoryError as error:
        raise MemoryError(f"reading {file} failed because memory ran out; try again") from error


def odd_entry(path: Path) -> str | None:
    """A description of the first entry below a folder that is neither a plain file nor a folder; None without one."""
    for item in path.rglob("*"):
        mode = item.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            kind = "a link" if stat.S_ISLNK(mode) else "something that is neither a file nor a folder"
            return f"{kind}, {item.relative_to(path)}"
    return None


def require_own(path: Path, identity: str) -> None:
    """Raises OSError if a store is no longer the one that this process opened: it was moved, removed or replaced."""
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
    """Writes JSON in a readable form: lists of numbers stay on one line."""
    # Strings in JSON contain no line breaks, so this changes only the layout.
    on_one_line = lambda found: re.sub(r"\n *", "", re.sub(r",\n *", ", ", found[0]))
    text = re.sub(r"\[[^\[\]{}]*\]", on_one_line, json.dumps(value, indent=1, allow_nan=False))
    write_whole(path, f"{text}\n".encode())


def remove_partial(path: Path) -> None:
    """Removes the partial files of a process that died."""
    for part in path.rglob(f"*.{32 * '[0-9a-f]'}{PARTIAL}"):  # only our names: a user's files stay
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path, then: str = AGAIN) -> Iterator[None]:
    """A context that turns system errors of writing to a store into OSErrors that say what is wrong and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BlockingIOError):  # our own error, already explained
            raise
        why, text = error.strerror or error, f"writing to {path} failed"
        if error.errno in FULL:
            text, then = f"there is no space left to write to {path}", f". Free some; {then}"
        elif error.errno in READ_ONLY:
            text, then = f"{path} cannot be written to", f". Choose another store or its permissions; {then}"
        else:
            then = f"; {then}"
        # The number selects the subclass of the error, such as PermissionError.
        raise OSError(error.errno, f"{text} ({why}){then}") from error


class Lock:
    """The right to write to a store: a lock of filelock, and a file beside it that says who holds it.

    If the process dies, the operating system releases the lock.
    """

    def __init__(self, path: Path):
        with needs("sweeps", "a store"):
            import filelock

        self._path, self._held_elsewhere = path, filelock.Timeout
        self._lock = filelock.FileLock(path / OURS / LOCK, blocking=False, thread_local=False)
        self._free = False  # whether the file system has no locks

    @property
    def held(self) -> bool:
        """True if this object holds the lock, or continues without one because the file system has none."""
        return self._lock.is_locked or self._free

    def acquire(self) -> None:
        """Takes the lock, or raises BlockingIOError. Warns and continues if the file system has no locks."""
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
        """Releases the lock; does nothing if it is not held."""
        self._free = False
        self._lock.release()

    def _who(self) -> str:
        try:
            holder = json.loads((self._path / OURS / WRITER).read_text())
            who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        except (OSError, ValueError, KeyError):  # the holder has not written its name yet
            who = "another process"
        return f"{self._path} is being written by {who}"


def now() -> str:
    """The current time, as manifests show it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
