r"""Exponential decay and its integrals: the functions $\varphi_k$ of exponential integrators.

$\varphi_0(z) = e^z$ and $\varphi_{k+1}(z) = (\varphi_k(z) - 1/k!)/z$, so that $\varphi_k(0) = 1/k!$ (Hochbruck &
Ostermann 2010, "Exponential integrators", eq. 2.11).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


_NEAR = 2.0  # below this |z| the recursion would cancel
_TERMS = 25  # 2^25/25! is below the rounding of float64


def phi(k: int, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """phi_k(z) for k >= 0, correct to a few units of rounding, for z < inf; 0 at -inf, and inf where it overflows."""
    if k == 0:
        return jnp.exp(z)
    near = jnp.abs(z) < _NEAR
    # Each branch gets safe arguments: jnp.where differentiates both, and a NaN in either spoils the derivative.
    small, large = jnp.where(near, z, 0), jnp.where(near, -_NEAR, z)
    far = jnp.expm1(large) / large
    for j in range(1, k):
        far = (far - 1 / math.factorial(j)) / large
    grows = small > 0
    x = jnp.where(grows, small, -small)
    powers = _powers(x)
    # phi_k(z) = M(1, k + 1, z)/k! = e^z M(k, k + 1, -z)/k!, where M is Kummer's function.
    # The Taylor series, and for z < 0 Kummer's transformation of it: no term of either is negative.
    taylor = [1 / math.factorial(j + k) for j in range(_TERMS)]
    kummer = [1 / (math.factorial(k - 1) * math.factorial(j) * (k + j)) for j in range(_TERMS)]
    series = jnp.where(grows, _sum(powers, taylor), jnp.exp(-x) * _sum(powers, kummer))
    return jnp.where(near, series, far)


def _powers(x: Float[Array, "*shape"]) -> Float[Array, "*shape terms"]:
    """x^0, x^1, ... by repeated squaring: a tenth of the operations in the program of Horner's rule, term by term."""
    square, powers = x[..., None], jnp.ones_like(x)[..., None]
    while powers.shape[-1] < _TERMS:
        powers, square = jnp.concatenate([powers, powers * square], axis=-1), square * square
    return powers[..., :_TERMS]


def _sum(powers: Float[Array, "*shape terms"], coefficients: list[float]) -> Float[Array, "*shape"]:
    weights = jnp.asarray(np.array(coefficients), powers.dtype)
    return jnp.sum(powers * weights.reshape((1,) * (powers.ndim - 1) + (-1,)), axis=-1)


def finite_product(rate: Array, t: Array) -> Array:
    """rate t for a finite rate >= 0, with t capped where all decay that the dtype can resolve is over."""
    last = float(jnp.finfo(rate.dtype).max) ** 0.5
    divisor = jnp.where(rate == 0, 1, rate)
    over = t > last / divisor
    return rate * jnp.where(over, last / jnp.where(over, divisor, 1), t)


def integrated_decay(rate: Array, t: Array) -> Array:
    """The integral t phi_1(-rate t) of exp(-rate s) over s from 0 to t, for rate >= 0 and t in [0, inf].

    It is t where the rate is 0, and 1/rate at t = inf.
    """
    x = finite_product(rate, t)
    near = x < _NEAR
    # t rather than x/rate: at a rate of 0 the integral is t.
    early = jnp.where(near, t, 0) * phi(1, -jnp.where(near, x, 0))
    return jnp.where(near, early, -jnp.expm1(-jnp.where(near, _NEAR, x)) / jnp.where(near, 1, rate))
