"""The largest eigenvalues of an operator that is known by its products with vectors."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from ..._checks import one_number, require_size
from ..._numerics import nonzero, scaled
from ._matrix_free import AbstractSymmetricOperator, check_operator


# The number of vectors multiplied at once: they share passes through the network, but each one needs memory.
VECTORS_AT_ONCE = 8
# JAX's LOBPCG needs more than this many rows per eigenpair; smaller matrices are cheap to form.
ROWS_PER_PAIR = 5


class Eigenpairs(NamedTuple):
    """The largest eigenvalues, descending, with their eigenvectors and residuals.

    Attributes:
        values: eigenvalues, shape (k,).
        vectors: orthonormal eigenvectors, shaped like the operator's vectors with a first axis of k.
        residuals: |A v - value v|: an eigenvalue of A lies within this distance.
        steps: iterations taken; 0 if the matrix was small enough to form.
    """

    values: Float[Array, " k"]
    vectors: PyTree[Float[Array, "k ..."]]
    residuals: Float[Array, " k"]
    steps: Int[Array, ""]


def top_eigenpairs(
    operator: AbstractSymmetricOperator,
    k: int,
    *,
    key: Key[Array, ""],
    tol: float | Float[Array, ""] | None = None,
    max_steps: int = 200,
) -> Eigenpairs:
    """The k algebraically largest eigenvalues and their eigenvectors, by LOBPCG (Knyazev 2001), inside or outside jit.

    Eigenvalues are Rayleigh quotients, so their error is about residual^2/gap. They have the derivative of simple
    eigenvalues; eigenvectors have none. An operator with at most 5 k rows is formed and diagonalized.

    Arguments:
        operator: a symmetric operator, such as `NTKOperator(net, x)`.
        k: the number of eigenvalues.
        key: random key for the starting vectors.
        tol: the tolerance on residuals, relative to the largest eigenvalue; None takes eps^(3/4) of the dtype. That
            eigenvalue is only estimated, so the final residuals may be a few times larger or smaller.
        max_steps: the largest number of iterations, of 4 k products each. If they do not suffice, `residuals` show it.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> operator = js.kernels.NTKOperator(net, jnp.eye(2))
        >>> pairs = js.kernels.top_eigenpairs(operator, 1, key=jax.random.key(1))
        >>> kernel = js.kernels.empirical(net, jnp.eye(2)).ntk[:, 0, :, 0]
        >>> bool(jnp.allclose(pairs.values[0], jnp.linalg.eigvalsh(kernel)[-1]))
        True

    Raises:
        ValueError: k is below 1 or above the operator's size, or tol is not positive.
        TypeError: k or max_steps is not an integer.
    """
    check_operator(operator, key)
    if require_size(k, "k") > operator.size:
        raise ValueError(f"k must be at most {operator.size}, the number of the operator's eigenvalues, got {k}")
    require_size(max_steps, "max_steps")
    if tol is not None:
        tol = one_number(tol, "tol", hint="; a tolerance must be positive")
    # JAX's LOBPCG caches its program by the function that it is given, and so keeps what this one closes over.
    with jax.check_tracer_leaks(False):
        return _top_eigenpairs(operator, k, key, tol, max_steps)


def products(operator: AbstractSymmetricOperator, columns: Float[Array, "size k"]) -> Float[Array, "size k"]:
    """The operator times every column of a matrix."""
    product, _, _ = operator.flat()
    return jax.lax.map(product, columns.T, batch_size=min(VECTORS_AT_ONCE, columns.shape[1])).T


@eqx.filter_jit
def _top_eigenpairs(
    operator: AbstractSymmetricOperator, k: int, key: Key[Array, ""], tol: Any, max_steps: int
) -> Eigenpairs:
    _, unravel, dtype = operator.flat()
    # Eigenvectors have no derivative, so none is taken through the iteration that finds them.
    fixed = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, operator)
    if ROWS_PER_PAIR * k >= operator.size:
        matrix = products(fixed, jnp.eye(operator.size, dtype=dtype))
        vectors, steps = jnp.linalg.eigh((matrix + matrix.T) / 2)[1][:, ::-1][:, :k], 0
    else:
        vectors, steps = _lobpcg(fixed, k, key, tol, max_steps, dtype)
    vectors = jax.lax.stop_gradient(vectors)
    moved = products(operator, vectors)
    # With fixed vectors, the derivative of v^T A v is v^T dA v, as for a simple eigenvalue (Hellmann-Feynman).
    values = jnp.sum(vectors * moved, axis=0)
    order = jnp.argsort(-jax.lax.stop_gradient(values))
    # Scaled, so that the squares in the norm neither overflow nor vanish.
    missed, size = scaled(jax.lax.stop_gradient(moved - vectors * values[None, :]))
    residuals = size * jnp.linalg.norm(missed, axis=0)
    return Eigenpairs(values[order], jax.vmap(unravel)(vectors.T[order]), residuals[order], jnp.asarray(steps))


def _lobpcg(operator, k, key, tol, max_steps, dtype):
    start = jax.random.normal(key, (operator.size, k), dtype)
    size = nonzero(jnp.max(jnp.abs(products(operator, start))) / jnp.max(jnp.abs(start)))
    # Scaled to order one, or float32 overflows. Shifted by 1, because the routine measures residuals relative to the
    # eigenvalue and would never stop at an eigenvalue of 0.
    shifted = lambda v: products(operator, v) / size + v
    eps = float(jnp.finfo(dtype).eps)
    tolerance = eps**0.75 if tol is None else tol
    # The routine stops at residuals below tol * 10 n (value + |A v|).
    scaled_tolerance = jnp.asarray(tolerance, dtype) / (20 * operator.size)
    from jax.experimental.sparse.linalg import lobpcg_standard  # imported late: it imports scipy.sparse, which is slow

    _, vectors, steps = lobpcg_standard(shifted, start, max_steps, scaled_tolerance)
    return vectors, steps
