"""The largest eigenvalue of an operator from its products with vectors, in a program that compiles fast."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._numerics import nonzero, norm, scaled, unit
from .._programs import channels_last


# Products between two convergence checks, and the maximum. For kernels and Hessians of nine networks, a check every 4
# products gave the same digits as one every 10, with 8 to 20 products instead of 20 to 30.
BLOCK, MOST = 4, 200
# Each round of bisection gains this many bits of the eigenvalue.
PLACES_BITS = 6


def largest_eigenvalue(product: Callable[[PyTree], PyTree], like: PyTree, most: int = MOST) -> Float[Array, ""]:
    """The algebraically largest eigenvalue of a symmetric operator, from below, by Lanczos; no reverse mode.

    It stops once four more products change the value by less than a share eps^(3/4), or after `most` products. NaN if
    the products are NaN. `js.kernels.top_eigenpairs` also gives eigenvectors and derivatives, but needs four times as
    many products and takes three times as long to compile.

    Arguments:
        product: the operator.
        like: a pytree with the shapes that it acts on.
        most: the maximum number of products.
    """
    product = channels_last(product)
    zero, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, like))
    start = jax.random.normal(jax.random.key(0), zero.shape, zero.dtype)  # fixed, so that results are repeatable
    rows, length = min(most, zero.size), min(most, BLOCK)
    tolerance = float(jnp.finfo(zero.dtype).eps) ** 0.75

    # Three-term recurrence: A q_k = beta_(k-1) q_(k-1) + alpha_k q_k + beta_k q_(k+1), with orthonormal q.
    def step(k, carry):
        (before, now, beta), (alphas, betas, inside) = carry
        moved = ravel_pytree(product(unravel(now)))[0] - beta * before
        alpha = jnp.sum(now * moved)
        rest = moved - alpha * now
        size = norm(rest)
        # In an exhausted Krylov space only rounding is left, which must not start a copy of the spectrum.
        alive = ~(size <= 10 * jnp.finfo(zero.dtype).eps * jnp.abs(alpha))  # NaN stays alive, to be seen
        size = jnp.where(alive, size, 0)
        put = lambda array, value: array.at[k].set(value, mode="drop")  # the last block may go beyond the last row
        tridiagonal = put(alphas, alpha), put(betas, size), put(inside, jnp.any(now != 0))
        return (now, jnp.where(alive, rest / nonzero(size), 0), size), tridiagonal

    def ritz(alphas, betas, inside):
        # On the Krylov space the operator is tridiagonal; its largest Ritz value is at most the largest eigenvalue.
        # Unused rows would be 0, which may exceed all eigenvalues; the first alpha, a Rayleigh quotient, cannot.
        off = jnp.where(inside[1:], betas[:-1], 0)
        return _largest_of_tridiagonal(jnp.where(inside, alphas, alphas[0]), off)

    def block(carry):
        k, vectors, tridiagonal, last, _ = carry
        one_more = lambda i, inner: step(k + i, inner)
        vectors, tridiagonal = jax.lax.fori_loop(0, jnp.minimum(length, rows - k), one_more, (vectors, tridiagonal))
        value = ritz(*tridiagonal)
        close = jnp.abs(value - last) <= tolerance * jnp.abs(value)
        k = k + length
        return k, vectors, tridiagonal, value, close | (k >= rows) | ~jnp.isfinite(value)

    one = jnp.zeros((), zero.dtype)
    vectors = zero, unit(start), one
    tridiagonal = jnp.zeros(rows, zero.dtype), jnp.zeros(rows, zero.dtype), jnp.zeros(rows, bool)
    first = jnp.zeros((), int), vectors, tridiagonal, one - jnp.inf, jnp.zeros((), bool)
    return jax.lax.while_loop(lambda carry: ~carry[-1], block, first)[3]


def _largest_of_tridiagonal(diagonal: Float[Array, " rows"], off: Float[Array, " less"]) -> Float[Array, ""]:
    """The largest eigenvalue of a symmetric tridiagonal matrix, by bisection with Sturm sequences.

    LAPACK's `eigvalsh` of the full matrix took longer than the products with the operator.
    """
    # Scaled, because its entries are squared.
    both, size = scaled(jnp.concatenate([diagonal, off]))
    diagonal, off = jnp.split(both, [diagonal.size])
    sides = jnp.pad(jnp.abs(off), 1)
    low, high = jnp.max(diagonal), jnp.max(diagonal + sides[:-1] + sides[1:])  # it lies between (Gershgorin)
    rows = diagonal, jnp.pad(off, (1, 0)) ** 2
    digits = jnp.finfo(diagonal.dtype).nmant // PLACES_BITS + 1

    def narrow(_, ends):
        low, high = ends
        shifts = jnp.linspace(low, high, 2**PLACES_BITS + 1)

        def pivot(last, row):
            entry, squared = row
            # A pivot of 0 counts as a tiny negative one, which makes the next one as large as possible.
            pivot = entry - shifts - jnp.where(squared == 0, 0, squared / jnp.where(last == 0, -tiny, last))
            return pivot, pivot <= 0

        # A shift is above all eigenvalues if and only if all pivots are negative.
        above = jnp.all(jax.lax.scan(pivot, jnp.ones_like(shifts), rows)[1], axis=0)
        place = jnp.clip(jnp.argmax(above), 1, shifts.size - 1)
        return shifts[place - 1], shifts[place]

    tiny = jnp.finfo(diagonal.dtype).tiny
    low, high = jax.lax.fori_loop(0, digits, narrow, (low, high))
    return size * high
