r"""Damped oscillators exactly: the functions $\varphi_k$ of the matrices that move them.

With momentum a mode of rate $\lambda$ follows $w' = p/\tau$, $p' = -\lambda w - p/\tau$. Over a time t its matrix has
the eigenvalues $z_\pm = -x \pm \sqrt{x^2 - \lambda t^2/\tau}$, $x = t/(2\tau)$, and any function of it is
$\varphi(z_+) + \varphi[z_+, z_-] (Z - z_+)$ with the divided difference, also where both are equal.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float


_NEAR = 2.0  # for smaller |z| the recursion of phi_k cancels, and its Taylor series is used
_TERMS = 25  # 2^24/24! is below the rounding of float64


class Response(NamedTuple):
    """The four entries of a function of each mode's matrix; `p_to_w` is what p adds to w."""

    w_to_w: Float[Array, " modes"]
    p_to_w: Float[Array, " modes"]
    w_to_p: Float[Array, " modes"]
    p_to_p: Float[Array, " modes"]


def response(k: int, time: Float[Array, ""], tau: Float[Array, ""], rates: Float[Array, " modes"]) -> Response:
    """phi_k of the matrices of modes with these rates >= 0, over a time."""
    speed, half = jax.lax.stop_gradient((rates / tau, 1 / (2 * tau)))
    split = jnp.sqrt(_complex(half**2 - speed))
    fast = -_complex(time) * (_complex(half) + split)
    # From the product of both eigenvalues, which is known: the difference -half + split would cancel.
    slow = -_complex(time * speed) * _inverse(_complex(half) + split)
    value, slope = _phi(k, slow), _divided_difference(k, slow, fast, _complex(time) * split)
    return Response(
        (value - slope * slow).real,
        slope.real * (time / tau),
        -slope.real * (time * rates),
        (value + slope * fast).real,
    )


def _phi(k: int, z: Complex[Array, " modes"]) -> Complex[Array, " modes"]:
    """phi_k where the real part is not positive."""
    near = _square(z) < _NEAR**2
    series, _ = _polynomial(_taylor(k), jnp.where(near, z, 0), 0)
    far = jnp.where(near, -_NEAR, z)
    value, inverse = jnp.exp(far), _inverse(far)
    for j in range(k):
        value = (value - 1 / math.factorial(j)) * inverse
    return jnp.where(near, series, value)


def _divided_difference(
    k: int, slow: Complex[Array, " modes"], fast: Complex[Array, " modes"], half: Complex[Array, " modes"]
) -> Complex[Array, " modes"]:
    """(phi_k(slow) - phi_k(fast))/(slow - fast), where `half` is half of that difference."""
    near = _square(fast) < _NEAR**2
    _, series = _polynomial(_taylor(k), jnp.where(near, slow, 0), jnp.where(near, fast, 0))
    # Elsewhere the recursion of phi_k, for divided differences.
    slow, fast, half = jnp.where(near, -_NEAR, slow), jnp.where(near, -_NEAR, fast), jnp.where(near, 0, half)
    value, inverse = _exponential(slow, fast, half), _inverse(fast)
    for j in range(1, k + 1):
        value = (value - _phi(j, slow)) * inverse
    return jnp.where(near, series, value)


def _exponential(
    slow: Complex[Array, " modes"], fast: Complex[Array, " modes"], half: Complex[Array, " modes"]
) -> Complex[Array, " modes"]:
    """The divided difference of exp: exp((slow + fast)/2) sinh(half)/half."""
    close = _square(half) < 1
    small, large = jnp.where(close, half, 0), jnp.where(close, 1, half)
    ratio, _ = _polynomial(_SINH, small**2, 0)
    return jnp.where(close, jnp.exp((slow + fast) / 2) * ratio, (jnp.exp(slow) - jnp.exp(fast)) / 2 * _inverse(large))


def _complex(x: Float[Array, "..."]) -> Complex[Array, "..."]:
    return jax.lax.complex(x, jnp.zeros_like(x))


def _square(z: Complex[Array, " modes"]) -> Float[Array, " modes"]:
    """|z|^2, which compiles faster than |z|."""
    return z.real**2 + z.imag**2


def _inverse(z: Complex[Array, " modes"]) -> Complex[Array, " modes"]:
    """1/z: division of complex numbers takes long to compile."""
    return jax.lax.complex(z.real / _square(z), -z.imag / _square(z))


def _polynomial(
    coefficients: np.ndarray, one: Complex[Array, " modes"], two: Complex[Array, " modes"] | int
) -> tuple[Complex[Array, " modes"], Complex[Array, " modes"]]:
    """A polynomial's value at one point, and its divided difference between two, by Horner's rule."""

    def further(_: Any, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        value, slope, left = at
        return value * one + left[-1], slope * two + value, jnp.roll(left, 1)

    start = jnp.zeros_like(one), jnp.zeros_like(one), jnp.asarray(coefficients, one.dtype)
    value, slope, _ = jax.lax.fori_loop(0, coefficients.size, further, start)
    return value, slope


def _taylor(k: int) -> np.ndarray:
    """The Taylor coefficients of phi_k, 1/(j + k)!."""
    return np.array([1 / math.factorial(j + k) for j in range(_TERMS)])


_SINH = np.array([1 / math.factorial(2 * j + 1) for j in range(12)])  # of sinh(x)/x, in x^2
