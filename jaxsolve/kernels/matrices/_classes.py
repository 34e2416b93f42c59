"""Kernels averaged over classes, after an average over outputs (`output_average`)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._checks import concrete, describe, is_real, real_array, require_size
from ..._numerics import nonzero
from ._layout import as_matrix, Kernel, output_average


class ClassMeans(NamedTuple):
    """The means of a kernel over pairs of distinct samples.

    Attributes:
        within: mean over pairs within each class, shape (classes,); NaN for classes with fewer than two samples.
        between: mean over pairs from two classes, shape (classes, classes), symmetric; NaN on the diagonal.
    """

    within: Float[Array, " classes"]
    between: Float[Array, "classes classes"]


def class_kernel(kernel: Kernel, labels: Int[Array, " n"], classes: int) -> Float[Array, "classes classes"]:
    """The mean of the kernel between all samples of two classes: the kernel of the classes' mean features.

    On the diagonal, pairs of a sample with itself count, so that the result is again a kernel. `class_means` leaves
    them out.

    Arguments:
        kernel: shape (n, c, n, c) or (n, n).
        labels: integers 0 to classes - 1.
        classes: the number of classes.

    Example:
        >>> features = jnp.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
        >>> print(js.kernels.class_kernel(features @ features.T, jnp.array([0, 0, 1]), 2).round(3))
        [[4. 0.]
         [0. 1.]]

    Raises:
        ValueError: shapes do not match, a label is out of range, or a class has no sample. Inside a trace such a class
            has NaN.
        TypeError: labels are not integers.
    """
    kernel = real_array(kernel, "kernel")
    member, number = _members(kernel, labels, classes)
    return _over(member @ output_average(kernel) @ member.T, number[:, None] * number[None, :])


def class_means(kernel: Kernel, labels: Int[Array, " n"], classes: int) -> ClassMeans:
    """The mean of the kernel over pairs of distinct samples, within each class and between classes.

    Arguments and errors: as for `class_kernel`.

    Example:
        >>> kernel = jnp.array([[1.0, 0.6, 0.2], [0.6, 1.0, 0.4], [0.2, 0.4, 1.0]])
        >>> means = js.kernels.class_means(kernel, jnp.array([0, 0, 1]), 2)
        >>> print(f"{means.within[0]:.2f} within class 0, {means.between[0, 1]:.2f} between the classes")
        0.60 within class 0, 0.30 between the classes
    """
    kernel = real_array(kernel, "kernel")
    member, number = _members(kernel, labels, classes)
    average, same = output_average(kernel), jnp.eye(classes, dtype=bool)
    others = jnp.where(jnp.eye(average.shape[0], dtype=bool), 0, average)
    # Only the diagonal of M K M^T is needed for pairs within a class.
    within = jnp.sum((member @ others) * member, axis=1)
    between = _over(member @ average @ member.T, number[:, None] * number[None, :])
    return ClassMeans(_over(within, number * (number - 1)), jnp.where(same, jnp.nan, between))


def _over(total: Float[Array, "..."], pairs: Float[Array, "..."]) -> Float[Array, "..."]:
    # NaN is written out, because compiled code need not return NaN for 0/0.
    return jnp.where(pairs == 0, jnp.nan, total / nonzero(pairs))


def _members(
    kernel: Kernel, labels: Int[Array, " n"], classes: int
) -> tuple[Float[Array, "classes n"], Float[Array, " classes"]]:
    """The samples of each class, as rows of 0 and 1, and their number."""
    labels = _check(kernel, labels, classes)
    known = concrete(labels)
    if known is not None:
        empty = sorted(set(range(classes)) - set(known.tolist()))
        if empty:
            raise ValueError(f"no sample has label {empty[0]}, so its class has no mean; leave out that class")
    member = jax.nn.one_hot(labels, classes, dtype=kernel.dtype, axis=0)
    return member, jnp.sum(member, axis=1)


def _check(kernel: Kernel, labels: Int[Array, " n"], classes: int) -> Int[Array, " n"]:
    as_matrix(real_array(kernel, "kernel"))
    require_size(classes, "classes")
    known = concrete(labels)
    if known is not None and not is_real(known):
        raise TypeError(f"labels must be integers, got {describe(labels)}")
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels must be integers, got {describe(labels)}")
    if labels.shape != kernel.shape[:1]:
        raise ValueError(f"a kernel of shape {kernel.shape} needs one label per sample, got {describe(labels)}")
    known = concrete(labels)
    if known is not None and not np.all((known >= 0) & (known < classes)):
        raise ValueError(f"labels must lie in 0..{classes - 1}, got {known.min()}..{known.max()}")
    return labels
