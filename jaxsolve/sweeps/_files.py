"""Files that are whole or absent, whenever a process or a disk gives up."""

import contextlib
import errno
import json
import os
import re
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


PART = ".part"  # ending of files that are being written
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def write_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Writes a file of which readers see everything or, until then, what was there before.

    Arguments:
        path: the file; its folders are made.
        data: what it holds.
        sync: whether the data must have reached the disk before the file has its name: for what says that other
            files are complete.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def checksum(data: bytes) -> list[int]:
    """The size and CRC-32 of a file's content."""
    return [len(data), zlib.crc32(data)]


def damage(path: Path, expected: list[int]) -> str:
    """What is wrong with a file, in words; nothing if it is as it was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
    if len(data) != expected[0]:
        return f"has {len(data)} bytes instead of {expected[0]}"
    return "" if checksum(data) == expected else "has another checksum"


def write_json(path: Path, value: Any, *, indent: int | None = None) -> None:
    """Writes JSON, whole and synchronised; if it is indented, lists of numbers stay on one line."""
    text = json.dumps(value, indent=indent, allow_nan=False)
    if indent is not None:
        text = re.sub(r"\[[^\[\]{}]*\]", _on_one_line, text)
    write_whole(path, f"{text}\n".encode(), sync=True)


def _on_one_line(found: re.Match[str]) -> str:
    return re.sub(r"\n *", " ", found[0]).replace("[ ", "[").replace(" ]", "]")


@contextlib.contextmanager
def explained(path: Path, then: str) -> Iterator[None]:
    """Turns the system's errors of writing into one that says what is wrong and what to do.

    Arguments:
        path: the store.
        then: what holds after the error, and what can be done.

    Raises:
        OSError: of the same kind and number.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, BlockingIOError):  # our own, which says it all
            raise
        if error.errno in FULL:
            text = f"there is no space left to write to {path} ({error.strerror}). Free some; {then}"
        elif error.errno in READ_ONLY:
            text = f"{path} cannot be written to ({error.strerror}). Choose another store or its permissions; {then}"
        else:
            text = f"writing to {path} failed ({error.strerror or error}); {then}"
        # The number alone chooses the class of the error: PermissionError and so on.
        raise OSError(error.errno, text) from error
