r"""The tangent kernel of a balanced deep linear network with one output: a multiple of the input kernel plus a spike.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", section 4 and
appendix D. Networks with a small start are balanced up to O(sigma^2): $W_l = v \sqrt{\eta_l}\, r_{l+1} r_l^\top$ with
$f(x) = c\, r_1 \cdot x$ and $c = v^L \sqrt{\prod_l \eta_l}$.

In these functions W_l and eta_l stand for m_l W_l and m_l^2 eta_l. An output scale gamma multiplies f by gamma and
kernels by gamma^2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, require_positive, require_size
from ..._numerics import nonzero, safe_hypot


class SpikedKernel(NamedTuple):
    """K(x, x') = x^T [isotropic I + spike r r^T] x' with the unit vector r along the learned function."""

    isotropic: Float[Array, "..."]
    spike: Float[Array, "..."]
    ratio: Float[Array, "..."]  # spike/isotropic, A/B of eqs. (10) and (37); correct even if both overflow or underflow

    def matrix(self, direction: Float[Array, " in"]) -> Float[Array, "in in"]:
        """isotropic I + spike r r^T for one kernel and the unit vector r."""
        identity = jnp.eye(direction.shape[0], dtype=direction.dtype)
        return self.isotropic * identity + self.spike * (direction[:, None] * direction[None, :])

    def alignment(self, rank: int) -> Float[Array, "..."]:
        """y^T K y/(|K|_F |y|^2) on whitened inputs of this rank with targets y_i = s r . x_i (section 2, app. D.2).

        (A + B)/sqrt((A + B)^2 + (rank - 1) B^2): the value at which silent alignment settles. The rank is min(n, d).

        Raises:
            ValueError, TypeError: rank is not an integer >= 1.
        """
        # In units of the isotropic part B, where A + B is 1 + A/B: the scale of the kernel drops out.
        top = 1 + self.ratio
        return top / safe_hypot(top, jnp.full_like(top, (require_size(rank, "rank") - 1) ** 0.5))


def spiked_kernel(c: Float[ArrayLike, "..."], eta: Float[ArrayLike, " matrices"]) -> SpikedKernel:
    """The eta-weighted NTK, which drives f, of a balanced network at f(x) = c r . x (eq. 35, with rates).

    c^{2 - 2/L} (prod_l eta_l)^{1/L} [I + (L - 1) r r^T]: its spike depends only on the depth, not on the rates. At
    c = s this is the kernel after training (eq. 42, corrected: the printed scale s^{2L - 2} should be s^{2 - 2/L}).

    Arguments:
        c: the strength of the mode, >= 0, any shape.
        eta: the rates of all L >= 2 weight matrices, from the input; > 0.

    Returns:
        The numbers `isotropic`, `spike` and their `ratio`, with the methods `matrix(r)` and `alignment(rank)`.

    Example:
        >>> kernel = js.theory.spiked_kernel(8.0, eta=jnp.ones(3))  # after training, for a target of size 8
        >>> print(f"isotropic {kernel.isotropic:.1f}, spike/isotropic {kernel.ratio:.1f}")
        isotropic 16.0, spike/isotropic 2.0

    Raises:
        ValueError: eta is not a vector of at least two positive numbers, or c is negative.
    """
    c, eta = read_mode(c, eta)
    matrices = eta.shape[0]
    scale = safe_power(c, 2 - 2 / matrices) * mean_rate(eta)
    return SpikedKernel(scale, (matrices - 1) * scale, jnp.full_like(scale, matrices - 1))


def plain_spiked_kernel(c: Float[ArrayLike, "..."], eta: Float[ArrayLike, " matrices"]) -> SpikedKernel:
    """The plain NTK (eta = 1 at every matrix) of the same network (eqs. 10, 34 to 36 and 42, corrected).

    Every matrix contributes 1/eta_l times its part of the eta-weighted kernel, so A/B = sum_{l>=2} eta_1/eta_l: a
    faster first layer gives a stronger spike here (eq. 37), but not in the kernel that drives f.

    Arguments and errors: as for `js.theory.spiked_kernel`.

    Example:
        >>> fast_first = js.theory.plain_spiked_kernel(8.0, eta=jnp.array([4.0, 1.0, 1.0]))
        >>> print(f"spike/isotropic {fast_first.ratio:.1f}")
        spike/isotropic 8.0
    """
    c, eta = read_mode(c, eta)
    scale = safe_power(c, 2 - 2 / eta.shape[0]) * mean_rate(eta)
    ratio = jnp.broadcast_to(jnp.sum(eta[0] / eta[1:]), scale.shape)
    return SpikedKernel(scale / eta[0], scale * jnp.sum(1 / eta[1:]), ratio)


def read_mode(
    c: Float[ArrayLike, "..."], eta: Float[ArrayLike, " matrices"]
) -> tuple[Float[Array, "..."], Float[Array, " matrices"]]:
    """A mode's strength and the rates as arrays of one dtype; raises ValueError if they are not valid."""
    c = jnp.asarray(c)
    c = c.astype(jnp.result_type(c, float))
    known = concrete(c)
    if known is not None and not np.all(known >= 0):
        raise ValueError(f"a mode's strength must be >= 0, got a smallest value of {known.min()}; turn the vector r")
    return c, read_rates(eta, c.dtype)


def read_rates(eta: Any, dtype: Any) -> Float[Array, " matrices"]:
    """The rates of all weight matrices as an array; raises ValueError if they are not valid."""
    rates = jnp.asarray(eta, dtype)
    if rates.ndim != 1 or rates.shape[0] < 2:
        raise ValueError(f"eta must hold one rate for each of at least two weight matrices, got {describe(eta)}")
    require_positive(rates, "eta")
    return rates


def mean_rate(eta: Float[Array, " matrices"]) -> Float[Array, ""]:
    """The geometric mean (prod_l eta_l)^{1/L}, without overflow."""
    return jnp.exp(jnp.mean(jnp.log(eta)))


def safe_power(base: Array, exponent: float) -> Array:
    """base^exponent for base >= 0 and exponent >= 0, with derivative 0 at 0."""
    if exponent == 0:
        return jnp.ones_like(base)
    return jnp.where(base == 0, 0, nonzero(base) ** exponent)
