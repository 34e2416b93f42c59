"""Scikit-learn's bundled handwritten digits."""

import importlib.util
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import PRNGKeyArray

from .._extras import needs
from ._dataset import Dataset
from ._labels import Images, Request, split_at_random, Task
from ._transforms import pca as principal_components


def digits(
    *,
    task: Task = "classes",
    n_train: int,
    n_test: int | None = None,
    pca: int | None = None,
    key: PRNGKeyArray,
) -> Dataset:
    """The 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn; nothing is downloaded.

    The key may be traced, so this function can be jitted and mapped over keys.

    Args:
        task: "classes" (one-hot, c = 10), "parity" (-1 for even, +1 for odd digits, c = 1) or a pair `(a, b)` of
            digits (only those two, -1 for a and +1 for b, c = 1).
        n_train: number of training samples.
        n_test: number of test samples; None takes all the rest, 0 gives no test set.
        pca: number of standardized leading principal components of the training inputs to keep, as in
            `.transform(pca(k))`; None keeps the pixels.
        key: random key for the split into training and test samples, which never overlap.

    Returns:
        A Dataset of the default float dtype with x of shape `(n, 64)`, pixels in [0, 1], or `(n, pca)`.

    Example:
        >>> data = js.data.digits(task="parity", n_train=100, n_test=50, pca=5, key=jax.random.key(0))
        >>> data.x.shape, data.y.shape, data.x_test.shape
        ((100, 5), (100, 1), (50, 5))

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: the task is unknown, there are too few samples, or `pca` exceeds the rank of the inputs.
    """
    request = Request(task, n_train, n_test, key)
    request.check()
    transform = None if pca is None else principal_components(pca)
    data = split_at_random(_samples(), request, brightest=16, name="handwritten digits")
    return data if transform is None else data.transform(transform)


def _samples() -> Images:
    # The file that `sklearn.datasets.load_digits` reads; importing scikit-learn would take seconds.
    installed = importlib.util.find_spec("sklearn")
    with needs("data", "handwritten digits"):
        if installed is None:
            raise ModuleNotFoundError(name="sklearn")
    path = Path(cast(str, installed.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return table[:, :-1], table[:, -1]
