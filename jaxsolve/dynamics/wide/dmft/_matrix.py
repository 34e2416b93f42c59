"""A hidden weight matrix of an infinitely wide network, in the directions in which the network has looked at it.

Random numbers of an infinite matrix never act on their own: what W(0) does to a signal is a fresh Gaussian for each
direction that no earlier signal had, and what W(0)^T does to a gradient likewise. That is all there is, since a
direction of features and one of gradients are the two sides of one Gaussian (Bolthausen, 2014):

    W(0) = sigma mean_s (u x^T + y r^T),

x the directions of features and y those of gradients, u and r the fresh Gaussians, all of them orthonormal in the mean
over neurons. What training adds, sum rate g phi^T, lives in the same directions. So the responses of dynamical
mean-field theory, <d phi / d r> and <d g / d u>, need no derivatives: they are <phi r> and <g u> (Stein).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...._numerics import nonzero, safe_sqrt


class Directions(eqx.Module):
    """Signals of all neurons of a layer, orthonormal in the mean over neurons, in the order in which they came up.

    Attributes:
        rows: the first `count` are directions, the others 0. There is room for one block more than are ever kept.
        count: how many there are.
        missed: the largest part of a signal, as a share of its size, that found no room.
    """

    rows: Float[Array, "k s"]
    count: Int[Array, ""]
    missed: Float[Array, ""]

    def along(self, signals: Float[Array, "n s"]) -> tuple[Float[Array, "n k"], Float[Array, "n s"]]:
        """Coefficients of signals, and what is left of them. Twice, as once leaves what cancels to rounding."""
        size = self.rows.shape[1]
        first = signals @ self.rows.T / size
        rest = signals - first @ self.rows
        second = rest @ self.rows.T / size
        return first + second, rest - second @ self.rows

    def meet(self, signals: Float[Array, "n s"], least: float) -> tuple[Float[Array, "n k"], "Directions"]:
        """Coefficients of signals, with a new direction for each part above `least` times their root mean square."""
        (number, size), room = signals.shape, self.rows.shape[0] - signals.shape[0]
        known, rest = self.along(signals)
        scale = jnp.sqrt(jnp.trace(signals @ signals.T) / signals.size)  # the kernel of a layer is the same product

        def one_more(i: Int[Array, ""] | int, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            block, count, missed = found
            left = rest[i]
            for _ in range(2 if number > 1 else 0):  # of one alone there are no others
                left = left - (block @ left / size) @ block
            square = jnp.mean(left**2)
            large = square > (least * scale) ** 2
            kept = large & (self.count + count < room)
            length = jnp.sqrt(jnp.where(kept, square, 1.0))
            block = jax.lax.dynamic_update_index_in_dim(block, jnp.where(kept, left / length, 0.0), count, 0)
            missed = jnp.maximum(missed, jnp.where(large & ~kept, square / nonzero(scale**2), 0.0))
            return block, count + kept.astype(count.dtype), missed

        found = (jnp.zeros_like(signals), jnp.zeros((), int), jnp.zeros((), signals.dtype))
        if number == 1:
            block, count, missed = one_more(0, found)
        else:
            block, count, missed = jax.lax.fori_loop(0, number, one_more, found)
            # What others leave of a signal may be less than rounding has put back of directions that are known already.
            block = block - (block @ self.rows.T / size) @ self.rows
            # Orthonormal again to first order: (1 + E)^(-1/2) = 1 - E/2 + ..., E the excess of the Gram matrix over 1.
            excess = block @ block.T / size - jnp.diag((jnp.arange(number) < count).astype(block.dtype))
            block = block - excess @ block / 2
        new = rest @ block.T / size
        known = known + jax.lax.dynamic_update_slice(jnp.zeros_like(known), new, (0, self.count))
        # Rows beyond the count are free, a whole block of them at least: so the slice is never moved back.
        rows = jax.lax.dynamic_update_slice(self.rows, block, (self.count, 0))
        return known, Directions(rows, self.count + count, jnp.maximum(self.missed, jnp.sqrt(missed)))


def no_directions(room: int, size: int, dtype: Any) -> Directions:
    """None so far."""
    return Directions(jnp.zeros((room, size), dtype), jnp.zeros((), int), jnp.zeros((), dtype))


class Matrix(eqx.Module):
    """One hidden weight matrix.

    Attributes:
        features: directions x, among the neurons below.
        gradients: directions y, among those above.
        forth: u, of variance 1: what W(0) makes of x; the last row is of no direction.
        back: r, likewise: what W(0)^T makes of y.
        moved: what training has added, between y and x.
    """

    features: Directions
    gradients: Directions
    forth: Float[Array, "k s"]
    back: Float[Array, "k s"]
    moved: Float[Array, "k k"]

    def forward(self, sigma: Float[Array, ""], phi: Float[Array, "n s"], least: float):
        """W phi, the coefficients of phi, and the directions with its own."""
        found, features = self.features.meet(phi, least)
        return self._known(sigma, phi, found), found, features

    def backward(self, sigma: Float[Array, ""], g: Float[Array, "n s"], least: float):
        """W^T g, the coefficients of g, and the directions with its own."""
        found, gradients = self.gradients.meet(g, least)
        # W^T g = sigma (r <y g> + x <u g>), and x moved <y g> by training.
        response = sigma * (g @ self.forth.T) / g.shape[1]
        signals = sigma * found @ self.back + (response + found @ self.moved.T) @ self.features.rows
        return signals, found, gradients

    def glance(self, sigma: Float[Array, ""], phi: Float[Array, "n s"]) -> Float[Array, "n s"]:
        """W phi for signals that are not kept: what is new in each goes one way, as each is looked at alone."""
        found, rest = self.features.along(phi)
        new = safe_sqrt(jnp.mean(rest**2, axis=1))
        return self._known(sigma, phi, found) + sigma * new[:, None] * self.forth[-1:]

    def _known(self, sigma: Float[Array, ""], phi: Float[Array, "n s"], found: Float[Array, "n k"]) -> Array:
        # W phi = sigma (u <x phi> + y <r phi>), and y moved^T <x phi> by training.
        response = sigma * (phi @ self.back.T) / phi.shape[1]
        return sigma * found @ self.forth + (response + found @ self.moved) @ self.gradients.rows
