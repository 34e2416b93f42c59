"""How two kernels differ, and how a kernel relates to a target."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import describe
from ._layout import as_matrix, Kernel, norm, scaled, unit


def distance(one: Float[Array, "..."], two: Float[Array, "..."]) -> Float[Array, ""]:
    """1 - <K, K'>/(|K||K'|) in [0, 2]: 0 for kernels equal up to scale (Kunin et al., kernel distance).

    Computed as half the squared difference of the normalised kernels, which does not cancel when they are close.
    Kernels of any one shape; between k delta_ab and k' delta_ab it is that between k and k'. NaN if one of them is 0.
    """
    return jnp.sum((unit(one) - unit(two)) ** 2) / 2


def relative_change(now: Float[Array, "..."], before: Float[Array, "..."]) -> Float[Array, ""]:
    """|K - K_0|/|K_0|: what tells the kernel regime from feature learning. Kernels of any one shape."""
    return norm(now - before) / norm(before)


def target_alignment(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, ""]:
    """The cosine between a kernel and that of the target: the share of the kernel that lies on the target, in [0, 1].

    With outputs, (n, c, n, c): y^T K y/(|K||y|^2), y as one vector (Atanasov et al., section 2). Without, (n, n):
    <K, Y Y^T>/(|K||Y Y^T|), the kernel-target alignment of Cristianini et al. (2001). For c = 1 they agree. NaN if the
    kernel or the target is 0.

    Raises:
        ValueError: the shapes are not those of a kernel and its targets.
    """
    matrix, (rows, _) = as_matrix(kernel), scaled(check_targets(kernel, y))
    one = unit(matrix)
    if kernel.ndim == 2:
        return jnp.sum(rows * (one @ rows)) / norm(rows.T @ rows)  # |Y Y^T| = |Y^T Y|
    flat = rows.ravel()
    return flat @ one @ flat / jnp.sum(flat**2)


def centre(kernel: Kernel) -> Kernel:
    """H K H with H = 1 - 11^T/n over the samples, output by output: the kernel of features of mean zero.

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    as_matrix(kernel)
    half = kernel - jnp.mean(kernel, axis=0, keepdims=True)
    return half - jnp.mean(half, axis=kernel.ndim // 2, keepdims=True)


def centred_distance(one: Kernel, two: Kernel) -> Float[Array, ""]:
    """1 - CKA: the kernel distance of the centred kernels, which does not cancel when they are close.

    NaN if one of them is constant over the samples.

    Raises:
        ValueError: the kernels differ in shape, or are neither (n, c, n, c) nor (n, n).
    """
    if one.shape != two.shape:
        raise ValueError(
            f"the kernels must have one shape, got {one.shape} and {two.shape}; "
            "output_average brings (n, c, n, c) to (n, n)"
        )
    return distance(centre(one), centre(two))


def centred_alignment(one: Kernel, two: Kernel) -> Float[Array, ""]:
    """<HKH, HK'H>/(|HKH||HK'H|): the centred kernel alignment, CKA (Cortes et al. 2012; Kornblith et al. 2019).

    In [0, 1] for positive kernels, 1 for kernels equal up to scale and features' means. NaN if one of them is
    constant over the samples.

    Raises:
        ValueError: as for `centred_distance`.
    """
    return 1 - centred_distance(one, two)


def centred_target_alignment(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, ""]:
    """`target_alignment` of the centred kernel with the centred target. NaN for a constant target.

    Raises:
        ValueError: the shapes are not those of a kernel and its targets.
    """
    check_targets(kernel, y)
    return target_alignment(centre(kernel), y - jnp.mean(y, axis=0, keepdims=True))


def check_targets(kernel: Kernel, y: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """Returns the targets; raises ValueError if they are not those of the kernel's samples and outputs."""
    fits = y.ndim == 2 and (y.shape == kernel.shape[:2] if kernel.ndim == 4 else y.shape[0] == kernel.shape[0])
    if not fits:
        raise ValueError(
            f"a kernel of shape {kernel.shape} needs targets with one row per sample and one column per output, "
            f"got {describe(y)}"
        )
    return y
