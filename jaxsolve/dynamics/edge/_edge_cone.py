"""The complementarity problem that says how much a descent oscillates, and along what."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import nonzero


_NEWTON = 10  # rounds at most; from the solution of the step before, two or three will do
_INTERIOR = 60  # rounds at most; 20 to 40 will do
_LESS = 0.1  # of the gap <X, S>, that a round of the interior path leaves
_BOUNDARY = 0.95  # of the way to the boundary of the cone, that a round goes
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
        # Rows of the lower triangle are columns of the upper one, of which leading blocks come first.
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


class ConeSolution(NamedTuple):
    """A solution.

    Attributes:
        x: the matrix, as a vector.
        residual: of the complementarity, in units of the size of a, where B has a diagonal of 1.
    """

    x: Float[Array, " pairs"]
    residual: Float[Array, ""]


class _ConeRound(NamedTuple):
    """A round of a method: where it is (two vectors), the best X so far, what that misses, and whether it is little."""

    at: tuple[Array, Array]
    x: Array
    missed: Array
    fine: Array
    rounds: Array


def complement(
    cone: Cone, a: Float[Array, " pairs"], b: Float[Array, "pairs pairs"], start: Float[Array, " pairs"]
) -> ConeSolution:
    """X >= 0, A + B[X] >= 0, <X, A + B[X]> = 0 for symmetric matrices: the minimum of <X, B X>/2 + <A, X> over X >= 0.

    With P the projection onto X >= 0 it is X = P(Z) at the root of A + B[P(Z)] + Z - P(Z). From a good guess, and for
    k = 1 (where X = max(0, -A/B)) from any, Newton's method for semismooth equations finds it in a few rounds. Where it
    does not, it is found from the inside of the cone, where X and S = A + B[X] are positive and <X, S> falls to 0 by a
    factor a round, whatever the condition of B. All of it is done for D^-1 X D^-1 and D A D, with the diagonal D that
    makes B_ii,ii = 1.

    Arguments:
        a: A, as a vector of the cone.
        b: B, symmetric and positive semidefinite.
        start: a guess of X.

    Source: Qi & Sun 1993, Math. Programming 58, 353-367 (Newton); Nesterov & Todd 1998, SIAM J. Optim. 8, 324-364 (the
    scaling by which X and S are the same matrix inside the cone).
    """
    dtype, count = a.dtype, a.shape[0]
    diagonal = np.flatnonzero(cone.rows == cone.columns)
    # d_i^4 B_ii,ii = 1, as both indices of both sides of B are scaled.
    d = nonzero(jnp.maximum(b[diagonal, diagonal], 0)) ** -0.25
    scale = d[cone.rows] * d[cone.columns]
    a, b, start = scale * a, scale[:, None] * b * scale[None, :], start / scale
    basis = jnp.eye(count, dtype=dtype)
    good = 100 * float(jnp.finfo(dtype).eps)
    # The size of what cancels in A + B[X]: its rounding is all that can be asked for.
    cancels = lambda x: jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b) @ jnp.abs(x))

    def note(now: _ConeRound, at: tuple[Array, Array], x: Array, missed: Array) -> _ConeRound:
        better = missed < now.missed
        x, missed = jnp.where(better, x, now.x), jnp.where(better, missed, now.missed)
        return _ConeRound(at, x, missed, missed <= good * cancels(x), now.rounds + 1)

    def newton(now: _ConeRound) -> _ConeRound:
        """A round with Z, and the step to it."""
        z = now.at[0] + now.at[1]
        values, vectors = jnp.linalg.eigh(cone.matrix(z))
        # Moreau's decomposition Z = X - S: X and S = X - Z are >= 0 and orthogonal whatever Z is. Only S = A + B[X] is
        # left to be solved.
        kept = jnp.maximum(values, 0)
        x = cone.vector((vectors * kept[None, :]) @ vectors.T)
        left = a + b @ x + z - x
        # Divided differences are the derivative of a function of a matrix (Daleckii & Krein).
        # (p_i - p_j)/(z_i - z_j) of p = max(z, 0); at z = 0 it is 0.
        # As (p_i + p_j)/(|z_i| + |z_j|), in which nothing cancels.
        sums = jnp.abs(values)[:, None] + jnp.abs(values)[None, :]
        slope = jnp.where(sums > 0, (kept[:, None] + kept[None, :]) / nonzero(sums), 0)
        turn = lambda e: cone.vector(vectors @ (slope * (vectors.T @ cone.matrix(e) @ vectors)) @ vectors.T)
        projection = jax.vmap(turn)(basis).T
        move = -jnp.linalg.solve(b @ projection + (1 + _RIDGE) * basis - projection, left)
        # Where the matrix is singular all the same Z stays where it is, and the interior path takes over.
        return note(now, (z, jnp.where(jnp.all(jnp.isfinite(move)), move, 0)), x, jnp.linalg.norm(left))

    def inward(now: _ConeRound) -> _ConeRound:
        """A round with X and S."""
        x, s = now.at
        # With X = L L^T, S = M M^T and M^T L = U D V^T it is G = L V D^(-1/2) (Nesterov & Todd).
        lower_x, lower_s = jnp.linalg.cholesky(cone.matrix(x)), jnp.linalg.cholesky(cone.matrix(s))
        _, same, turn = jnp.linalg.svd(lower_s.T @ lower_x)
        # G^-1 X G^-T = G^T S G = diag(same).
        g = lower_x @ (turn.T / jnp.sqrt(same)[None, :])
        scaled = jax.vmap(lambda e: cone.vector(g @ cone.matrix(e) @ g.T))(basis)
        off, root = a + b @ x - s, jnp.sqrt(same)
        # B >= 0, so that this is positive definite.
        system = jax.scipy.linalg.cho_factor(scaled @ b @ scaled.T + basis)

        def direction(wanted: Array) -> tuple[Array, Array, Array, Array]:
            """The way of X and S, with dX + dS = wanted where both are scaled; how these change, and for how long."""
            dx = jax.scipy.linalg.cho_solve(system, cone.vector(wanted) - scaled @ off)
            way = dx @ scaled
            dual = b @ way + off
            turned = jax.vmap(cone.matrix)(jnp.stack([dx, scaled @ dual]))
            # D + t dX stays positive up to t = -1/(smallest eigenvalue of D^(-1/2) dX D^(-1/2)), and S likewise.
            lowest = jnp.min(jnp.linalg.eigvalsh(turned / (root[:, None] * root[None, :])[None]))
            return way, dual, turned, jnp.minimum(1, -_BOUNDARY / jnp.minimum(lowest, -_BOUNDARY))

        # Straight to the boundary first: how far that leads says how much to aim for, and how the way bends.
        _, _, straight, share = direction(-jnp.diag(same))
        less = jnp.maximum((1 - share) ** 2, _LESS)
        # The product of both directions, which the first order leaves out (Mehrotra's corrector).
        # mean(same^2) is <X, S>/k.
        bend = straight[0] @ straight[1]
        bend = (bend + bend.T) / (same[:, None] + same[None, :])
        dx, ds, _, share = direction(jnp.diag(less * jnp.mean(same**2) / same - same) - bend)
        x, s = x + share * dx, s + share * ds
        # What both conditions still miss, in units of S.
        return note(now, (x, s), x, jnp.linalg.norm(a + b @ x - s) + jnp.abs(x @ s) / jnp.linalg.norm(x))

    def run(way: Any, now: _ConeRound, most: int) -> _ConeRound:
        rounds = jnp.zeros((), int)
        return jax.lax.while_loop(lambda now: ~now.fine & (now.rounds < most), way, now._replace(rounds=rounds))

    # Z = X - S of the guess.
    begin = start - (a + b @ start), jnp.zeros_like(a)
    found = run(newton, _ConeRound(begin, start, jnp.full((), jnp.inf, dtype), jnp.array(False), jnp.array(0)), _NEWTON)
    size = nonzero(jnp.max(jnp.abs(a)))
    middle = cone.vector(size * jnp.eye(cone.k, dtype=dtype))
    # No round is made where Newton's method has come to an end that is fine.
    found = run(inward, found._replace(at=(middle, middle)), _INTERIOR)
    return ConeSolution(scale * found.x, found.missed / size)
