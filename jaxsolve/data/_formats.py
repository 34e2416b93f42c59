"""Readers of the two image formats: IDX (MNIST, Fashion-MNIST) and the binary version of CIFAR-10."""

import contextlib
import gzip
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ._labels import N_CLASSES


_CIFAR_SHAPE = (3, 32, 32)
# Limits on what is read: a few bytes of gzip can unpack to gigabytes.
_MOST_SAMPLES = 300_000  # in an IDX file; the largest of this kind, EMNIST's digits, has 280,000
_MOST_RECORDS = 60_000  # in a file of CIFAR-10; the official ones have 10,000


def read_mnist(images: Path, labels: Path) -> tuple[UInt8[np.ndarray, "n 1 28 28"], UInt8[np.ndarray, " n"]]:
    """Reads a pair of IDX files, plain or gzip.

    Args:
        images: file with magic number 2051 and n images of 28 x 28 pixels.
        labels: file with magic number 2049 and n labels.

    Returns:
        Pixels 0..255 and class indices 0..9.

    Raises:
        ValueError: a file is corrupt, or the two hold different numbers of samples.
    """
    classes = _read_idx(labels, 1)
    pixels = _read_idx(images, 3, (28, 28))
    if len(pixels) != len(classes):
        raise ValueError(f"{images} holds {len(pixels)} images but {labels} holds {len(classes)} labels")
    _check_labels(labels, classes)
    return pixels[:, None], classes


def read_cifar(path: Path) -> tuple[UInt8[np.ndarray, "n 3 32 32"], UInt8[np.ndarray, " n"]]:
    """Reads one file of the binary version: each record is a label byte and 3072 bytes (red, green, blue planes).

    Returns:
        Pixels 0..255, channels first, and class indices 0..9.

    Raises:
        ValueError: the file's size is not a positive multiple of 3073 bytes, or a label exceeds 9.
    """
    record = 1 + math.prod(_CIFAR_SHAPE)
    with _opened(path) as read:
        content = np.frombuffer(read(_MOST_RECORDS * record + 1), np.uint8)
    if len(content) > _MOST_RECORDS * record:
        raise ValueError(f"{path}: holds more than {_MOST_RECORDS} images, which no file of CIFAR-10 does")
    if len(content) == 0 or len(content) % record:
        raise ValueError(
            f"{path}: holds {len(content)} bytes; expected a positive multiple of {record} (one label and "
            "3 x 32 x 32 pixels per record). The file is damaged, or not the binary version of CIFAR-10"
        )
    records = content.reshape(-1, record)
    _check_labels(path, records[:, 0])
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Callable[[int], bytes]]:
    """A function that reads the next bytes of a file, as many as asked for; of a .gz file, it unpacks only these."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            yield file.read
        return
    try:
        with gzip.open(path) as file:
            yield file.read
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a gzip file, but unpacking it failed ({error}); get the file again"
        ) from error


def _read_idx(path: Path, ndim: int, inner: tuple[int, ...] = ()) -> UInt8[np.ndarray, "..."]:
    """The array in an IDX file. The header is read first, and then no more data than it promises.

    Arguments:
        path: path of the file.
        ndim: number of axes of the array.
        inner: sizes of all axes but the first.
    """
    # Two zero bytes, the type of the entries (8: unsigned byte), the number of axes, then the sizes, big-endian.
    magic, header = 0x0800 + ndim, 4 + 4 * ndim
    with _opened(path) as read:
        begin = read(header)
        if len(begin) < header:
            raise ValueError(f"{path}: holds {len(begin)} bytes; the header of an IDX file of {ndim} axes has {header}")
        found, *shape = struct.unpack(f">{1 + ndim}I", begin)
        if found != magic:
            kind = "labels" if ndim == 1 else "images"
            raise ValueError(f"{path}: begins with the magic number {found}; an IDX file of {kind} begins with {magic}")
        expected, sizes = math.prod(shape), " x ".join(map(str, shape))
        if expected == 0:
            raise ValueError(f"{path}: the header's sizes {sizes} must be positive. The file is damaged")
        if tuple(shape[1:]) != inner:
            raise ValueError(f"{path}: holds images of {shape[1]} x {shape[2]} pixels; expected 28 x 28")
        if shape[0] > _MOST_SAMPLES:
            raise ValueError(f"{path}: its header asks for {shape[0]} samples; at most {_MOST_SAMPLES} are read")
        # Reading one byte more than the header promises reveals a file that is too long.
        content = read(expected + 1)
    if len(content) != expected:
        more = " or more" if len(content) > expected else ""
        raise ValueError(
            f"{path}: holds {len(content)} bytes{more} after its header; the header's sizes {sizes} ask for "
            f"{expected}. The file is damaged"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _check_labels(path: Path, labels: UInt8[np.ndarray, " n"]) -> None:
    if labels.max() >= N_CLASSES:
        raise ValueError(f"{path}: holds the label {labels.max()}; expected labels 0..{N_CLASSES - 1}")
