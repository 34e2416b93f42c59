"""The two layouts of a kernel: with output axes, or one number per pair of samples."""

from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import describe, real_array


Kernel: TypeAlias = Float[Array, "n out n out"] | Float[Array, "n n"]


def as_matrix(kernel: Kernel) -> Float[Array, "size size"]:
    """The kernel as one square matrix; rows of a kernel (n, c, n, c) run over (sample, output), outputs fastest.

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    shape = kernel.shape
    if kernel.ndim not in (2, 4) or shape[: kernel.ndim // 2] != shape[kernel.ndim // 2 :]:
        raise ValueError(
            "a kernel must have shape (n, c, n, c), or (n, n) if it has one number per pair of samples; "
            f"got {describe(kernel)}"
        )
    if kernel.size == 0:
        raise ValueError(f"a kernel must have at least one row, got {describe(kernel)}")
    size = shape[0] if kernel.ndim == 2 else shape[0] * shape[1]
    return kernel.reshape(size, size)


def output_average(kernel: Kernel) -> Float[Array, "n n"]:
    """sum_a K[i, a, j, a]/c: one number per pair of samples. A kernel (n, n) is returned unchanged.

    For an output-diagonal kernel K[i, a, j, b] = k[i, j] delta_ab this is k; the trace over outputs is c times it.

    Example:
        >>> kernel = jnp.zeros((4, 2, 4, 2)).at[:, 0, :, 0].set(1.0).at[:, 1, :, 1].set(3.0)
        >>> print(js.kernels.output_average(kernel)[0])
        [2. 2. 2. 2.]

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    kernel = real_array(kernel, "kernel")
    as_matrix(kernel)
    return kernel if kernel.ndim == 2 else jnp.einsum("iaja->ij", kernel) / kernel.shape[1]
