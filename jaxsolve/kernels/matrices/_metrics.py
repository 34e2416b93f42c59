"""Distances between two kernels, and the alignment of a kernel with a target."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import describe, real_array
from ..._numerics import norm, scaled, unit
from ._layout import as_matrix, Kernel


def distance(one: Float[Array, "..."], two: Float[Array, "..."]) -> Float[Array, ""]:
    """1 - <K, K'>/(|K||K'|) in [0, 2]: 0 for kernels equal up to scale (Kunin et al., kernel distance).

    Computed as half the squared difference of the normalized kernels, which does not cancel when they are close. Both
    kernels have the same shape, which is arbitrary; for k delta_ab and k' delta_ab it is the distance between k and k'.
    NaN if either is 0. In float32, distances below 1e-12 are rounding of the entries.

    Raises:
        ValueError: the shapes differ.
        TypeError: one of them is not an array of real numbers.

    Example:
        >>> kernel = jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> print(f"{js.kernels.distance(kernel, 3 * kernel):.2f}, {js.kernels.distance(kernel, jnp.eye(2)):.2f}")
        0.00, 0.11

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}
    """
    one, two = _same_shape(one, two, "one", "two")
    return jnp.sum((unit(one) - unit(two)) ** 2) / 2


def distance_matrix(kernels: Float[Array, "times ..."]) -> Float[Array, "times times"]:
    """S(t1, t2) = 1 - <K_1, K_2>/(|K_1||K_2|) for all pairs of kernels, such as those along a run (Kunin et al.).

    Arguments:
        kernels: kernels stacked along the first axis, as `run["kernel"]` of `js.observe.kernel()`.

    Returns:
        A symmetric matrix with zeros on its diagonal; row 0 is `js.observe.kernel_distance`.

    Example:
        >>> kernels = jnp.array([[[2.0, 1.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> print(js.kernels.distance_matrix(kernels).round(2))
        [[0.   0.11]
         [0.11 0.  ]]

    Raises:
        ValueError: kernels has no axis besides that of the times.
        TypeError: kernels is not an array of real numbers.
    """
    kernels = real_array(kernels, "kernels")
    if kernels.ndim < 2:
        raise ValueError(f"kernels must be kernels along a first axis, such as (times, n, n), got {kernels.shape}")
    return _distances(kernels)


@jax.jit
def _distances(kernels: Array) -> Array:
    one_row = lambda row: jax.lax.map(lambda column: distance(row, column), kernels)
    return jax.lax.map(one_row, kernels)  # not vectorized, so that only one difference is in memory


def relative_change(now: Float[Array, "..."], before: Float[Array, "..."]) -> Float[Array, ""]:
    """|K - K_0|/|K_0|, which distinguishes the kernel regime from feature learning, for kernels of any one shape.

    It is inf or NaN if K_0 is 0. In float32, changes below 1e-6 are rounding of the entries.

    Example:
        >>> kernel = jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> print(f"{js.kernels.relative_change(3 * kernel, kernel):.2f}")
        2.00

    Raises:
        ValueError: the shapes differ.
        TypeError: one of them is not an array of real numbers.
    """
    now, before = _same_shape(now, before, "now", "before")
    return norm(now - before) / norm(before)


def _same_shape(one: Array, two: Array, *names: str) -> tuple[Array, Array]:
    """Two arrays of one shape: kernels (n, 1, n, 1) and (n, n) would broadcast to another shape."""
    one, two = real_array(one, names[0]), real_array(two, names[1])
    if one.shape != two.shape:
        raise ValueError(
            f"the kernels must have one shape, got {one.shape} and {two.shape}; output_average turns (n, c, n, c) "
            "into (n, n)"
        )
    return one, two


def target_alignment(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, ""]:
    """The cosine between a kernel and the target's kernel, in [0, 1]: the share of the kernel that lies on the target.

    For a kernel (n, c, n, c) it is y^T K y/(|K||y|^2) with y as one vector (Atanasov et al., section 2). For a kernel
    (n, n) it is <K, Y Y^T>/(|K||Y Y^T|), the kernel-target alignment of Cristianini et al. (2001). For c = 1 they
    agree. NaN if the kernel or the target is 0.

    Example:
        >>> y = jnp.array([[1.0], [-1.0]])
        >>> on, off = js.kernels.target_alignment(y @ y.T, y), js.kernels.target_alignment(jnp.eye(2), y)
        >>> print(f"{on:.2f}, {off:.2f}")
        1.00, 0.71

    Reference:
        @article{atanasov_kernel_learners, author={Alexander Atanasov and Blake Bordelon and Cengiz Pehlevan},
          title={Neural Networks as Kernel Learners: The Silent Alignment Effect}}

    Raises:
        ValueError: the shapes are not those of a kernel and its targets.
    """
    kernel = real_array(kernel, "kernel")
    # The size of the targets cancels; scaled to order one, their squares neither overflow nor vanish.
    matrix, (rows, _) = as_matrix(kernel), scaled(check_targets(kernel, y))
    one = unit(matrix)
    if kernel.ndim == 2:
        # |Y Y^T| = |Y^T Y|: take the smaller, since language models have millions of outputs per sample.
        gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
        return jnp.sum(rows * (one @ rows)) / norm(gram)
    flat = rows.ravel()
    return flat @ one @ flat / jnp.sum(flat**2)


def center(kernel: Kernel) -> Kernel:
    """H K H with H = 1 - 11^T/n over the samples, output by output: the kernel of features of mean zero.

    Example:
        >>> print(js.kernels.center(jnp.eye(2) + 5.0))
        [[ 0.5 -0.5]
         [-0.5  0.5]]

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    kernel = real_array(kernel, "kernel")
    as_matrix(kernel)
    # Twice: if entries are nearly equal, rounding of their means is as large as their differences.
    for axis in 2 * (0, kernel.ndim // 2):
        kernel = kernel - jnp.mean(kernel, axis=axis, keepdims=True)
    return kernel


def centered_distance(one: Kernel, two: Kernel) -> Float[Array, ""]:
    """1 - CKA: the kernel distance of the centered kernels, which does not cancel when they are close.

    NaN if either kernel is constant over the samples.

    Example:
        >>> kernel = jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> print(abs(js.kernels.centered_distance(kernel, 3 * kernel + 1.0)) < 1e-6)
        True

    Raises:
        ValueError: the kernels differ in shape, or are neither (n, c, n, c) nor (n, n).
    """
    one, two = _same_shape(one, two, "one", "two")
    return distance(center(one), center(two))


def centered_alignment(one: Kernel, two: Kernel) -> Float[Array, ""]:
    """<HKH, HK'H>/(|HKH||HK'H|): the centered kernel alignment, CKA (Cortes et al. 2012; Kornblith et al. 2019).

    It lies in [0, 1] for positive kernels, and is 1 for kernels that are equal up to scale and the means of their
    features. NaN if either is constant over the samples.

    Example:
        >>> kernel = jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> print(f"{js.kernels.centered_alignment(kernel, 3 * kernel + 1.0):.3f}")
        1.000

    Raises:
        ValueError: as for `centered_distance`.
    """
    return 1 - centered_distance(one, two)


def centered_target_alignment(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, ""]:
    """`target_alignment` of the centered kernel with the centered target. NaN for a constant target.

    Example:
        >>> y = jnp.array([[3.0], [1.0]])
        >>> print(f"{js.kernels.centered_target_alignment(y @ y.T, y):.3f}")
        1.000

    Raises:
        ValueError: the shapes are not those of a kernel and its targets.
    """
    kernel = real_array(kernel, "kernel")
    y = check_targets(kernel, y)
    return target_alignment(center(kernel), y - jnp.mean(y, axis=0, keepdims=True))


def check_targets(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """Returns the targets; raises ValueError if they do not match the kernel's samples and outputs."""
    y = real_array(y, "y")
    rows = kernel.shape[: kernel.ndim // 2]
    fits = y.ndim == 2 and kernel.ndim in (2, 4) and y.shape[: len(rows)] == rows
    if not fits:
        raise ValueError(
            f"a kernel of shape {kernel.shape} needs targets with one row per sample and one column per output, "
            f"got {describe(y)}"
        )
    return y
