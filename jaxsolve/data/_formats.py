"""Readers of the two image formats: IDX (MNIST, Fashion-MNIST) and the binary version of CIFAR-10."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ._labels import N_CLASSES


_CIFAR_SHAPE = (3, 32, 32)


def read_mnist(images: Path, labels: Path) -> tuple[UInt8[np.ndarray, "n 1 28 28"], UInt8[np.ndarray, " n"]]:
    """Reads a pair of IDX files, plain or gzip.

    Args:
        images: file of magic number 2051 holding n images of 28 x 28 pixels.
        labels: file of magic number 2049 holding n labels.

    Returns:
        Pixels 0..255 and class indices 0..9.

    Raises:
        ValueError: a file is corrupt, or the two hold different numbers of samples.
    """
    pixels, classes = _read_idx(images, 3), _read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise ValueError(f"{images}: holds images of {pixels.shape[1]} x {pixels.shape[2]} pixels; expected 28 x 28")
    if len(pixels) != len(classes):
        raise ValueError(f"{images} holds {len(pixels)} images but {labels} holds {len(classes)} labels")
    _check_labels(labels, classes)
    return pixels[:, None], classes


def read_cifar(path: Path) -> tuple[UInt8[np.ndarray, "n 3 32 32"], UInt8[np.ndarray, " n"]]:
    """Reads one batch of the binary version: records of a label byte and 3072 bytes (red, green, blue planes).

    Returns:
        Pixels 0..255, channels first, and class indices 0..9.

    Raises:
        ValueError: the file's size is not a positive multiple of 3073 bytes, or a label exceeds 9.
    """
    content = np.frombuffer(_read_bytes(path), np.uint8)
    record = 1 + math.prod(_CIFAR_SHAPE)
    if len(content) == 0 or len(content) % record:
        raise ValueError(
            f"{path}: holds {len(content)} bytes; expected a positive multiple of {record} (one label and "
            "3 x 32 x 32 pixels per record). The file is damaged, or not the binary version of CIFAR-10"
        )
    records = content.reshape(-1, record)
    _check_labels(path, records[:, 0])
    return records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0]


def _read_bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a gzip file, but unpacking it failed ({error}); get the file again"
        ) from error


def _read_idx(path: Path, ndim: int) -> UInt8[np.ndarray, "..."]:
    content = _read_bytes(path)
    # two zero bytes, the type of the entries (8: unsigned byte), the number of axes, then the sizes, big-endian
    magic, header = 0x0800 + ndim, 4 + 4 * ndim
    if len(content) < header:
        raise ValueError(f"{path}: holds {len(content)} bytes; the header of an IDX file of {ndim} axes has {header}")
    found, *shape = struct.unpack(f">{1 + ndim}I", content[:header])
    if found != magic:
        kind = "labels" if ndim == 1 else "images"
        raise ValueError(f"{path}: begins with the magic number {found}; an IDX file of {kind} begins with {magic}")
    payload, expected = len(content) - header, math.prod(shape)
    if payload != expected or payload == 0:
        raise ValueError(
            f"{path}: holds {payload} bytes after its header; the header's sizes {' x '.join(map(str, shape))} "
            f"{'must be positive' if expected == 0 else f'ask for {expected}'}. The file is damaged"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _check_labels(path: Path, labels: UInt8[np.ndarray, " n"]) -> None:
    if labels.max() >= N_CLASSES:
        raise ValueError(f"{path}: holds the label {labels.max()}; expected labels 0..{N_CLASSES - 1}")
