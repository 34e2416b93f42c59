"""The largest eigenpairs of a Hessian that changes little from one look to the next."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._numerics import nonzero


Product = Callable[[Float[Array, " params"]], Float[Array, " params"]]
BLOCK = 4  # vectors multiplied at once
_GUARD = 2  # vectors besides those wanted: they speed up the last of these
_ROUNDS = 100
_TINY = 1e-7  # squared sines below which directions count as one


class Pairs(NamedTuple):
    """Eigenpairs of D H D, D diagonal.

    Attributes:
        values: descending. Only the first `followed` are eigenvalues; others wait to be wanted.
        vectors: orthonormal, as columns.
        images: H D times the vectors.
        followed: how many there are, a multiple of `BLOCK`.
        products: how many have been made of H with a vector, so far.
        scout: a direction outside of the vectors, on its way to the largest eigenvalue there: see `follow`.
    """

    values: Float[Array, " m"]
    vectors: Float[Array, "params m"]
    images: Float[Array, "params m"]
    followed: Int[Array, ""]
    products: Int[Array, ""]
    scout: Float[Array, " params"]


def first_pairs(size: int, wanted: int, dtype: jnp.dtype) -> Pairs:
    """Fixed vectors to start from, for up to `wanted` eigenpairs and the next one."""
    m = min(-(-(wanted + _GUARD) // BLOCK) * BLOCK, size)
    drawn = jax.random.normal(jax.random.key(0), (size, m), dtype)
    zeros = jnp.zeros((m,), dtype)
    followed, none = jnp.asarray(min(BLOCK, m)), jnp.zeros((), int)
    return Pairs(zeros, jnp.linalg.qr(drawn)[0], jnp.zeros_like(drawn), followed, none, jnp.ones((size,), dtype))


class _LobpcgRound(NamedTuple):
    """Values; vectors and their images, and what the last round added to them; what to add; whether they are fine."""

    values: Array
    pair: Array
    last: Array
    new: Array
    fine: Array
    rounds: Array


def follow(hessian: Product, d: Float[Array, " params"], pairs: Pairs, above: float, tol: float) -> Pairs:
    """The eigenpairs where the Hessian is now, by LOBPCG (Knyazev 2001) from where they were.

    It stops when all residuals of eigenvalues that may be above `above`, and that of the largest, are below tol.
    Products are made only of vectors in use, of which there are more as soon as eigenvalues come near.

    Where the vectors are exact, nothing leads out of their span, and an eigenvalue could rise outside of it unseen. So
    one product a look is the scout's, who goes by power iteration in what is left, and joins them where it is larger.
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
        """The best vectors in the span of a basis, with images, and their combination without its first m."""
        norms = jnp.linalg.norm(basis, axis=0)
        unit = jnp.where(norms > 0, 1 / nonzero(norms), 0)
        basis, images = basis * unit[None, :], images * unit[None, :]
        # Rayleigh-Ritz in a basis that is not orthonormal: its Gram matrix whitens it, less what depends on the rest.
        gram, small = basis.T @ basis, (d[:, None] * basis).T @ images
        share, turn = jnp.linalg.eigh(gram)
        fine = share > _TINY
        whiten = turn * jnp.where(fine, 1 / jnp.sqrt(jnp.where(fine, share, 1)), 0)[None, :]
        inner = whiten.T @ ((small + small.T) / 2) @ whiten
        # So low that what is dropped is not taken for one of the largest.
        low = -2 * jnp.max(jnp.abs(inner)) - 1
        values, chosen = jnp.linalg.eigh(inner + jnp.diag(jnp.where(fine, 0, low)))
        # Those not in use stay as they are: the followed ones take the first places.
        mix, values = (whiten @ chosen)[:, ::-1][:, :m] * on[None, :], values[::-1][:m] * on
        # LOBPCG's third block: the share of the new vectors in what was added. As a difference of old and new vectors
        # it would cancel.
        moved = mix.at[:m].set(0)
        return values, jnp.stack([basis @ mix, images @ mix]), jnp.stack([basis @ moved, images @ moved])

    def advance(carry: _LobpcgRound) -> _LobpcgRound:
        """Adds directions `new` to the span. In the first round, which has no other, they are the vectors of before."""
        begun = carry.pair[0]
        new = carry.new * on[None, :]
        # Twice: of what nearly lies in the span once leaves mostly rounding.
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
        # To every random vector of many parameters the Hessian does little: of the largest, a tenth is to be known.
        first, residual = jnp.arange(m) == 0, jnp.linalg.norm(missed, axis=0)
        enough = jnp.where(first, jnp.minimum(tol, 0.1 * jnp.max(jnp.abs(values))), tol)
        # There is an eigenvalue as near as the residual.
        fine = jnp.all(jnp.where((values + residual > above) | first, residual, 0) <= enough)
        # In the first round the vectors themselves were new: there is no last change yet.
        last = jnp.where(carry.rounds > 0, last, 0)
        return _LobpcgRound(values, pair, last, missed, fine, carry.rounds + 1)

    near = jnp.sum((pairs.values > above) & (jnp.arange(m) < pairs.followed)) + _GUARD
    # In whole blocks, which are multiplied at once, and never fewer than before.
    count = jnp.clip(-(-near // block) * block, pairs.followed, m)
    on = (jnp.arange(m) < count).astype(dtype)
    none = jnp.zeros((2, *pairs.vectors.shape), dtype)
    scout = pairs.scout - pairs.vectors @ (pairs.vectors.T @ pairs.scout)
    # In the place of the last change, which the first round does not have: so the scout is in its span.
    seen = jnp.stack([scout, hessian(d * scout)])
    begin = _LobpcgRound(
        pairs.values, none, none.at[:, :, 0].set(seen), pairs.vectors, jnp.array(False), jnp.zeros((), int)
    )
    found = jax.lax.while_loop(lambda carry: ~carry.fine & (carry.rounds < _ROUNDS), advance, begin)
    vectors, images = found.pair
    # Vectors not in use are kept as they were, less what the others have taken of them.
    rest = pairs.vectors * (1 - on)[None, :]
    rest = rest - vectors @ (vectors.T @ rest)
    rest = rest / nonzero(jnp.linalg.norm(rest, axis=0))[None, :]
    # What the vectors have taken of the scout is lost to it: it begins again with what is drawn.
    unit = lambda v: v / nonzero(jnp.linalg.norm(v))
    drawn = jax.random.normal(jax.random.fold_in(jax.random.key(1), pairs.products), d.shape, dtype)
    left = d * seen[1]
    scout = unit(unit(left - vectors @ (vectors.T @ left)) + 0.03 * unit(drawn))
    made = pairs.products + found.rounds * count + 1
    return Pairs(found.values, vectors * on[None, :] + rest, images * on[None, :], count, made, scout)
