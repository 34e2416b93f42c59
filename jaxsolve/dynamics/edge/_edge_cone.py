"""The complementarity problem that determines the size and direction of the oscillation of descent."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import nonzero


_NEWTON = 10  # maximum rounds; from the solution of the last step, two or three suffice
_INTERIOR = 60  # maximum rounds; 20 to 40 suffice
_LESS = 0.1  # least fraction of the gap <X, S> that an interior-point round aims to leave
_BOUNDARY = 0.95  # fraction of the distance to the boundary of the cone covered by a round
_RIDGE = 1e-10  # linearly dependent third derivatives have no unique solution


class Cone(NamedTuple):
    """Symmetric k x k matrices as vectors whose inner product is the trace of products.

    Attributes:
        rows, columns: indices of the entries, by column: the first j (j + 1)/2 form the leading j x j block.
        weights: 1 on the diagonal, sqrt(2) off it.
    """

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray

    @staticmethod
    def of(k: int) -> "Cone":
        """The cone of k x k matrices."""
        # Rows of the lower triangle are columns of the upper one, which lists leading blocks first.
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
    """A solution of the complementarity problem.

    Attributes:
        x: the matrix, as a vector.
        residual: residual in units of the size of A, with B scaled to unit diagonal.
    """

    x: Float[Array, " pairs"]
    residual: Float[Array, ""]


class _ConeRound(NamedTuple):
    """A round of a method: its state (two vectors), the best X so far, its residual, and whether that is small."""

    at: tuple[Array, Array]
    x: Array
    missed: Array
    fine: Array
    rounds: Array


def complement(
    cone: Cone, a: Float[Array, " pairs"], b: Float[Array, "pairs pairs"], start: Float[Array, " pairs"]
) -> ConeSolution:
    """X >= 0, A + B[X] >= 0, <X, A + B[X]> = 0 for symmetric matrices: the minimum of <X, B X>/2 + <A, X> over X >= 0.

    With the projection P onto X >= 0, X = P(Z) at the root of A + B[P(Z)] + Z - P(Z). From a good guess, and for k = 1
    (X = max(0, -A/B)) from any, semismooth Newton converges in a few rounds. Otherwise an interior-point method takes
    over: X and S = A + B[X] stay positive, and <X, S> falls by a constant factor per round, whatever the condition of
    B. The problem is solved for D^-1 X D^-1 and D A D, with the diagonal D that makes B_ii,ii = 1.

    Arguments:
        a: A, as a vector of the cone.
        b: B, symmetric and positive semidefinite.
        start: a guess of X.

    Source: Qi & Sun 1993, Math. Programming 58, 353-367 (Newton); Nesterov & Todd 1998, SIAM J. Optim. 8, 324-364 (the
    scaling by which X and S are the same matrix inside the cone).
    """
    dtype, count = a.dtype, a.shape[0]
    diagonal = np.flatnonzero(cone.rows == cone.columns)
    # d_i^4 B_ii,ii = 1, because both indices on both sides of B are scaled.
    d = nonzero(jnp.maximum(b[diagonal, diagonal], 0)) ** -0.25
    scale = d[cone.rows] * d[cone.columns]
    a, b, start = scale * a, scale[:, None] * b * scale[None, :], start / scale
    basis = jnp.eye(count, dtype=dtype)
    good = 100 * float(jnp.finfo(dtype).eps)
    # The size of the terms that cancel in A + B[X], whose rounding error limits the residual.
    cancels = lambda x: jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b) @ jnp.abs(x))

    def note(now: _ConeRound, at: tuple[Array, Array], x: Array, missed: Array) -> _ConeRound:
        better = missed < now.missed
        x, missed = jnp.where(better, x, now.x), jnp.where(better, missed, now.missed)
        return _ConeRound(at, x, missed, missed <= good * cancels(x), now.rounds + 1)

    def newton(now: _ConeRound) -> _ConeRound:
        """A Newton round in Z; the state holds Z and the next step."""
        z = now.at[0] + now.at[1]
        values, vectors = jnp.linalg.eigh(cone.matrix(z))
        # Moreau's decomposition Z = X - S: X and S = X - Z are >= 0 and orthogonal for any Z. Only S = A + B[X] remains
        # to be solved.
        kept = jnp.maximum(values, 0)
        x = cone.vector((vectors * kept[None, :]) @ vectors.T)
        left = a + b @ x + z - x
        # Divided differences give the derivative of a matrix function (Daleckii & Krein): (p_i - p_j)/(z_i - z_j) for p
        # = max(z, 0), 0 at z = 0. It equals (p_i + p_j)/(|z_i| + |z_j|), in which nothing cancels.
        sums = jnp.abs(values)[:, None] + jnp.abs(values)[None, :]
        slope = jnp.where(sums > 0, (kept[:, None] + kept[None, :]) / nonzero(sums), 0)
        turn = lambda e: cone.vector(vectors @ (slope * (vectors.T @ cone.matrix(e) @ vectors)) @ vectors.T)
        projection = jax.vmap(turn)(basis).T
        move = -jnp.linalg.solve(b @ projection + (1 + _RIDGE) * basis - projection, left)
        # If the matrix is still singular, Z does not move, and the interior-point method takes over.
        return note(now, (z, jnp.where(jnp.all(jnp.isfinite(move)), move, 0)), x, jnp.linalg.norm(left))

    def inward(now: _ConeRound) -> _ConeRound:
        """An interior-point round in X and S."""
        x, s = now.at
        # With X = L L^T, S = M M^T and M^T L = U D V^T the scaling is G = L V D^(-1/2) (Nesterov & Todd).
        lower_x, lower_s = jnp.linalg.cholesky(cone.matrix(x)), jnp.linalg.cholesky(cone.matrix(s))
        _, same, turn = jnp.linalg.svd(lower_s.T @ lower_x)
        # G^-1 X G^-T = G^T S G = diag(same).
        g = lower_x @ (turn.T / jnp.sqrt(same)[None, :])
        scaled = jax.vmap(lambda e: cone.vector(g @ cone.matrix(e) @ g.T))(basis)
        off, root = a + b @ x - s, jnp.sqrt(same)
        # Positive definite, because B >= 0.
        system = jax.scipy.linalg.cho_factor(scaled @ b @ scaled.T + basis)

        def direction(wanted: Array) -> tuple[Array, Array, Array, Array]:
            """The directions of X and S with scaled dX + dS = wanted; the scaled directions, and the step length."""
            dx = jax.scipy.linalg.cho_solve(system, cone.vector(wanted) - scaled @ off)
            way = dx @ scaled
            dual = b @ way + off
            turned = jax.vmap(cone.matrix)(jnp.stack([dx, scaled @ dual]))
            # D + t dX stays positive up to t = -1/(smallest eigenvalue of D^(-1/2) dX D^(-1/2)), and S likewise.
            lowest = jnp.min(jnp.linalg.eigvalsh(turned / (root[:, None] * root[None, :])[None]))
            return way, dual, turned, jnp.minimum(1, -_BOUNDARY / jnp.minimum(lowest, -_BOUNDARY))

        # The predictor goes straight to the boundary; its length sets the target gap and the corrector.
        _, _, straight, share = direction(-jnp.diag(same))
        less = jnp.maximum((1 - share) ** 2, _LESS)
        # The product of both directions, the second-order term (Mehrotra's corrector). mean(same^2) is <X, S>/k.
        bend = straight[0] @ straight[1]
        bend = (bend + bend.T) / (same[:, None] + same[None, :])
        dx, ds, _, share = direction(jnp.diag(less * jnp.mean(same**2) / same - same) - bend)
        x, s = x + share * dx, s + share * ds
        # The residual of both conditions, in units of S.
        return note(now, (x, s), x, jnp.linalg.norm(a + b @ x - s) + jnp.abs(x @ s) / jnp.linalg.norm(x))

    def run(way: Any, now: _ConeRound, most: int) -> _ConeRound:
        rounds = jnp.zeros((), int)
        return jax.lax.while_loop(lambda now: ~now.fine & (now.rounds < most), way, now._replace(rounds=rounds))

    # Z = X - S for the initial guess.
    begin = start - (a + b @ start), jnp.zeros_like(a)
    found = run(newton, _ConeRound(begin, start, jnp.full((), jnp.inf, dtype), jnp.array(False), jnp.array(0)), _NEWTON)
    size = nonzero(jnp.max(jnp.abs(a)))
    middle = cone.vector(size * jnp.eye(cone.k, dtype=dtype))
    # No rounds are made if Newton's method has converged.
    found = run(inward, found._replace(at=(middle, middle)), _INTERIOR)
    return ConeSolution(scale * found.x, found.missed / size)
