"""A hidden weight matrix of an infinitely wide network, in the directions that signals have probed.

The entries of an infinite random matrix never act individually: W(0) maps each new direction of signals to a fresh
Gaussian, and so does W(0)^T for gradients. This describes W(0) completely, because directions of features and gradients
are the two sides of the same Gaussian matrix (Bolthausen, 2014):

    W(0) = sigma mean_s (u x^T + y r^T),

with the directions x of features and y of gradients, and the fresh Gaussians u and r, all orthonormal in the mean over
neurons. The change by training, sum rate g phi^T, lies in the same directions. The responses of dynamical mean-field
theory, <d phi / d r> and <d g / d u>, then need no derivatives: they are <phi r> and <g u> (Stein).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...._numerics import nonzero, safe_sqrt


class Directions(eqx.Module):
    """Signals over the neurons of a layer, orthonormal in the mean over neurons, in order of appearance.

    Attributes:
        rows: the first `count` are directions, the others 0. There is room for one block more than is ever kept.
        count: number of directions.
        missed: the largest part of a signal, relative to its size, that found no room.
    """

    rows: Float[Array, "k s"]
    count: Int[Array, ""]
    missed: Float[Array, ""]

    def along(self, signals: Float[Array, "n s"]) -> tuple[Float[Array, "n k"], Float[Array, "n s"]]:
        """Coefficients of signals, and the rest. Projects twice, because once leaves a part at rounding level."""
        size = self.rows.shape[1]
        first = signals @ self.rows.T / size
        rest = signals - first @ self.rows
        second = rest @ self.rows.T / size
        return first + second, rest - second @ self.rows

    def meet(self, signals: Float[Array, "n s"], least: float) -> tuple[Float[Array, "n k"], "Directions"]:
        """Coefficients of signals, and directions with one added per part above `least` times the root mean square."""
        (number, size), room = signals.shape, self.rows.shape[0] - signals.shape[0]
        known, rest = self.along(signals)
        scale = jnp.sqrt(jnp.trace(signals @ signals.T) / signals.size)  # XLA shares this with the kernel

        def one_more(i: Int[Array, ""] | int, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            block, count, missed = found
            left = rest[i]
            for _ in range(2 if number > 1 else 0):  # a single signal has no others to project out
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
            # After projection a signal may be smaller than the rounding error along known directions.
            block = block - (block @ self.rows.T / size) @ self.rows
            # Orthonormalizes to first order: (1 + E)^(-1/2) = 1 - E/2 + ..., with the Gram matrix 1 + E.
            excess = block @ block.T / size - jnp.diag((jnp.arange(number) < count).astype(block.dtype))
            block = block - excess @ block / 2
        new = rest @ block.T / size
        known = known + jax.lax.dynamic_update_slice(jnp.zeros_like(known), new, (0, self.count))
        # At least a whole block of rows beyond the count is free, so the slice is never clamped.
        rows = jax.lax.dynamic_update_slice(self.rows, block, (self.count, 0))
        return known, Directions(rows, self.count + count, jnp.maximum(self.missed, jnp.sqrt(missed)))


def no_directions(room: int, size: int, dtype: Any) -> Directions:
    """Empty directions with room for some."""
    return Directions(jnp.zeros((room, size), dtype), jnp.zeros((), int), jnp.zeros((), dtype))


class Matrix(eqx.Module):
    """One hidden weight matrix.

    Attributes:
        features: directions x, over the neurons below.
        gradients: directions y, over the neurons above.
        forth: u, of variance 1, the image of x under W(0); the last row belongs to no direction.
        back: r, likewise the image of y under W(0)^T.
        moved: the change by training, between y and x.
    """

    features: Directions
    gradients: Directions
    forth: Float[Array, "k s"]
    back: Float[Array, "k s"]
    moved: Float[Array, "k k"]

    def forward(self, sigma: Float[Array, ""], phi: Float[Array, "n s"], least: float):
        """W phi, the coefficients of phi, and the directions including those of phi."""
        found, features = self.features.meet(phi, least)
        return self._known(sigma, phi, found), found, features

    def backward(self, sigma: Float[Array, ""], g: Float[Array, "n s"], least: float):
        """W^T g, the coefficients of g, and the directions including those of g."""
        found, gradients = self.gradients.meet(g, least)
        # W^T g = sigma (r <y g> + x <u g>), plus x moved <y g> from training.
        response = sigma * (g @ self.forth.T) / g.shape[1]
        signals = sigma * found @ self.back + (response + found @ self.moved.T) @ self.features.rows
        return signals, found, gradients

    def glance(self, sigma: Float[Array, ""], phi: Float[Array, "n s"]) -> Float[Array, "n s"]:
        """W phi for signals that are not kept: their new parts share one Gaussian, since each signal is used alone."""
        found, rest = self.features.along(phi)
        new = safe_sqrt(jnp.mean(rest**2, axis=1))
        return self._known(sigma, phi, found) + sigma * new[:, None] * self.forth[-1:]

    def _known(self, sigma: Float[Array, ""], phi: Float[Array, "n s"], found: Float[Array, "n k"]) -> Array:
        # W phi = sigma (u <x phi> + y <r phi>), plus y moved^T <x phi> from training.
        response = sigma * (phi @ self.back.T) / phi.shape[1]
        return sigma * found @ self.forth + (response + found @ self.moved) @ self.gradients.rows
