"""The largest eigenpairs of a Hessian that changes little from one call to the next."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._numerics import nonzero


Product = Callable[[Float[Array, " params"]], Float[Array, " params"]]
BLOCK = 4  # vectors multiplied at once
_GUARD = 2  # vectors besides those wanted, which speed up the convergence of the last ones
_ROUNDS = 100
_TINY = 1e-7  # squared sine below which directions count as the same


class Pairs(NamedTuple):
    """Eigenpairs of D H D, D diagonal.

    Attributes:
        values: descending. Only the first `followed` are eigenvalues; the others are not yet in use.
        vectors: orthonormal, as columns.
        images: H D times the vectors.
        followed: number of vectors in use, a multiple of `BLOCK`.
        products: number of Hessian-vector products so far.
        scout: a direction outside the vectors, converging to the largest eigenvalue there: see `follow`.
    """

    values: Float[Array, " m"]
    vectors: Float[Array, "params m"]
    images: Float[Array, "params m"]
    followed: Int[Array, ""]
    products: Int[Array, ""]
    scout: Float[Array, " params"]


def first_pairs(size: int, wanted: int, dtype: jnp.dtype) -> Pairs:
    """Fixed initial vectors for up to `wanted` eigenpairs."""
    m = min(-(-(wanted + _GUARD) // BLOCK) * BLOCK, size)
    drawn = jax.random.normal(jax.random.key(0), (size, m), dtype)
    zeros = jnp.zeros((m,), dtype)
    followed, none = jnp.asarray(min(BLOCK, m)), jnp.zeros((), int)
    return Pairs(zeros, jnp.linalg.qr(drawn)[0], jnp.zeros_like(drawn), followed, none, jnp.ones((size,), dtype))


class _LobpcgRound(NamedTuple):
    """Values; vectors with images, and their last changes; directions to add; whether the vectors have converged."""

    values: Array
    pair: Array
    last: Array
    new: Array
    fine: Array
    rounds: Array


def follow(hessian: Product, d: Float[Array, " params"], pairs: Pairs, above: float, tol: float) -> Pairs:
    """The eigenpairs of the current Hessian, by LOBPCG (Knyazev 2001) from the previous ones.

    It stops when the residuals of all eigenvalues that may be above `above`, and of the largest, are below tol. Only
    vectors in use are multiplied; more are used as eigenvalues approach `above`.

    Exact vectors never leave their span, so an eigenvalue outside it could rise unnoticed. One product per call
    therefore goes to the scout, a power iteration in the complement, which enters the span of the next call.
    """
    m, dtype = pairs.values.shape[0], d.dtype
    block = min(BLOCK, m)

    def multiply(columns: Array, count: Array) -> Array:
        def some(index: Array, out: Array) -> Array:
            start = jnp.minimum(index * block, m - block)
            part = jax.lax.dynamic_slice_in_dim(columns, start, block, axis=1)
            image = jax.vmap(hessian, in_axes=1, out_axes=1)(d[:, None] * part)
            return jax.lax.dynamic_update_slice_in_dim(out, image, start, axis=1)

        return jax.lax.fori_loop(0, -(-count // block), some, jnp.zeros_like(columns))

    def rotate(basis: Array, images: Array) -> tuple[Array, Array, Array]:
        """The Ritz vectors in the span of a basis, with images, and their part beyond its first m columns."""
        norms = jnp.linalg.norm(basis, axis=0)
        unit = jnp.where(norms > 0, 1 / nonzero(norms), 0)
        basis, images = basis * unit[None, :], images * unit[None, :]
        # Rayleigh-Ritz in a basis that is not orthonormal: its Gram matrix whitens it, without dependent directions.
        gram, small = basis.T @ basis, (d[:, None] * basis).T @ images
        share, turn = jnp.linalg.eigh(gram)
        fine = share > _TINY
        whiten = turn * jnp.where(fine, 1 / jnp.sqrt(jnp.where(fine, share, 1)), 0)[None, :]
        inner = whiten.T @ ((small + small.T) / 2) @ whiten
        # Low enough that a dropped direction is not among the largest.
        low = -2 * jnp.max(jnp.abs(inner)) - 1
        values, chosen = jnp.linalg.eigh(inner + jnp.diag(jnp.where(fine, 0, low)))
        # Vectors not in use stay unchanged; those in use come first.
        mix, values = (whiten @ chosen)[:, ::-1][:, :m] * on[None, :], values[::-1][:m] * on
        # LOBPCG's third block: the contribution of the added directions. As a difference of old and new vectors it
        # would cancel.
        moved = mix.at[:m].set(0)
        return values, jnp.stack([basis @ mix, images @ mix]), jnp.stack([basis @ moved, images @ moved])

    def advance(carry: _LobpcgRound) -> _LobpcgRound:
        """Adds directions `new` to the span. In the first round these are the previous vectors."""
        begun = carry.pair[0]
        new = carry.new * on[None, :]
        # Twice, because one pass leaves mostly rounding of directions that nearly lie in the span.
        for _ in range(2):
            new = new - begun @ (begun.T @ new)
            new = new / nonzero(jnp.linalg.norm(new, axis=0))[None, :]
        image = multiply(new, count)
        basis, images = (
            jnp.concatenate(parts, axis=1) for parts in zip(carry.pair, (new, image), carry.last, strict=True)
        )
        values, pair, last = rotate(basis, images)
        # D H D v - lambda v: images hold H D v, from the same products.
        missed = d[:, None] * pair[1] - pair[0] * values[None, :]
        # The Hessian maps a random vector of many parameters to almost 0, so the largest value must be good to a tenth.
        first, residual = jnp.arange(m) == 0, jnp.linalg.norm(missed, axis=0)
        enough = jnp.where(first, jnp.minimum(tol, 0.1 * jnp.max(jnp.abs(values))), tol)
        # An eigenvalue lies within the residual of each value.
        fine = jnp.all(jnp.where((values + residual > above) | first, residual, 0) <= enough)
        # In the first round the vectors themselves are new, so there is no last change.
        last = jnp.where(carry.rounds > 0, last, 0)
        return _LobpcgRound(values, pair, last, missed, fine, carry.rounds + 1)

    near = jnp.sum((pairs.values > above) & (jnp.arange(m) < pairs.followed)) + _GUARD
    # In whole blocks, which are multiplied together, and never fewer than before.
    count = jnp.clip(-(-near // block) * block, pairs.followed, m)
    on = (jnp.arange(m) < count).astype(dtype)
    none = jnp.zeros((2, *pairs.vectors.shape), dtype)
    scout = pairs.scout - pairs.vectors @ (pairs.vectors.T @ pairs.scout)
    # The scout takes the place of the last change, which the first round lacks, and so enters the span.
    seen = jnp.stack([scout, hessian(d * scout)])
    begin = _LobpcgRound(
        pairs.values, none, none.at[:, :, 0].set(seen), pairs.vectors, jnp.array(False), jnp.zeros((), int)
    )
    found = jax.lax.while_loop(lambda carry: ~carry.fine & (carry.rounds < _ROUNDS), advance, begin)
    vectors, images = found.pair
    # Vectors not in use are kept, minus their part along the vectors in use.
    rest = pairs.vectors * (1 - on)[None, :]
    rest = rest - vectors @ (vectors.T @ rest)
    rest = rest / nonzero(jnp.linalg.norm(rest, axis=0))[None, :]
    # The scout loses its part along the vectors; a random direction lets it start again.
    unit = lambda v: v / nonzero(jnp.linalg.norm(v))
    drawn = jax.random.normal(jax.random.fold_in(jax.random.key(1), pairs.products), d.shape, dtype)
    left = d * seen[1]
    scout = unit(unit(left - vectors @ (vectors.T @ left)) + 0.03 * unit(drawn))
    made = pairs.products + found.rounds * count + 1
    return Pairs(found.values, vectors * on[None, :] + rest, images * on[None, :], count, made, scout)
