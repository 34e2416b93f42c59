"""The spectrum of a kernel, measures of it, and the power of a target in it.

A kernel (n, c, n, c) is treated as a matrix with n c rows, a kernel (n, n) as one with n rows. So the output-diagonal
kernel k delta_ab has c times the trace and ranks of k, log c more entropy, and each eigenvalue of k c times.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._checks import real_array
from ..._numerics import scaled
from ._layout import as_matrix, Kernel
from ._matrices import require_symmetric
from ._metrics import check_targets


class TargetPower(NamedTuple):
    """The shares of a target on the eigenvectors of a kernel.

    Attributes:
        values: eigenvalues, descending.
        shares: the share of |y|^2 on each eigenvector; they sum to 1.
        cumulative: the share on this eigenvector and all before it.
    """

    values: Float[Array, " size"]
    shares: Float[Array, " size"]
    cumulative: Float[Array, " size"]


def trace(kernel: Kernel) -> Float[Array, ""]:
    """tr K, over samples and outputs.

    Example:
        >>> print(js.kernels.trace(jnp.array([[2.0, 1.0], [1.0, 2.0]])))
        4.0

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    return jnp.trace(as_matrix(real_array(kernel, "kernel")))


def spectrum(kernel: Kernel) -> Float[Array, " size"]:
    """The eigenvalues, descending; inside a trace, those of the symmetric part.

    A kernel has no negative eigenvalues, but rounding may give some: those down to -size * eps * (largest) are set to
    0. More negative ones are returned as found: the matrix is then not a kernel.

    Example:
        >>> print(js.kernels.spectrum(jnp.array([[2.0, 1.0], [1.0, 2.0]])).round(4))
        [3. 1.]

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n), or it is not symmetric.
        TypeError: the kernel is not an array of real numbers.
    """
    matrix, size = _scaled(_symmetric(kernel))
    return size * _without_rounding(_eigenvalues(matrix)[::-1])


def entropy(kernel: Kernel) -> Float[Array, ""]:
    """The von Neumann entropy -tr(rho log rho) of rho = K/tr K, in nats: from 0 (one direction) to log(size).

    0 log 0 = 0, with derivative 0. The true derivative is infinite: a new direction raises the entropy infinitely fast.
    NaN if the kernel is 0 or has an eigenvalue that is negative beyond rounding.

    Example:
        >>> print(f"{js.kernels.entropy(jnp.eye(4)):.3f}")
        1.386

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    values = spectrum(_scaled(as_matrix(real_array(kernel, "kernel")))[0])
    shares = jnp.where(jnp.all(values >= 0), values, jnp.nan) / jnp.sum(values)
    # The inner where avoids log 0: the outer one would hide its value, but not the NaN in its derivative.
    empty = shares == 0
    return -jnp.sum(jnp.where(empty, 0, shares * jnp.log(jnp.where(empty, 1, shares))))


def effective_rank(kernel: Kernel) -> Float[Array, ""]:
    """exp(entropy), from 1 to the size (Roy & Vetterli 2007): r equal eigenvalues give r, small ones count little.

    Example:
        >>> print(f"{js.kernels.effective_rank(jnp.diag(jnp.array([1.0, 1.0, 1.0, 0.01]))):.2f}")
        3.06

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    return jnp.exp(entropy(kernel))


def participation_ratio(kernel: Kernel) -> Float[Array, ""]:
    """(tr K)^2/|K|^2, from 1 to the size: another effective rank, dominated by the large eigenvalues.

    It needs no decomposition. NaN if the kernel is 0.

    Example:
        >>> print(f"{js.kernels.participation_ratio(jnp.diag(jnp.array([1.0, 1.0, 1.0, 0.01]))):.2f}")
        3.02

    Raises:
        ValueError: the kernel is neither (n, c, n, c) nor (n, n).
    """
    matrix, _ = scaled(as_matrix(real_array(kernel, "kernel")))
    return jnp.trace(matrix) ** 2 / jnp.sum(matrix**2)


def target_power(kernel: Kernel, y: Float[Array, "n out"]) -> TargetPower:
    """The share of the target on each eigenvector v_k: (v_k . y)^2/|y|^2, of shape (n c,).

    For a kernel (n, n), sum_a (v_k . y_a)^2/|y|^2 over the columns of y, of shape (n,). For equal eigenvalues the
    shares depend on the basis that was found, but their sum does not. The derivative exists only if all eigenvalues
    differ. NaN for y = 0.

    Example:
        >>> power = js.kernels.target_power(jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([[3.0], [1.0]]))
        >>> print(power.shares.round(3), power.cumulative.round(3))
        [0.8 0.2] [0.8 1. ]

    Raises:
        ValueError: the shapes are not those of a kernel and its targets.
    """
    kernel = real_array(kernel, "kernel")
    as_matrix(kernel)
    targets, _ = scaled(check_targets(kernel, y))
    matrix, size = _scaled(_symmetric(kernel))
    values, vectors = _eigenpairs(matrix)
    columns = targets.reshape(matrix.shape[0], -1)
    shares = jnp.sum((vectors.T @ columns) ** 2, axis=1)[::-1] / jnp.sum(columns**2)
    return TargetPower(size * _without_rounding(values[::-1]), shares, jnp.cumsum(shares))


def _scaled(matrix: Array) -> tuple[Array, Array]:
    """A matrix divided by its size (see `scaled`), rounded to a power of two, and that power.

    Division by another number would round the entries, which changes small eigenvalues.
    """
    _, size = scaled(matrix)
    # frexp gives size = m 2^e, 1/2 <= m < 1, so this is the largest power of two up to size: division by it is exact.
    two = jnp.ldexp(jnp.ones((), matrix.dtype), jnp.frexp(size)[1] - 1)
    return matrix / two, two


# In float32 the many small eigenvalues and their vectors would drown in the rounding of the largest, although the
# matrix resolves them. So the decomposition is in float64. JAX cannot differentiate through a change of precision, so
# derivatives stay in the matrix's own dtype.
@jax.custom_jvp
def _eigenvalues(matrix: Float[Array, "size size"]) -> Float[Array, " size"]:
    with jax.enable_x64(True):
        values = jnp.linalg.eigvalsh(jax.lax.convert_element_type(matrix, jnp.float64))
        return jax.lax.convert_element_type(values, matrix.dtype)


@_eigenvalues.defjvp
def _eigenvalues_jvp(primals, tangents):
    values, vectors = _eigenpairs(*primals)
    # First-order perturbation (Hellmann-Feynman): d lambda_k = v_k^T dK v_k.
    return values, jnp.sum(vectors * (tangents[0] @ vectors), axis=0)


@jax.custom_jvp
def _eigenpairs(matrix: Float[Array, "size size"]) -> tuple[Float[Array, " size"], Float[Array, "size size"]]:
    with jax.enable_x64(True):
        values, vectors = jnp.linalg.eigh(jax.lax.convert_element_type(matrix, jnp.float64))
        return jax.lax.convert_element_type(values, matrix.dtype), jax.lax.convert_element_type(vectors, matrix.dtype)


@_eigenpairs.defjvp
def _eigenpairs_jvp(primals, tangents):
    values, vectors = _eigenpairs(*primals)
    moved = vectors.T @ tangents[0] @ vectors
    # First-order perturbation: dv_k = sum_(j != k) v_j (v_j^T dK v_k)/(lambda_k - lambda_j).
    gaps = values[None, :] - values[:, None]
    same = jnp.eye(len(values), dtype=bool)
    turn = jnp.where(same, 0, moved / jnp.where(same, 1, gaps))
    return (values, vectors), (jnp.diagonal(moved), vectors @ turn)


def _symmetric(kernel: Kernel) -> Float[Array, "size size"]:
    matrix = as_matrix(real_array(kernel, "kernel"))
    if jnp.finfo(matrix.dtype).bits < 32:
        raise ValueError(
            f"kernel must be float32 or float64 to have a spectrum, got {matrix.dtype}; convert it with astype"
        )
    require_symmetric(matrix, "kernel", finite=False)
    return (matrix + matrix.T) / 2


def _without_rounding(values: Float[Array, " size"]) -> Float[Array, " size"]:
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(values)))
    rounding = values.shape[0] * float(jnp.finfo(values.dtype).eps) * largest
    return jnp.where((values < 0) & (values >= -rounding), 0, values)
