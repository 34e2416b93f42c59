r"""Decay and what it leaves behind: the functions $\varphi_k$ of exponential integrators.

$\varphi_0(z) = e^z$ and $\varphi_{k+1}(z) = (\varphi_k(z) - 1/k!)/z$, so that $\varphi_k(0) = 1/k!$ (Hochbruck &
Ostermann 2010, "Exponential integrators", eq. 2.11).
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


_NEAR = 2.0  # below, the recursion would cancel
_TERMS = 24  # 2^24/24! is below the rounding of float64


def phi(k: int, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """phi_k(z) for k >= 0, correct to a few units of rounding; 0 at -inf, and inf where it overflows."""
    if k == 0:
        return jnp.exp(z)
    near = jnp.abs(z) < _NEAR
    small, large = jnp.where(near, z, 0), jnp.where(near, -_NEAR, z)
    far = jnp.expm1(large) / large
    for j in range(1, k):
        far = (far - 1 / math.factorial(j)) / large
    grows = small > 0
    series = jnp.where(grows, _taylor(k, jnp.where(grows, small, 0)), _positive_series(k, jnp.where(grows, 0, -small)))
    return jnp.where(near, series, far)


def _taylor(k: int, z: Array) -> Array:
    """sum_j z^j/(j + k)! for z >= 0."""
    total = jnp.zeros_like(z)
    for j in range(_TERMS, 0, -1):
        total = z / (k + j) * (1 + total)
    return (1 + total) / math.factorial(k)


def _positive_series(k: int, x: Array) -> Array:
    """e^-x/(k-1)! sum_j x^j/(j! (k + j)) (Kummer's transformation of the Taylor series): no term is negative."""
    total = jnp.zeros_like(x)
    for j in range(_TERMS, -1, -1):
        total = 1 / (k + j) + x / (j + 1) * total
    return jnp.exp(-x) / math.factorial(k - 1) * total


def finite_product(rate: Array, t: Array) -> Array:
    """rate t for a finite rate >= 0, with t = inf brought down to where all decay that the dtype can tell is over."""
    last = float(jnp.finfo(rate.dtype).max) ** 0.5
    divisor = jnp.where(rate == 0, 1, rate)
    over = t > last / divisor
    return rate * jnp.where(over, last / jnp.where(over, divisor, 1), t)


def integrated_decay(rate: Array, t: Array) -> Array:
    """The integral t phi_1(-rate t) of exp(-rate s) over s from 0 to t, for rate >= 0 and t in [0, inf].

    t where the rate is 0, 1/rate at t = inf.
    """
    x = finite_product(rate, t)
    near = x < _NEAR
    early = jnp.where(near, t, 0) * phi(1, -jnp.where(near, x, 0))
    return jnp.where(near, early, -jnp.expm1(-jnp.where(near, _NEAR, x)) / jnp.where(near, 1, rate))
