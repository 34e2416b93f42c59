"""The complementarity problem that says how much a descent oscillates, and along what."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._safe import nonzero


_ROUNDS = 120  # at most; from the solution of the step before, a few will do
_BOLD = 4  # rounds before the smooth path is taken, if Newton's method does not at least halve what is missed
_LESS = 0.1  # of mu, from one round of the path to the next
_SHARES = (1.0, 0.5, 0.1)  # of Newton's step that are tried
_RIDGE = 1e-10  # third derivatives that depend on each other leave no unique answer


class Cone(NamedTuple):
    """Symmetric k x k matrices as vectors whose inner product is the trace of products.

    Attributes:
        rows, columns: of the entries, by column: the first j (j + 1)/2 of them are those of the leading j x j block.
        weights: 1 on the diagonal, sqrt(2) off it.
    """

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray

    @staticmethod
    def of(k: int) -> "Cone":
        """For k x k matrices."""
        columns, rows = np.tril_indices(k)
        return Cone(rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0)))

    @property
    def k(self) -> int:
        """The size of the matrices."""
        return int(self.columns[-1]) + 1

    def vector(self, matrix: Float[Array, "k k"]) -> Float[Array, " pairs"]:
        """A matrix as a vector."""
        return matrix[self.rows, self.columns] * self.weights.astype(matrix.dtype)

    def matrix(self, vector: Float[Array, " pairs"]) -> Float[Array, "k k"]:
        """A vector as a matrix."""
        entries = vector / self.weights.astype(vector.dtype)
        half = jnp.zeros((self.k, self.k), vector.dtype).at[self.rows, self.columns].set(entries)
        return half + half.T - jnp.diag(jnp.diag(half))


class Held(NamedTuple):
    """A solution.

    Attributes:
        x: the matrix, as a vector.
        residual: of the complementarity, in units of the size of a.
    """

    x: Float[Array, " pairs"]
    residual: Float[Array, ""]


class _Round(NamedTuple):
    """Z and where it moves next; what the smoothed root misses, and mu; the projection X and what it misses."""

    z: Array
    move: Array
    error: Array
    mu: Array
    x: Array
    missed: Array
    fine: Array
    rounds: Array


def complement(
    cone: Cone, a: Float[Array, " pairs"], b: Float[Array, "pairs pairs"], start: Float[Array, " pairs"]
) -> Held:
    """X >= 0, A + B[X] >= 0, <X, A + B[X]> = 0 for symmetric matrices: the minimum of <X, B X>/2 + <A, X> over X >= 0.

    With P the projection onto X >= 0 it is X = P(Z) at the root of A + B[P(Z)] + Z - P(Z). From a good guess, and for
    k = 1 (where X = max(0, -A/B)) from any, Newton's method for semismooth equations finds it in a few rounds. Where it
    does not, z + sqrt(z^2 + 4 mu), halved, takes the place of max(z, 0) for the eigenvalues z: then X (A + B[X]) = mu,
    and the root is followed from a large mu to 0. All of it is done for D^-1 X D^-1 and D A D, with the diagonal D that
    makes B_ii,ii = 1.

    Arguments:
        a: A, as a vector of the cone.
        b: B, symmetric and positive semidefinite.
        start: a guess of X.

    Source: Qi & Sun 1993, Math. Programming 58, 353-367 (Newton); Chen & Tseng 2003, Math. Programming 95, 431-474 (the
    smoothing).
    """
    dtype, count = a.dtype, a.shape[0]
    diagonal = np.flatnonzero(cone.rows == cone.columns)
    d = nonzero(jnp.maximum(b[diagonal, diagonal], 0)) ** -0.25
    scale = d[cone.rows] * d[cone.columns]
    a, b, start = scale * a, scale[:, None] * b * scale[None, :], start / scale
    size, basis, zero = nonzero(jnp.max(jnp.abs(a))), jnp.eye(count, dtype=dtype), jnp.zeros((), dtype)
    good = 100 * float(jnp.finfo(dtype).eps)

    def smooth(z: Array, values: Array, vectors: Array, mu: Array) -> tuple[Array, Array]:
        """X, and what is missed."""
        root = jnp.sqrt(values**2 + 4 * mu)
        # Without cancellation where z < 0.
        kept = jnp.where(values > 0, (values + root) / 2, 2 * mu / nonzero(root - values))
        x = cone.vector((vectors * kept[None, :]) @ vectors.T)
        return x, a + b @ x + z - x

    def look(z: Array, mu: Array) -> tuple[Array, Array, Array, Array]:
        values, vectors = jnp.linalg.eigh(cone.matrix(z))
        return z, values, vectors, jnp.linalg.norm(smooth(z, values, vectors, mu)[1])

    def newton(values: Array, vectors: Array, missed: Array, mu: Array) -> Array:
        root = jnp.sqrt(values**2 + 4 * mu)
        # (p_i - p_j)/(z_i - z_j) of p = (z + root)/2; at mu = 0 and z = 0 it is 0.
        sums = root[:, None] + root[None, :]
        slope = jnp.where(sums > 0, (1 + (values[:, None] + values[None, :]) / nonzero(sums)) / 2, 0)
        turn = lambda e: cone.vector(vectors @ (slope * (vectors.T @ cone.matrix(e) @ vectors)) @ vectors.T)
        projection = jax.vmap(turn)(basis).T
        # Third derivatives that depend on each other leave no unique answer: the ridge takes a small one.
        move = -jnp.linalg.solve(b @ projection + (1 + _RIDGE) * basis - projection, missed)
        return jnp.where(jnp.all(jnp.isfinite(move)), move, 0)

    def advance(seen: _Round) -> _Round:
        tries = jax.vmap(lambda share: look(seen.z + share * seen.move, seen.mu))(jnp.asarray(_SHARES, dtype))
        z, values, vectors, error = (leaf[jnp.argmin(tries[3])] for leaf in tries)
        begins = (seen.mu == 0) & (seen.rounds >= _BOLD) & (error > 0.5 * seen.error)
        largest = jnp.max(jnp.abs(values)) ** 2
        # The last step is to 0, from where Newton's method converges.
        less = jnp.where(seen.mu > good * largest, _LESS * seen.mu, 0)
        mu = jnp.where(begins, largest, jnp.where(error < jnp.sqrt(seen.mu), less, seen.mu))
        missed = smooth(z, values, vectors, mu)[1]
        x, left = smooth(z, values, vectors, zero)
        move, error = newton(values, vectors, missed, mu), jnp.linalg.norm(missed)
        fine = ~(jnp.linalg.norm(left) > good * (size + jnp.max(jnp.abs(b) @ jnp.abs(x))))  # of what cancels
        return _Round(z, move, error, mu, x, jnp.linalg.norm(left / scale), fine, seen.rounds + 1)

    def unsolved(seen: _Round) -> Bool[Array, ""]:
        return ((seen.mu > 0) | ~seen.fine) & (seen.rounds < _ROUNDS)

    z, far = start - (a + b @ start), zero + jnp.inf
    begin = _Round(z, jnp.zeros_like(z), far, zero, z, far, jnp.array(False), jnp.zeros((), int))
    found = jax.lax.while_loop(unsolved, advance, begin)
    return Held(scale * found.x, found.missed / nonzero(jnp.max(jnp.abs(a / scale))))
