"""Search for folders of image files, with messages that say how to get missing ones."""

import os
from pathlib import Path
from typing import NamedTuple

from .._checks import require_path, see


class Collection(NamedTuple):
    """The files of one image collection.

    Attributes:
        name: its usual name.
        folder: name of its folder.
        train: groups of training files; a group's files belong together.
        test: groups of test files.
        sources: its official site.
    """

    name: str
    folder: str
    train: tuple[tuple[str, ...], ...]
    test: tuple[tuple[str, ...], ...]
    sources: str


_IDX_TRAIN = (("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),)
_IDX_TEST = (("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),)

MNIST = Collection(
    name="MNIST",
    folder="mnist",
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    sources="http://yann.lecun.com/exdb/mnist/",
)
FASHION_MNIST = Collection(
    name="Fashion-MNIST",
    folder="fashion_mnist",
    train=_IDX_TRAIN,
    test=_IDX_TEST,
    sources="https://github.com/zalandoresearch/fashion-mnist",
)
CIFAR10 = Collection(
    name="CIFAR-10",
    folder="cifar-10-batches-bin",
    train=tuple((f"data_batch_{i}.bin",) for i in range(1, 6)),
    test=(("test_batch.bin",),),
    sources='https://www.cs.toronto.edu/~kriz/cifar.html ("binary version")',
)


def find_folder(collection: Collection, path: str | os.PathLike[str] | None) -> Path:
    """The first folder that holds a file of the collection.

    Args:
        collection: what to look for.
        path: the collection's folder or its parent. None looks for the collection's folder in the folder that the
            environment variable JAXSOLVE_DATA names, then in `jaxsolve` in the user's cache (XDG_CACHE_HOME, ~/.cache).

    Raises:
        TypeError: `path` is not a path.
        FileNotFoundError: no folder holds any of the files.
    """
    if path is not None:
        require_path(path, "path", f"that of the folder with the files of {collection.name}")
    if path is None:  # MNIST and Fashion-MNIST use the same file names: only the folder tells them apart
        places = list(dict.fromkeys([default_base() / collection.folder, _cache() / collection.folder]))
    else:
        given = Path(path).expanduser()
        places = [given / collection.folder, given]
    files = [file for group in collection.train + collection.test for file in group]
    for place in places:
        if any(find_file(place, file) for file in files):
            return place
    raise FileNotFoundError(
        f"{collection.name}: no file found. Looked in: {', '.join(map(str, places))}. Wanted: {', '.join(files)} "
        "(plain or .gz). Nothing is downloaded automatically: run `jaxsolve data fetch`, or download them from "
        f"{collection.sources} and give the folder that contains {collection.folder} as path= or in the environment "
        f"variable JAXSOLVE_DATA, or {collection.folder} itself as path=." + see("no-images")
    )


def default_base() -> Path:
    """The folder to search first and to download to: JAXSOLVE_DATA, or `jaxsolve` in the user's cache."""
    given = os.environ.get("JAXSOLVE_DATA")
    return Path(given).expanduser() if given else _cache()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxsolve"


def find_groups(
    collection: Collection, folder: Path, groups: tuple[tuple[str, ...], ...], kind: str, advice: str
) -> list[list[Path]]:
    """The groups of files that are present, each complete.

    Args:
        collection: the collection that the files belong to.
        folder: where to look.
        groups: names of the files, by group.
        kind: "training", "test" or "image", for messages.
        advice: how to do without these files, for messages; empty, or a sentence and a space.

    Raises:
        FileNotFoundError: no group is present, or one is incomplete.
    """
    present = []
    for group in groups:
        found = [find_file(folder, file) for file in group]
        complete = [file for file in found if file is not None]
        if len(complete) == len(group):
            present.append(complete)
        elif complete:
            missing = [name for name, file in zip(group, found, strict=True) if file is None]
            raise FileNotFoundError(
                f"{collection.name}: {folder} has {complete[0].name} but not {', '.join(missing)} (plain or .gz), "
                f"which belongs to it. Get it from {collection.sources}."
            )
    if not present:
        wanted = ", ".join(file for group in groups for file in group)
        raise FileNotFoundError(
            f"{collection.name}: {folder} has no {kind} files. {advice}Wanted: {wanted} (plain or .gz), from "
            f"{collection.sources}."
        )
    return present


def find_file(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, plain or compressed (.gz); None if there is neither."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None
