"""Downloads of image collections from their official sites."""

import enum
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .._checks import describe
from .._extras import needs
from ._folders import CIFAR10, Collection, default_base, FASHION_MNIST, find_file, MNIST


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
    """A file to download.

    Attributes:
        name: published file name.
        sha256: checksum of its content.
    """

    name: str
    sha256: str


class DownloadSource(NamedTuple):
    """Where to download a collection, and its files.

    Attributes:
        collection: the collection, whose folder and file names readers look for.
        addresses: URLs of folders that hold the files: the official one, then mirrors.
        files: all files to download.
    """

    collection: Collection
    addresses: tuple[str, ...]
    files: tuple[Published, ...]


SOURCES = {
    Images.MNIST: DownloadSource(
        MNIST,
        ("http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        (
            Published("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            Published("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            Published("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            Published("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    Images.FASHION_MNIST: DownloadSource(
        FASHION_MNIST,
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            Published("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            Published("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            Published("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            Published("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
    Images.CIFAR10: DownloadSource(
        CIFAR10,
        ("https://www.cs.toronto.edu/~kriz/",),
        (Published("cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
    ),
}
BLOCK = 1 << 20
LARGEST = 256 << 20  # bytes that a download may have; the largest file, the archive of CIFAR-10, has 170 million
BATCH = 10_000 * 3073  # bytes of one file in the archive of CIFAR-10
PATIENCE = 30.0  # seconds to wait for an answer

Progress = Callable[[str, int, int | None], None]


def fetch(images: Images, folder: str | os.PathLike[str] | None = None, *, progress: Progress | None = None) -> Path:
    """Downloads an image collection and checks it. Files that are already there are not downloaded again.

    Arguments:
        images: which collection.
        folder: the parent of the collection's folder. None takes the one where `js.data.mnist` and its siblings look:
            the environment variable JAXSOLVE_DATA, or `jaxsolve` in the user's cache folder.
        progress: called with the name of a file, the bytes downloaded so far, and its total size (None if unknown).

    Returns:
        The folder of the collection.

    Raises:
        TypeError: `images` is not a `js.data.Images`.
        ModuleNotFoundError: pooch is not installed (the extra `data`).
        ConnectionError: no address answers.
        ValueError: a download has the wrong checksum; it is not kept.

    Example:
        >>> folder = js.data.fetch(js.data.Images.MNIST)  # doctest: +SKIP
        >>> data = js.data.mnist(n_train=1000, n_test=1000, key=jax.random.key(0))  # doctest: +SKIP
    """
    if not isinstance(images, Images):
        raise TypeError(f"images must be one of js.data.Images, such as Images.MNIST, got {describe(images)}")
    source = SOURCES[images]
    place = (default_base() if folder is None else Path(folder).expanduser()) / source.collection.folder
    groups = source.collection.train + source.collection.test
    absent = [name for group in groups for name in group if find_file(place, name) is None]
    for file in source.files:
        packed = file.name.endswith(".tar.gz")
        # An archive is needed if any file is missing, a single file only if it is missing itself.
        if absent if packed else file.name.removesuffix(".gz") in absent:
            archive = _retrieved(source, file, place, progress)
            if packed:
                _unpack(archive, absent, place)
                archive.unlink()
    return place


def _unpack(archive: Path, wanted: list[str], place: Path) -> None:
    """Extracts the files with these names from an archive."""
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            # Paths in the archive are not trusted: only known names are extracted, and all into `place`.
            name = member.name.rpartition("/")[2]
            if name in wanted and member.isreg():
                content = members.extractfile(member)
                assert content is not None  # it is a regular file
                part = place / f"{name}.part"
                # Read at most the size of such a file, whatever size the archive claims.
                part.write_bytes(content.read(BATCH))
                os.replace(part, place / name)


def _retrieved(source: DownloadSource, file: Published, place: Path, progress: Progress | None) -> Path:
    """The complete file, with its checksum verified, from the first address that has it."""
    with needs("data", "fetching images"):
        import pooch

    failed, wrong = [], []
    for address in source.addresses:
        url = address + file.name
        try:
            # The files are compressed already; ask servers not to compress them again in transit.
            plain = {"Accept-Encoding": "identity"}
            get: Any = pooch.HTTPDownloader(_Bar(file.name, progress), BLOCK, timeout=PATIENCE, headers=plain)  # pyright: ignore[reportArgumentType]
            return Path(pooch.retrieve(url, f"sha256:{file.sha256}", file.name, place, downloader=get))
        except OSError as error:
            failed.append(f"{url} ({error})")
        except ValueError:  # wrong checksum
            wrong.append(url)
    if wrong:
        raise ValueError(f"the file from {', '.join(wrong)} is not the one that was published; try again later")
    raise ConnectionError(
        f"{source.collection.name}: no answer from {', '.join(failed)}. Try again, or download the files in another "
        f"way and put them into {place}"
    )


class _Bar:
    """A progress bar for pooch. It reports the bytes downloaded and stops a download that is too large."""

    def __init__(self, name: str, progress: Progress | None):
        self.total = 0  # set by pooch; 0 if it is not known
        self._name, self._progress, self._done = name, progress, 0

    def update(self, size: int) -> None:
        self._done += size  # pooch counts whole blocks, even for the last, shorter one
        if self._done > LARGEST:
            raise OSError("it is larger than any file of this collection")
        if self._progress is not None:
            self._progress(self._name, min(self._done, self.total or self._done), self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        """Nothing is open."""
