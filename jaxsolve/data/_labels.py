"""From class labels to targets, and random splits: what digits and images share."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .._checks import concrete, describe
from ._arguments import require_count, require_key
from ._dataset import Dataset


Task: TypeAlias = str | Sequence[int | np.integer]  # "classes", "parity" or a pair of classes

_Indices: TypeAlias = Int[np.ndarray, " _"] | Int[Array, " _"]

N_CLASSES = 10  # of handwritten digits, MNIST, Fashion-MNIST and CIFAR-10 alike


def encode(labels: Shaped[np.ndarray, " n"], task: Task) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m c"]]:
    """Targets for a task.

    Args:
        labels: class indices 0..9, shape `(n,)`.
        task: "classes" for one-hot rows, c = 10; "parity" for -1 (even class) or +1 (odd), c = 1; a pair `(a, b)`
            for the samples of classes a and b alone, with -1 for a and +1 for b, c = 1.

    Returns:
        Indices of the samples that take part, shape `(m,)`, and their targets, shape `(m, c)`.

    Raises:
        ValueError: `task` is none of the accepted forms.
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
        counts: sizes of the two sets; None for the second takes all that the first leaves.
        where: what the samples are, for error messages.

    Returns:
        Indices of shape `(counts[0],)` and `(counts[1],)`.

    Raises:
        ValueError: more samples are asked for than there are.
    """
    first, second = counts
    second = available - first if second is None else second
    if first > available or first + second > available:
        asked = f"{first}" if not counts[1] else f"{first} + {second} = {first + second}"
        raise ValueError(f"{asked} samples were asked for, but there are {available} {where}; ask for fewer")
    order = jax.random.permutation(key, available)
    known = concrete(order)
    order = order if known is None else known
    return order[:first], order[first : first + second]


def check_split(n_train: int, n_test: int | None, key: PRNGKeyArray) -> None:
    """Checks the arguments of a split; raises TypeError or ValueError."""
    require_count(n_train, "n_train", least=1)
    if n_test is not None:
        require_count(n_test, "n_test", least=0)
    require_key(key)


def split_at_random(
    pixels: Shaped[np.ndarray, "n ..."],
    labels: Shaped[np.ndarray, " n"],
    *,
    brightest: int,
    task: Task,
    n_train: int,
    n_test: int | None,
    name: str,
    key: PRNGKeyArray,
) -> Dataset:
    """Draws disjoint training and test samples from one collection.

    Args:
        pixels: intensities 0..`brightest`, shape `(n, *shape)`.
        labels: class indices, shape `(n,)`.
        brightest: the intensity that becomes 1.
        task: see `encode`.
        n_train: number of training samples.
        n_test: number of test samples; None takes the rest, 0 none.
        name: the collection's name.
        key: random key; may be traced.

    Returns:
        A Dataset with inputs in [0, 1].

    Raises:
        ValueError: unknown task, or more samples asked for than there are.
    """
    kept, y = encode(labels, task)
    train, test = draw(key, len(kept), (n_train, n_test), f"samples of {name} with task={task!r}")
    pool = pixels[kept], y
    source = f"{name}, task={task!r}: {len(train)} training and {len(test)} test samples, split at random"
    return assemble(_take(pool, train, brightest), _take(pool, test, brightest), source)


def split_officially(
    train: tuple[Shaped[np.ndarray, "n ..."], Shaped[np.ndarray, " n"]],
    test: tuple[Shaped[np.ndarray, "m ..."], Shaped[np.ndarray, " m"]] | None,
    *,
    brightest: int,
    task: Task,
    n_train: int,
    n_test: int | None,
    name: str,
    key: PRNGKeyArray,
) -> Dataset:
    """Draws training samples from one collection and test samples from another.

    Args:
        train: pixels `(n, *shape)` and labels `(n,)` of the training collection.
        test: the same of the test collection; None if no test samples are wanted.
        brightest: the intensity that becomes 1.
        task: see `encode`.
        n_train: number of training samples.
        n_test: number of test samples; None takes the whole test collection, 0 none.
        name: the collections' name.
        key: random key; may be traced.

    Returns:
        A Dataset with inputs in [0, 1].

    Raises:
        ValueError: unknown task, or more samples asked for than there are.
    """
    key_train, key_test = jax.random.split(key)
    drawn = []
    for part, key_part, n, kind in ((train, key_train, n_train, "training"), (test, key_test, n_test, "test")):
        if part is None:
            drawn.append(None)
            continue
        kept, y = encode(part[1], task)
        n = len(kept) if n is None else n
        chosen, _ = draw(key_part, len(kept), (n, 0), f"{kind} samples of {name} with task={task!r}")
        drawn.append(_take((part[0][kept], y), chosen, brightest))
    n_drawn = 0 if drawn[1] is None else len(drawn[1][0])
    source = f"{name}, task={task!r}: {n_train} training and {n_drawn} test samples, official split"
    return assemble(drawn[0], drawn[1], source)


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
    # picked as bytes, because the floats of the whole collection would be four to eight times as large
    if isinstance(chosen, np.ndarray):
        return jnp.asarray(pixels[chosen].astype(dtype) / brightest), jnp.asarray(y[chosen], dtype)
    return jnp.asarray(pixels)[chosen].astype(dtype) / brightest, jnp.asarray(y, dtype)[chosen]
