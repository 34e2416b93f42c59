"""The largest eigenvalue of an operator known by products, in a program that compiles fast."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._numerics import nonzero


STEPS = 20


def largest_eigenvalue(product: Callable[[PyTree], PyTree], like: PyTree) -> Float[Array, ""]:
    """The algebraically largest eigenvalue of a symmetric operator, from below, by 20 steps of Lanczos.

    To some 1e-3 where the top of the spectrum stands out, as it does for kernels and Hessians of networks. It replaces
    `js.kernels.top_eigenpairs`, which is exact, because that takes three times as long to compile.

    Arguments:
        product: the operator.
        like: a pytree of the shapes that it acts on.
    """
    zero, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, like))
    start = jax.random.normal(jax.random.key(0), zero.shape, zero.dtype)  # fixed, so that results repeat
    steps = min(STEPS, zero.size)

    # Three-term recurrence: A q_k = beta_(k-1) q_(k-1) + alpha_k q_k + beta_k q_(k+1), with orthonormal q.
    def step(carry, _):
        before, now, beta = carry
        moved = ravel_pytree(product(unravel(now)))[0] - beta * before
        alpha = jnp.sum(now * moved)
        rest = moved - alpha * now
        size = jnp.linalg.norm(rest)
        # An exhausted space has rounding left over: it must not start a copy of the spectrum.
        alive = size > 10 * jnp.finfo(zero.dtype).eps * jnp.abs(alpha)
        size = jnp.where(alive, size, 0)
        return (now, jnp.where(alive, rest / nonzero(size), 0), size), (alpha, size, jnp.any(now != 0))

    first = (zero, start / jnp.linalg.norm(start), jnp.zeros((), zero.dtype))
    _, (alpha, beta, inside) = jax.lax.scan(step, first, None, length=steps)
    # Where the space was exhausted, the rows that are left are 0, which may be above all eigenvalues. The first alpha,
    # a mean of them, is not.
    alpha = jnp.where(inside, alpha, alpha[0])
    # On the Krylov space the operator is tridiagonal; its largest Ritz value is at most the largest eigenvalue.
    matrix = jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
    return jnp.linalg.eigvalsh(matrix)[-1]
