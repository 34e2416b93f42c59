r"""The flow of a lambda-balanced two-layer linear network on whitened inputs, in closed form.

Fukumizu 1998, Braun et al. 2022, Domine et al. 2024, for any rates: with $Q = (V_1^\top; V_2)$ and
$F = \begin{pmatrix} -\lambda/2 & \Sigma^\top \\ \Sigma & \lambda/2 \end{pmatrix}$,
$QQ^\top(T) = e^{FT} Q_0 [I + Q_0^\top \int_0^T e^{2Fs} ds\, Q_0]^{-1} Q_0^\top e^{FT}$.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import integrated_decay, nonzero, safe_hypot, safe_sqrt
from ._graded import Graded, graded


class Blocks(eqx.Module):
    """V_1 and V_2 up to one rotation of the hidden units, on which no output, kernel or norm depends.

    Attributes:
        first: V_1^T inside the inputs' row space, shape (in, hidden').
        last: V_2, shape (out, hidden').
    """

    first: Float[Array, "in hidden"]
    last: Float[Array, "out hidden"]


class ReducedBalanced(eqx.Module):
    """f(x) = o V_2 V_1 x on whitened inputs, in units in which rates and the inputs' second moment are 1.

    Built from a problem by `js.theory.Balanced`: V_2 V_1 converges to Sigma where it can, and
    V_2^T V_2 - V_1 V_1^T = lambda I.

    Attributes:
        modes_in, modes_out: singular vectors of Sigma.
        cos, sin, growth: of the eigenvectors, and the eigenvalues, of F.
        strength: singular values of Sigma.
        start: the start along the eigenvectors of F, in triangular form (see `_graded`).
    """

    modes_in: Float[Array, "in modes"]
    modes_out: Float[Array, "out modes"]
    cos: Float[Array, " modes"]
    sin: Float[Array, " modes"]
    growth: Float[Array, " rows"]
    strength: Float[Array, " modes"]
    start: Graded

    @staticmethod
    def build(
        first: Float[Array, "in hidden"],
        last: Float[Array, "out hidden"],
        target: Float[Array, "out in"],
        scale: Float[Array, ""],
        balance: Float[Array, ""],
    ) -> "ReducedBalanced":
        """The flow from V_1^T, V_2 and the target `target * scale`; of these two factors, only `target` is decomposed.

        Derivatives with respect to scale and start then need no derivatives of singular vectors.
        """
        u, s, v_t = jnp.linalg.svd(target, full_matrices=False)
        s, u = s * jnp.abs(scale), jnp.where(scale < 0, -1, 1) * u
        v = v_t.T
        up = balance >= 0  # one side includes lambda = 0 throughout: abs and maximum have no derivative there
        half = jnp.where(up, balance, -balance) / 2
        root = safe_hypot(s, balance / 2)
        large, small = root + half, s * (s / nonzero(root + half))  # root + lambda/2 and root - lambda/2, lambda >= 0
        # F has the growing eigenvectors (sin v, cos u) and the decaying eigenvectors (cos v, -sin u).
        big, little = (jnp.where(root == 0, 0.5**0.5, safe_sqrt(part / nonzero(2 * root))) for part in (large, small))
        cos, sin = jnp.where(up, big, little), jnp.where(up, little, big)
        along_v, along_u = v.T @ first, u.T @ last
        q = jnp.concatenate(
            [
                sin[:, None] * along_v + cos[:, None] * along_u,
                cos[:, None] * along_v - sin[:, None] * along_u,
                first - v @ along_v,
                last - u @ along_u,
            ]
        )
        growth = jnp.concatenate(
            [
                root,
                -root,
                jnp.broadcast_to(-balance / 2, first.shape[:1]),
                jnp.broadcast_to(balance / 2, last.shape[:1]),
            ]
        )
        return ReducedBalanced(v, u, cos, sin, growth, s, graded(q, growth))

    def blocks(self, T: Float[Array, ""]) -> Blocks:
        """V_1^T and V_2 at a finite time T of this flow, up to a rotation of the hidden units."""
        rows, pivots, found = self.start
        grows = self.growth >= 0
        up, down = jnp.where(grows, self.growth, 0), jnp.where(grows, 0, self.growth)
        gain = integrated_decay(2 * (up - down), T)  # int_0^T e^{2 f s} ds, divided by e^{2 max(f, 0) T}
        # The bracket is R^T R with R from [sqrt(Gamma) q; I]. Each column is divided by its leading row's growth.
        leading = jnp.where(found > 0, up[pivots], 0)
        height = found * jnp.diagonal(rows[pivots])
        column = 1 / jnp.sqrt(jnp.exp(-2 * leading * T) + gain[pivots] * height**2)
        # Rows that grow faster than the column's own are zero, but their derivatives are not: keep those finite.
        most = 0.25 * float(np.log(np.finfo(self.growth.dtype).max))
        ahead = up[:, None] - leading[None, :]
        # Rows that grow at the column's own rate get an exact 0, without a derivative: otherwise terms of size T would
        # have to cancel in derivatives at t = inf.
        ahead = jnp.minimum(jnp.where(ahead == 0, 0, ahead) * T, most)
        grown = rows * jnp.exp(ahead) * column[None, :]
        top = safe_sqrt(gain)[:, None] * grown
        bottom = jnp.diag(jnp.exp(-leading * T) * column)
        r = jnp.linalg.qr(jnp.concatenate([top, bottom]), mode="r")
        moved = jnp.exp(down * T)[:, None] * grown
        moved = jax.scipy.linalg.solve_triangular(r, moved.T, trans=1).T
        modes = self.cos.shape[0]
        in_size = self.modes_in.shape[0]
        plus, minus, across_in, across_out = jnp.split(moved, [modes, 2 * modes, 2 * modes + in_size])
        cos, sin = self.cos[:, None], self.sin[:, None]
        return Blocks(
            self.modes_in @ (sin * plus + cos * minus) + across_in,
            self.modes_out @ (cos * plus - sin * minus) + across_out,
        )
