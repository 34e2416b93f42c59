"""The largest eigenvalue of an operator known by products, in a program that compiles fast."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._numerics import nonzero


# Products between two looks at the estimate, and the most.
BLOCK, MOST = 10, 200


def largest_eigenvalue(product: Callable[[PyTree], PyTree], like: PyTree) -> Float[Array, ""]:
    """The algebraically largest eigenvalue of a symmetric operator, from below, by Lanczos; it has no reverse mode.

    It ends once ten more products change it by less than eps^(3/4) of it, or after 200 of them. NaN where products are.

    `js.kernels.top_eigenpairs` knows eigenvectors and derivatives, too, but takes 4 products where this takes one, and
    three times as long to compile.

    Arguments:
        product: the operator.
        like: a pytree of the shapes that it acts on.
    """
    zero, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, like))
    start = jax.random.normal(jax.random.key(0), zero.shape, zero.dtype)  # fixed, so that results repeat
    rows = min(MOST, zero.size)
    tolerance = float(jnp.finfo(zero.dtype).eps) ** 0.75

    # Three-term recurrence: A q_k = beta_(k-1) q_(k-1) + alpha_k q_k + beta_k q_(k+1), with orthonormal q.
    def step(k, carry):
        (before, now, beta), (alphas, betas, inside) = carry
        moved = ravel_pytree(product(unravel(now)))[0] - beta * before
        alpha = jnp.sum(now * moved)
        rest = moved - alpha * now
        size = jnp.linalg.norm(rest)
        # An exhausted space has rounding left over: it must not start a copy of the spectrum.
        alive = ~(size <= 10 * jnp.finfo(zero.dtype).eps * jnp.abs(alpha))  # NaN lives on, and is seen
        size = jnp.where(alive, size, 0)
        put = lambda array, value: array.at[k].set(value, mode="drop")  # the last block may go beyond the last row
        tridiagonal = put(alphas, alpha), put(betas, size), put(inside, jnp.any(now != 0))
        return (now, jnp.where(alive, rest / nonzero(size), 0), size), tridiagonal

    def ritz(alphas, betas, inside):
        # On the Krylov space the operator is tridiagonal; its largest Ritz value is at most the largest eigenvalue.
        # Rows that are not there would be 0, which may be above all eigenvalues; the first alpha, a mean, is not.
        off = jnp.where(inside[1:], betas[:-1], 0)
        matrix = jnp.diag(jnp.where(inside, alphas, alphas[0])) + jnp.diag(off, 1) + jnp.diag(off, -1)
        return jnp.linalg.eigvalsh(matrix)[-1]

    def block(carry):
        k, vectors, tridiagonal, last, _ = carry
        vectors, tridiagonal = jax.lax.fori_loop(0, BLOCK, lambda i, inner: step(k + i, inner), (vectors, tridiagonal))
        value = ritz(*tridiagonal)
        close = jnp.abs(value - last) <= tolerance * jnp.abs(value)
        return k + BLOCK, vectors, tridiagonal, value, close | (k + BLOCK >= rows) | ~jnp.isfinite(value)

    one = jnp.zeros((), zero.dtype)
    vectors = zero, start / jnp.linalg.norm(start), one
    tridiagonal = jnp.zeros(rows, zero.dtype), jnp.zeros(rows, zero.dtype), jnp.zeros(rows, bool)
    first = jnp.zeros((), int), vectors, tridiagonal, one - jnp.inf, jnp.zeros((), bool)
    return jax.lax.while_loop(lambda carry: ~carry[-1], block, first)[3]
