"""Triangular form of rows that will grow at very different rates.

Rows q_i multiplied by e^{f_i T} soon differ by more than floating point holds: the fastest would swamp the others in
every column. An orthogonal change of columns that leaves each growing row alone in one column keeps them apart: a QR
decomposition with pivoting. It is written out here because library versions pivot by size, while here the growth comes
first, and because its derivative needs its own frame.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._numerics import nonzero


class Graded(NamedTuple):
    """Rows in triangular form.

    Attributes:
        rows: q H with H orthogonal; its pivot rows, in order, are lower triangular.
        pivots: the leading row of each column: the fastest-growing row that is not a combination of earlier pivots.
        found: 1 where a column has such a row, 0 for columns that are zero.
    """

    rows: Float[Array, "rows columns"]
    pivots: Int[Array, " columns"]
    found: Float[Array, " columns"]


def graded(q: Float[Array, "rows columns"], growth: Float[Array, " rows"]) -> Graded:
    """The rows in triangular form, by Householder reflections of columns, pivoting on rows by growth, then by size.

    H is not unique, and no result may depend on it. Derivatives are taken in the frame in which the pivot rows stay
    triangular, so that they grow no faster than the rows do.
    """
    fixed, rates = jax.lax.stop_gradient(q), jax.lax.stop_gradient(growth)
    frame, pivots, found = _frame(fixed, rates)
    return Graded(_triangular(q, rates, frame, pivots, found), pivots, found)


@jax.jit
def _frame(q: Array, growth: Array) -> tuple[Array, Array, Array]:
    rows, columns = q.shape
    own = jnp.sum(q**2, axis=1)
    rounding = (10 * columns * float(jnp.finfo(q.dtype).eps)) ** 2

    def reflect(j, carry):
        current, frame, used, pivots, found = carry
        ahead = jnp.arange(columns) >= j
        left = jnp.sum(jnp.where(ahead[None, :], current, 0) ** 2, axis=1)
        # A row with nothing left but rounding is a combination of earlier pivots.
        free = (~used) & (left > rounding * own)
        fastest = jnp.max(jnp.where(free, growth, -jnp.inf))
        row = jnp.argmax(jnp.where(free & (growth == fastest), left, -1))
        exists = jnp.any(free)
        v = jnp.where(ahead, current[row], 0)
        length = jnp.linalg.norm(v)
        # The Householder vector, with the sign of v_j so that the sum does not cancel.
        v = v.at[j].add(jnp.where(v[j] < 0, -length, length))
        v = jnp.where(exists, v / nonzero(jnp.linalg.norm(v)), 0)
        reflected = lambda a: a - 2 * (a @ v)[:, None] * v[None, :]
        return (
            reflected(current),
            reflected(frame),
            used.at[row].set(used[row] | exists),
            pivots.at[j].set(row),
            found.at[j].set(exists.astype(q.dtype)),
        )

    start = (
        q,
        jnp.eye(columns, dtype=q.dtype),
        jnp.zeros(rows, bool),
        jnp.zeros(columns, int),
        jnp.zeros(columns, q.dtype),
    )
    _, frame, _, pivots, found = jax.lax.fori_loop(0, columns, reflect, start)
    return frame, pivots, found


def _zeros(growth: Array, pivots: Array, found: Array) -> tuple[Array, Array]:
    """Entries that are zero: above the diagonal of the pivot rows, and where a faster row depends on earlier pivots.

    Rounding there would grow faster than the column's own row. Entries of the second kind may have a derivative.
    """
    columns = pivots.shape[0]
    order = (
        jnp.full(growth.shape[0], columns, int)
        .at[jnp.where(found > 0, pivots, growth.shape[0])]
        .set(jnp.arange(columns), mode="drop")
    )
    above = (order[:, None] < jnp.arange(columns)[None, :]) | (found == 0)[None, :]
    return above, above | (growth[:, None] > growth[pivots][None, :])


@jax.custom_jvp
def _triangular(q: Array, growth: Array, frame: Array, pivots: Array, found: Array) -> Array:
    return jnp.where(_zeros(growth, pivots, found)[1], 0, q @ frame)


@_triangular.defjvp
def _triangular_jvp(primals, tangents):
    q, growth, frame, pivots, found = primals
    rows = _triangular(q, growth, frame, pivots, found)
    change = tangents[0] @ frame
    leading = rows[pivots] * found[:, None]
    lower = jnp.tril(leading, -1) + jnp.diag(jnp.where(found > 0, jnp.diagonal(leading), 1))
    # An antisymmetric generator rotates the frame so that the pivot rows stay triangular.
    turn = jax.scipy.linalg.solve_triangular(lower, -change[pivots] * found[:, None], lower=True)
    turn = jnp.triu(turn, 1)
    change = change + rows @ (turn - turn.T)
    return rows, jnp.where(_zeros(growth, pivots, found)[0], 0, change)
