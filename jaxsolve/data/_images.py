"""MNIST, Fashion-MNIST and CIFAR-10 from local files; nothing is downloaded."""

import os
from collections.abc import Callable

import numpy as np
from jaxtyping import PRNGKeyArray, UInt8

from ._dataset import Dataset
from ._folders import CIFAR10, Collection, FASHION_MNIST, find_folder, find_groups, MNIST
from ._formats import read_cifar, read_mnist
from ._labels import Images, Request, split_at_random, split_officially, Task
from ._transforms import pca as principal_components


Reader = Callable[..., tuple[UInt8[np.ndarray, " n *shape"], UInt8[np.ndarray, " n"]]]
"""A function that reads a group of files: images and labels."""


# There is no return annotation: type checkers then infer the full signature of `load`.
def _collection(name: str, collection: Collection, read: Reader, doc: str):
    """The public function that reads a collection."""

    def load(
        *,
        task: Task = "classes",
        n_train: int,
        n_test: int | None = None,
        pca: int | None = None,
        path: str | os.PathLike[str] | None = None,
        flatten: bool = True,
        official_split: bool = True,
        key: PRNGKeyArray,
    ) -> Dataset:
        request = Request(task, n_train, n_test, key)
        request.check()
        if pca is not None and not flatten:
            raise ValueError(f"pca={pca} needs flat inputs, got flatten=False; give one or the other")
        transform = None if pca is None else principal_components(pca)
        folder = find_folder(collection, path)

        def images(groups: tuple[tuple[str, ...], ...], kind: str, advice: str) -> Images:
            parts = [read(*files) for files in find_groups(collection, folder, groups, kind, advice)]
            pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            return pixels.reshape(len(pixels), -1) if flatten else pixels, labels

        if official_split:
            pool = "official_split=False draws training and test samples from the files that exist. "
            train = images(collection.train, "training", pool)
            without = f"n_test=0 needs none; {pool}"
            test = None if request.n_test == 0 else images(collection.test, "test", without)
            found = f"{collection.name} ({len(train[1])} training images in {folder})"
            data = split_officially(train, test, request, brightest=255, name=found)
        else:
            pooled = images(collection.train + collection.test, "image", "")
            found = f"{collection.name} ({len(pooled[1])} images in {folder})"
            data = split_at_random(pooled, request, brightest=255, name=found)
        return data if transform is None else data.transform(transform)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = doc
    return load


mnist = _collection(
    "mnist",
    MNIST,
    read_mnist,
    """MNIST, 28 x 28 gray images of handwritten digits, from the official IDX files (plain or .gz).

    The key may be traced, so this function can be jitted and mapped over keys.

    Args:
        task: "classes" (one-hot, c = 10), "parity" (-1 for even, +1 for odd classes, c = 1) or a pair `(a, b)` of
            classes (only those two, -1 for a and +1 for b, c = 1).
        n_train: number of training samples.
        n_test: number of test samples; None takes all the rest, 0 gives no test set.
        pca: number of standardized leading principal components of the training inputs to keep, as in
            `.transform(pca(k))`; None keeps the pixels. Needs `flatten=True`.
        path: folder of the files, or its parent (which must then hold the folder `mnist`). None takes as the parent
            the environment variable JAXSOLVE_DATA, then `jaxsolve` in the user's cache (XDG_CACHE_HOME or ~/.cache).
        flatten: whether each image becomes a vector of 784 pixels; otherwise it has shape `(1, 28, 28)`.
        official_split: draw training samples from the official training files and test samples from the official
            test files; otherwise pool every image file found and split at random.
        key: random key for the choice of samples; training and test samples never overlap.

    Returns:
        A Dataset of the default float dtype with x of shape `(n, 784)`, `(n, 1, 28, 28)` or `(n, pca)`; pixels in
        [0, 1].

    Example:
        >>> # With the files in place this returns a Dataset. Without them it says where it looked and what is missing.
        >>> js.data.mnist(task=(3, 8), n_train=500, n_test=100, path="no/such/folder", key=jax.random.key(0))
        Traceback (most recent call last):
        FileNotFoundError: MNIST: no file found. Looked in: no/such/folder/...

    Raises:
        FileNotFoundError: files are missing; the message says which, where they were looked for and where to get
            them.
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: a file is corrupt, the task is unknown, there are too few samples, or `pca` is given without
            flattening or exceeds the rank of the inputs.
    """,
)
fashion_mnist = _collection(
    "fashion_mnist",
    FASHION_MNIST,
    read_mnist,
    """Fashion-MNIST, 28 x 28 gray images of ten kinds of clothing, from the official IDX files (plain or .gz).

    Arguments, result and errors are as for `js.data.mnist`, except:

    Args:
        task: classes are the official indices 0..9, and "parity" is the parity of the index.
        path: if this is the parent, the folder in it is `fashion_mnist`.
        flatten: whether each image becomes a vector of 784 pixels; otherwise it has shape `(1, 28, 28)`.

    Example:
        >>> js.data.fashion_mnist(n_train=500, path="no/such/folder", key=jax.random.key(0))  # as for `mnist`
        Traceback (most recent call last):
        FileNotFoundError: Fashion-MNIST: no file found. Looked in: no/such/folder/...
    """,
)
cifar10 = _collection(
    "cifar10",
    CIFAR10,
    read_cifar,
    """CIFAR-10, 32 x 32 color images of ten kinds of objects, from the official binary version.

    Some of the five training files may be missing; `source` says how many images were found.

    Arguments, result and errors are as for `js.data.mnist`, except:

    Args:
        task: classes are the official indices 0..9, and "parity" is the parity of the index.
        path: if this is the parent, the folder in it is `cifar-10-batches-bin`.
        flatten: whether each image becomes a vector of 3072 pixels (red, green, blue planes); else `(3, 32, 32)`.

    Example:
        >>> js.data.cifar10(n_train=500, flatten=False, path="no/such/folder", key=jax.random.key(0))  # as for `mnist`
        Traceback (most recent call last):
        FileNotFoundError: CIFAR-10: no file found. Looked in: no/such/folder/...
    """,
)
