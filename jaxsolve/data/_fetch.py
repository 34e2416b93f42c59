"""Getting the files of image collections from where they are published."""

import enum
import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .._checks import describe
from ._folders import CIFAR10, Collection, default_base, FASHION_MNIST, MNIST


class Images(enum.Enum):
    """The image collections that `js.data` reads.

    Example:
        >>> print(js.data.Images.CIFAR10.value)
        CIFAR-10
    """

    MNIST = "MNIST"
    FASHION_MNIST = "Fashion-MNIST"
    CIFAR10 = "CIFAR-10"


class Published(NamedTuple):
    """A file to fetch.

    Attributes:
        name: of the file, as it is published.
        sha256: of its content.
    """

    name: str
    sha256: str


class Source(NamedTuple):
    """Where a collection is published.

    Attributes:
        collection: how its files are found later.
        addresses: of folders that hold them: the official one, then others with the same files.
        files: all of them.
    """

    collection: Collection
    addresses: tuple[str, ...]
    files: tuple[Published, ...]


SOURCES = {
    Images.MNIST: Source(
        MNIST,
        ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        (
            Published("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            Published("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            Published("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            Published("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    Images.FASHION_MNIST: Source(
        FASHION_MNIST,
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            Published("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            Published("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            Published("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            Published("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
    Images.CIFAR10: Source(
        CIFAR10,
        ("https://www.cs.toronto.edu/~kriz/",),
        (Published("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
    ),
}
BLOCK = 1 << 20
LARGEST = 256 << 20  # bytes of one file; the largest, that of CIFAR-10, has 170 million
BATCH = 10_000 * 3073  # bytes of one file of CIFAR-10
PATIENCE = 30.0  # seconds without an answer


def fetch(
    images: Images,
    folder: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Path:
    """Downloads an image collection and checks it. What is there is not fetched again; what is half there is completed.

    Arguments:
        images: which collection.
        folder: the collection gets a folder of its own in this one. None takes that where `js.data.mnist` and its
            siblings look: the environment variable JAXSOLVE_DATA, or `jaxsolve` in the user's cache folder.
        progress: called with the name of a file, the bytes that are there, and those that it will have, if known.

    Returns:
        The folder of the collection.

    Raises:
        TypeError: `images` is no `js.data.Images`.
        ConnectionError: no address answers.
        ValueError: what came is not the file that was published; nothing of it is kept.

    Example:
        >>> folder = js.data.fetch(js.data.Images.MNIST)  # doctest: +SKIP
        >>> data = js.data.mnist(n_train=1000, n_test=1000, key=jax.random.key(0))  # doctest: +SKIP
    """
    if not isinstance(images, Images):
        raise TypeError(f"images must be one of js.data.Images, such as Images.MNIST, got {describe(images)}")
    source = SOURCES[images]
    place = (default_base() if folder is None else Path(folder).expanduser()) / source.collection.folder
    place.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        if file.name.endswith(".tar.gz"):
            _fetch_archive(source, file, place, progress)
        elif not any((place / name).is_file() for name in (file.name, file.name.removesuffix(".gz"))):
            os.replace(_downloaded(source, file, place, progress), place / file.name)
    return place


def _fetch_archive(source: Source, file: Published, place: Path, progress: Callable | None) -> None:
    wanted = {name for group in source.collection.train + source.collection.test for name in group}
    if all((place / name).is_file() for name in wanted):
        return
    archive = _downloaded(source, file, place, progress)
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            # Names decide nothing about where a file goes: only those known are read, into a place of ours.
            name = member.name.rpartition("/")[2]
            if name in wanted and member.isreg():
                content = members.extractfile(member)
                assert content is not None  # it is a regular file
                part = place / f"{name}.part"
                part.write_bytes(content.read(BATCH))
                os.replace(part, place / name)
    archive.unlink()


def _downloaded(source: Source, file: Published, place: Path, progress: Callable | None) -> Path:
    """The file, whole and checked, under a name that says that it is not in its place yet."""
    part, failed, wrong = place / f"{file.name}.part", [], []
    for address in source.addresses:
        try:
            _get(address + file.name, part, file.name, progress)
        except (OSError, http.client.HTTPException) as error:  # what urllib raises
            failed.append(f"{address}{file.name} ({getattr(error, 'reason', error)})")
            continue
        if _sha256(part) == file.sha256:
            return part
        part.unlink()
        wrong.append(f"{address}{file.name}")
    if wrong:
        raise ValueError(f"what came from {', '.join(wrong)} is not the file that was published; try again later")
    raise ConnectionError(
        f"{source.collection.name}: no answer from {', '.join(failed)}. Call it again to carry on, or get the files in "
        f"another way and put them into {place}"
    )


def _get(url: str, part: Path, name: str, progress: Callable | None) -> None:
    """Appends to the file what it lacks."""
    done = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if done and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # it was whole
            return
        raise
    with answer:
        carried_on = answer.status == http.client.PARTIAL_CONTENT
        done = done if carried_on else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        with part.open("ab" if carried_on else "wb") as target:
            for block in _blocks(answer):
                target.write(block)
                done += len(block)
                if done > LARGEST:
                    raise OSError("it is larger than any file of this collection")
                if progress is not None:
                    progress(name, done, total)
    if total is not None and done < total:
        raise OSError(f"it broke off after {done} of {total} bytes")


def _blocks(answer: io.BufferedIOBase) -> Iterator[bytes]:
    while block := answer.read(BLOCK):
        yield block


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
