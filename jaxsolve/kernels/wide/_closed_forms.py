r"""Closed forms of averages of activations over two correlated Gaussians, and tests that classify activations.

Each form takes the standard deviations $s_u$, $s_v$ and the correlation $\rho$, and gives $E[\phi(u) \phi(v)]$ and
$E[\phi'(u) \phi'(v)]$. The sine of the angle is $\sqrt{(1 - \rho)(1 + \rho)}$: a difference such as $s_u^2 s_v^2 - c^2$
would lose digits for large features.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._numerics import safe_sqrt
from ...nets import Activation, erf, gelu


Pair = tuple[Array, Array]
ClosedForm = Callable[[Array, Array, Array], Pair]

_MAX_DEGREE = 8  # powers of `_SIZES` up to this one stay within the range of floats
_SIZES = np.geomspace(1e-30, 1e30, 1931)
_LINE = 0.00731 + 0.0101 * np.arange(3000)


class Homogeneous(NamedTuple):
    """phi(z) = plus z^degree for z > 0, minus (-z)^degree for z < 0, `origin` at 0."""

    degree: int
    minus: float
    plus: float
    origin: float


@functools.cache
def homogeneous(phi: Activation) -> Homogeneous | None:
    """The degree and the factors of a positively homogeneous function; None for any other function.

    Values and derivatives (which may have custom rules) are compared to 1e-12 at 5000 points of either sign, from 1e-30
    to 1e30.
    """
    x = np.concatenate([_SIZES, _LINE, [1.0, 2.0]])
    compiled = _compiled(phi, np.concatenate([x, -x]))
    sides = [np.split(part, 2) for part in compiled(np.concatenate([x, -x]))]
    found = []  # degree, factor
    for values, slopes, sign in ((sides[0][0], sides[1][0], 1), (sides[0][1], sides[1][1], -1)):
        # The last points are 1 and 2: phi(1) is the factor, and phi(2)/phi(1) = 2^degree.
        one, two = values[-2:]
        ratio = two / one if one else 0.0
        degree = int(np.log2(ratio).round()) if 1 <= 2 * ratio <= 2 ** (_MAX_DEGREE + 1) else -1
        if one and not 0 <= degree <= _MAX_DEGREE:
            return None
        power = max(degree, 0)
        lines = one * x**power, sign * power * one * x ** (power - 1.0)
        if not all(
            np.allclose(part, line, rtol=1e-12, atol=0) for part, line in zip((values, slopes), lines, strict=True)
        ):
            return None
        found.append((degree, float(one)))
    degrees = {degree for degree, one in found if one}
    if len(degrees) > 1:
        return None
    degree = degrees.pop() if degrees else 1
    origin = float(compiled(np.zeros_like(np.concatenate([x, x])))[0][0])
    # 0^degree is 0 for a positive degree. A step may take any value at 0, as do points without variance.
    if not np.isfinite(origin) or (degree and origin):
        return None
    return Homogeneous(degree, found[1][1], found[0][1], origin)


@functools.cache
def jumps(phi: Activation) -> bool:
    """True if a function has a jump: its derivative kernel is then infinite, whatever automatic differentiation gives.

    Bisects the intervals between 10000 points, keeping the half over which the function changes more, down to rounding.
    """
    half = np.sort(np.concatenate([_SIZES[_SIZES < 1e4], _LINE]))
    points = np.concatenate([-half[::-1], half])
    low, high = points[:-1], points[1:]
    compiled = _compiled(phi, low)
    value = lambda z: compiled(z)[0]
    ends = np.abs(np.stack([value(low), value(high)]))
    scale = np.maximum(np.max(ends[0][np.abs(low) <= 1]), ends.max(axis=0))
    with np.errstate(invalid="ignore"):
        for _ in range(60):
            middle = (low + high) / 2
            below, at, above = value(low), value(middle), value(high)
            left = np.abs(at - below) > np.abs(above - at)
            low, high = np.where(left, low, middle), np.where(left, middle, high)
        # Over intervals of rounding size a continuous function changes by rounding; a jump remains.
        return bool(np.any(np.abs(value(high) - value(low)) > 1e-6 * scale))


def _compiled(phi: Activation, like: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Values and derivatives in double precision, concrete inside any transformation (as in `Activation.gain`)."""
    both = lambda z: jax.jvp(phi, (z,), (jnp.ones_like(z),))
    with jax.enable_x64(True):
        program = jax.jit(both).lower(like).compile()

    def run(z):
        with jax.enable_x64(True), np.errstate(all="ignore"):
            values, slopes = program(z)
            return np.asarray(values, np.float64), np.asarray(slopes, np.float64)

    return run


def closed_form(phi: Activation) -> ClosedForm | None:
    """The closed form of an activation; None if none is known here."""
    if phi == erf:
        return _erf
    if phi == gelu:
        return _gelu
    found = homogeneous(phi)
    return None if found is None else functools.partial(_arc_cosine, found)


def _arc_cosine(phi: Homogeneous, one: Array, two: Array, rho: Array) -> Pair:
    """The arc-cosine kernels of Cho and Saul 2009, for two slopes."""
    # J_{k+1} = (2k + 1) cos J_k + k^2 sin^2 J_{k-1}: E[u^k v^k; u, v > 0] = J_k(angle) / 2 pi at unit variance.
    towers = [_tower(sign * rho, phi.degree) for sign in (1, -1)]

    def average(degree, minus, plus):
        # u and v of equal signs are at the angle, of opposite signs at pi minus the angle: the two towers.
        factor = (plus**2 + minus**2) / (2 * np.pi), plus * minus / np.pi
        return (one * two) ** degree * (factor[0] * towers[0][degree] + factor[1] * towers[1][degree])

    k = phi.degree
    values = average(k, phi.minus, phi.plus)
    if k:
        # The derivative of minus (-z)^k is -k minus (-z)^(k - 1): homogeneous again, one degree lower.
        return values, average(k - 1, -k * phi.minus, k * phi.plus)
    # A point without variance has phi(0), any other the mean of both signs; the average is the product of the means.
    means = (jnp.where(s == 0, phi.origin, (phi.minus + phi.plus) / 2) for s in (one, two))
    still = (one == 0) | (two == 0)
    return jnp.where(still, functools.reduce(jnp.multiply, means), values), jnp.zeros_like(values)


def _tower(rho: Array, degree: int) -> list[Array]:
    square = (1 - rho) * (1 + rho)
    sine = safe_sqrt(square)
    rest = jnp.arctan2(sine, -rho)  # pi minus the angle
    found = [rest, sine + rest * rho]
    for k in range(1, degree):
        found.append((2 * k + 1) * rho * found[k] + k**2 * square * found[k - 1])
    return found


def _erf(one: Array, two: Array, rho: Array) -> Pair:
    """Williams 1997, with the correlation r = 2 c / sqrt((1 + 2 s_u^2)(1 + 2 s_v^2))."""
    (p, q), (a, b) = _shares(2 * one**2), _shares(2 * two**2)
    r = jnp.sqrt(2.0) * one * safe_sqrt(p) * jnp.sqrt(2.0) * two * safe_sqrt(a) * rho
    root = jnp.sqrt(p * a + q * a + p * b + q * b * (1 - rho) * (1 + rho))  # sqrt(1 - r^2)
    return 2 / np.pi * jnp.arctan2(r, root), 4 / np.pi * jnp.sqrt(p * a) / root


def _gelu(one: Array, two: Array, rho: Array) -> Pair:
    """Tsuchida, Pearce, van der Heide, Roosta and Gallagher 2020, with r = c / sqrt((1 + s_u^2)(1 + s_v^2))."""
    (p, q), (a, b) = _shares(one**2), _shares(two**2)
    covariance = one * two * rho
    r = covariance * jnp.sqrt(p * a)
    root = jnp.sqrt(p * a + q * a + p * b + q * b * (1 - rho) * (1 + rho))  # sqrt(1 - r^2)
    delta = root / jnp.sqrt(p * a)
    above = 0.25 + jnp.arctan2(r, root) / (2 * np.pi)
    values = q * b * (rho**2 / delta + delta) / (2 * np.pi) + covariance * above
    return values, above + r / root * (1 / delta**2 + p + a) / (2 * np.pi)


def _shares(variance: Array) -> Pair:
    """1 / (1 + v) and v / (1 + v)."""
    return 1 / (1 + variance), variance / (1 + variance)
