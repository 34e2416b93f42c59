r"""Exact solutions of damped oscillators: the functions $\varphi_k$ of their matrices.

With momentum a mode of rate $\lambda$ follows $w' = p/\tau$, $p' = -\lambda w - p/\tau$. Over a time t its matrix Z has
the eigenvalues $z_\pm = -x \pm \sqrt{x^2 - \lambda t^2/\tau}$, $x = t/(2\tau)$. A function of Z is
$\varphi(z_+) + \varphi[z_+, z_-] (Z - z_+)$ with the divided difference, even where both eigenvalues are equal.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float


_NEAR = 2.0  # for smaller |z| the recursion of phi_k cancels, so its Taylor series is used
_TERMS = 25  # 2^24/24! is below the rounding error of float64


class Responses(NamedTuple):
    """The four entries of functions of each mode's matrix, one row per function; `p_to_w` maps p to w."""

    w_to_w: Float[Array, "k modes"]
    p_to_w: Float[Array, "k modes"]
    w_to_p: Float[Array, "k modes"]
    p_to_p: Float[Array, "k modes"]


def responses(highest: int, time: Float[Array, ""], tau: Float[Array, ""], rates: Float[Array, " modes"]) -> Responses:
    """phi_0, ..., phi_highest of the matrices of modes with these rates >= 0, over the given time."""
    speed, half = jax.lax.stop_gradient((rates / tau, 1 / (2 * tau)))
    split = _root(half**2 - speed)
    fast = -_complex(time) * (_complex(half) + split)
    # From the known product of the eigenvalues: the difference -half + split would cancel.
    slow = -_complex(time * speed) * _inverse(_complex(half) + split)
    value, slope = _functions(highest, slow, fast, _complex(time) * split)
    # value + slope (Z - slow), with Z = t [[0, 1/tau], [-rate, -1/tau]] and slow + fast = -t/tau. Eigenvalues are real
    # or a conjugate pair, so imaginary parts are rounding errors.
    return Responses(
        (value - slope * slow[None]).real,
        slope.real * (time / tau),
        -slope.real * (time * rates)[None],
        (value + slope * fast[None]).real,
    )


def _functions(
    highest: int, slow: Complex[Array, " modes"], fast: Complex[Array, " modes"], half: Complex[Array, " modes"]
) -> tuple[Complex[Array, "k modes"], Complex[Array, "k modes"]]:
    """phi_k(slow), and (phi_k(slow) - phi_k(fast))/(slow - fast), where `half` is (slow - fast)/2.

    No real part is positive, and |slow| <= |fast| up to rounding. XLA may recompute |z|^2 where it is reused and round
    it differently, so both formulas must be accurate for values that are on either side of the border.
    """
    near, both_near = (_square(z) < _NEAR**2 for z in (slow, fast))
    hardly, both_hardly = (_square(z) < 2 * _NEAR**2 for z in (slow, fast))
    early = _polynomial(_taylor(highest), jnp.where(hardly, slow, 0), jnp.where(both_hardly, fast, 0))
    # Elsewhere the recursion phi_(k-1)(z) = z phi_k(z) + 1/(k-1)! and its divided difference, phi_k(slow) + fast
    # phi_k[slow, fast] (Leibniz).
    well, both_well = (_square(z) < _NEAR**2 / 2 for z in (slow, fast))
    far = jnp.where(well, -_NEAR, slow)
    fast, half = jnp.where(both_well, -_NEAR, fast), jnp.where(both_well, 0, half)
    values, slopes = [jnp.exp(far)], [_exponential(jnp.where(both_well, -_NEAR, slow), fast, half)]
    # Inputs of the branch that is not chosen are replaced before it is evaluated: a NaN there would spoil derivatives.
    over_far, over_fast = _inverse(far), _inverse(fast)
    for k in range(1, highest + 1):
        values.append((values[-1] - 1 / math.factorial(k - 1)) * over_far)
        slopes.append((slopes[-1] - jnp.where(near, early[0][k], values[k])) * over_fast)
    return jnp.where(near[None], early[0], jnp.stack(values)), jnp.where(both_near[None], early[1], jnp.stack(slopes))


def _exponential(
    slow: Complex[Array, " modes"], fast: Complex[Array, " modes"], half: Complex[Array, " modes"]
) -> Complex[Array, " modes"]:
    """The divided difference of exp: exp((slow + fast)/2) sinh(half)/half."""
    size = _square(half)
    small, large = jnp.where(size < 2, half, 0), jnp.where(size < 0.5, 1, half)
    (ratio,), _ = _polynomial(_SINH, small**2, small)  # the divided difference is not used
    # Near half = 0 the quotient of differences would cancel; far from it sinh(half) could overflow although both
    # exponentials are small.
    return jnp.where(
        size < 1, jnp.exp((slow + fast) / 2) * ratio, (jnp.exp(slow) - jnp.exp(fast)) / 2 * _inverse(large)
    )


def _root(x: Float[Array, " modes"]) -> Complex[Array, " modes"]:
    """The complex square root of a real number; a general complex root compiles to a hundred operations."""
    root = jnp.sqrt(jnp.abs(x))
    return jax.lax.complex(jnp.where(x > 0, root, 0), jnp.where(x > 0, 0, root))


def _complex(x: Float[Array, "..."]) -> Complex[Array, "..."]:
    return jax.lax.complex(x, jnp.zeros_like(x))


def _square(z: Complex[Array, " modes"]) -> Float[Array, " modes"]:
    """|z|^2, which compiles faster than |z|."""
    return z.real**2 + z.imag**2


def _inverse(z: Complex[Array, " modes"]) -> Complex[Array, " modes"]:
    """1/z; complex division is slow to compile."""
    return jax.lax.complex(z.real / _square(z), -z.imag / _square(z))


def _polynomial(
    coefficients: np.ndarray, one: Complex[Array, " modes"], two: Complex[Array, " modes"]
) -> tuple[Complex[Array, "rows modes"], Complex[Array, "rows modes"]]:
    """Polynomials, one per row of coefficients: values at `one` and divided differences to `two`, by Horner."""

    def further(_: Any, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        value, slope, left = at
        # p(x) = x q(x) + c has p[one, two] = q(one) + two q[one, two]. Coefficients roll by, the highest first.
        return value * one[None] + left[:, -1:], slope * two[None] + value, jnp.roll(left, 1, axis=1)

    zero = jnp.zeros((len(coefficients), *one.shape), one.dtype)
    start = zero, zero, jnp.asarray(coefficients, one.dtype)
    value, slope, _ = jax.lax.fori_loop(0, coefficients.shape[1], further, start)
    return value, slope


def _taylor(highest: int) -> np.ndarray:
    """The Taylor coefficients of phi_0, phi_1, ...: 1/(j + k)!."""
    return np.array([[1 / math.factorial(j + k) for j in range(_TERMS)] for k in range(highest + 1)])


_SINH = np.array([[1 / math.factorial(2 * j + 1) for j in range(12)]])  # of sinh(x)/x, in x^2
