"""Targets from class labels, and random splits, for digits and image collections."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .._checks import concrete, describe, require_key, require_size
from ._dataset import Dataset


Task: TypeAlias = str | Sequence[int | np.integer]
"""The task: "classes", "parity" or a pair of classes; see `encode`."""

Images: TypeAlias = tuple[Shaped[np.ndarray, "_ ..."], Shaped[np.ndarray, " _"]]
"""Pixels `(n, *shape)` and class indices `(n,)`."""

_Indices: TypeAlias = Int[np.ndarray, " _"] | Int[Array, " _"]

N_CLASSES = 10  # in handwritten digits, MNIST, Fashion-MNIST and CIFAR-10 alike

# Compiled as a whole: otherwise JAX compiles each of its operations separately.
_shuffle = jax.jit(jax.random.permutation, static_argnums=1)


class Request(NamedTuple):
    """The samples to draw from an image collection.

    Attributes:
        task: see `encode`.
        n_train: number of training samples.
        n_test: number of test samples; None takes the rest (in an official split: all test samples), 0 takes none.
        key: random key; may be traced.
    """

    task: Task
    n_train: int
    n_test: int | None
    key: PRNGKeyArray

    def check(self) -> None:
        """Checks the counts and the key; raises TypeError or ValueError."""
        require_size(self.n_train, "n_train")
        if self.n_test is not None:
            require_size(self.n_test, "n_test", least=0)
        require_key(self.key)


def encode(labels: Shaped[np.ndarray, " n"], task: Task) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m c"]]:
    """Targets for a task.

    Args:
        labels: class indices 0..9, shape `(n,)`.
        task: "classes" for one-hot rows, c = 10; "parity" for -1 (even class) or +1 (odd), c = 1; a pair `(a, b)`
            for the samples of classes a and b alone, with -1 for a and +1 for b, c = 1.

    Returns:
        Indices of the samples that the task uses, shape `(m,)`, and their targets, shape `(m, c)`.

    Raises:
        ValueError: `task` has none of the accepted forms.
    """
    everything = np.arange(len(labels))
    if isinstance(task, str):
        if task == "classes":
            return everything, np.eye(N_CLASSES)[labels]
        if task == "parity":
            return everything, 2.0 * (labels[:, None] % 2) - 1
    elif _is_pair(task):
        kept = np.flatnonzero(np.isin(labels, np.asarray(task)))
        return kept, np.where(labels[kept, None] == task[1], 1.0, -1.0)
    raise ValueError(
        'task must be "classes" (one-hot rows), "parity" (-1 for even, +1 for odd classes) or a pair (a, b) of '
        f"different classes in 0..{N_CLASSES - 1} (-1 for a, +1 for b), got {describe(task)}"
    )


def _is_pair(task: Any) -> bool:
    integers = isinstance(task, Sequence) and all(
        isinstance(c, (int, np.integer)) and not isinstance(c, bool) for c in task
    )
    return integers and len(task) == 2 and task[0] != task[1] and all(0 <= c < N_CLASSES for c in task)


def draw(key: PRNGKeyArray, available: int, counts: tuple[int, int | None], where: str) -> tuple[_Indices, _Indices]:
    """Two disjoint random sets of sample indices: NumPy arrays, or JAX arrays if the key is traced.

    Args:
        key: random key.
        available: number of samples to draw from.
        counts: sizes of the two sets; None for the second takes all samples that the first leaves.
        where: what the samples are, for error messages.

    Returns:
        Indices of shape `(counts[0],)` and `(counts[1],)`.

    Raises:
        ValueError: there are too few samples.
    """
    first, second = counts
    second = available - first if second is None else second
    if first > available or first + second > available:
        asked = f"{first}" if not counts[1] else f"{first} + {second} = {first + second}"
        raise ValueError(f"{asked} samples were requested, but there are {available} {where}; request fewer")
    order = _shuffle(key, available)
    known = concrete(order)
    order = order if known is None else known  # NumPy indices pick bytes, see `_take`
    return order[:first], order[first : first + second]


def split_at_random(images: Images, request: Request, *, brightest: int, name: str) -> Dataset:
    """Draws disjoint training and test samples from one collection.

    Args:
        images: intensities 0..`brightest`, shape `(n, *shape)`, and class indices, shape `(n,)`.
        request: which samples to draw.
        brightest: the intensity that becomes 1.
        name: the collection's name.

    Returns:
        A Dataset with inputs in [0, 1].

    Raises:
        ValueError: the task is unknown, or there are too few samples.
    """
    pixels, labels = images
    kept, y = encode(labels, request.task)
    of_task = f"{name} with task={request.task!r}"
    train, test = draw(request.key, len(kept), (request.n_train, request.n_test), f"samples of {of_task}")
    pool = pixels[kept], y
    source = f"{name}, task={request.task!r}: {len(train)} training and {len(test)} test samples, split at random"
    return assemble(_take(pool, train, brightest), _take(pool, test, brightest), source)


def split_officially(train: Images, test: Images | None, request: Request, *, brightest: int, name: str) -> Dataset:
    """Draws training samples from one collection and test samples from another.

    Args:
        train: pixels `(n, *shape)` and labels `(n,)` of the training collection.
        test: the same for the test collection; None if no test samples are wanted.
        request: which samples to draw.
        brightest: the intensity that becomes 1.
        name: the collections' name.

    Returns:
        A Dataset with inputs in [0, 1].

    Raises:
        ValueError: the task is unknown, or there are too few samples.
    """
    key_train, key_test = jax.random.split(request.key)

    def drawn(images: Images, n: int | None, kind: str, key: PRNGKeyArray) -> tuple[Array, Array]:
        kept, y = encode(images[1], request.task)
        n = len(kept) if n is None else n
        chosen, _ = draw(key, len(kept), (n, 0), f"{kind} samples of {name} with task={request.task!r}")
        return _take((images[0][kept], y), chosen, brightest)

    training = drawn(train, request.n_train, "training", key_train)
    testing = None if test is None else drawn(test, request.n_test, "test", key_test)
    n_test = 0 if testing is None else len(testing[0])
    source = f"{name}, task={request.task!r}: {request.n_train} training and {n_test} test samples, official split"
    return assemble(training, testing, source)


def assemble(train: tuple[Array, Array], test: tuple[Array, Array] | None, source: str) -> Dataset:
    """A Dataset whose test set is None if it would be empty."""
    if test is None or len(test[0]) == 0:
        return Dataset(*train, source=source)
    return Dataset(*train, *test, source=source)


def _take(
    pool: tuple[Shaped[np.ndarray, "n ..."], Float[np.ndarray, "n c"]], chosen: _Indices, brightest: int
) -> tuple[Float[Array, "m ..."], Float[Array, "m c"]]:
    pixels, y = pool
    dtype = jnp.result_type(float)
    # Select first, convert second: the whole collection as floats would be four to eight times as large.
    if isinstance(chosen, np.ndarray):
        return jnp.asarray(pixels[chosen].astype(dtype) / brightest), jnp.asarray(y[chosen], dtype)
    return jnp.asarray(pixels)[chosen].astype(dtype) / brightest, jnp.asarray(y, dtype)[chosen]
