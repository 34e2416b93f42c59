"""The two layouts of a kernel: with its outputs, or one number per pair of samples."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import describe, real_array
from .._safe import nonzero, safe_sqrt


Kernel: TypeAlias = Float[Array, "n out n out"] | Float[Array, "n n"]


def as_matrix(kernel: Kernel) -> Float[Array, "size size"]:
    """The kernel as one square matrix; the rows of a kernel with outputs are (sample, output), outputs fastest.

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
    """sum_a K[i, a, j, a]/c: one number per pair of samples. A kernel (n, n) is left as it is.

    Of an output-diagonal kernel, K[i, a, j, b] = k[i, j] delta_ab, this is k; a traced kernel is c times it.

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


def scaled(array: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """An array divided by its largest entry, and that entry: its squares then neither overflow nor vanish."""
    size = jax.lax.stop_gradient(nonzero(jnp.max(jnp.abs(array))))
    return array / size, size


def norm(array: Float[Array, "..."]) -> Float[Array, ""]:
    """The Frobenius norm without overflow, with derivative 0 at 0."""
    one, size = scaled(array)
    return size * safe_sqrt(jnp.sum(one**2))


def unit(array: Float[Array, "..."]) -> Float[Array, "..."]:
    """An array over its Frobenius norm; NaN for zeros, which have no direction."""
    one, _ = scaled(array)
    return one / safe_sqrt(jnp.sum(one**2))
