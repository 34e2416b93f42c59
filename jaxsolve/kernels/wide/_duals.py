r"""Averages over two correlated Gaussians of products of an activation, and of its derivative.

$E[\phi(u) \phi(v)] = \sum_k c_k(s_u) c_k(s_v) \rho^k$ with $c_k(s) = E[\phi(s z) h_k(z)]$ for standard deviations
$s_u$, $s_v$, correlation $\rho$ and the normalized Hermite polynomials $h_k$ (Mehler's formula; Daniely et al. 2016).
The integrals are one-dimensional, one per point and not per pair of points. They are cheaper and far more accurate than
a two-dimensional Gauss-Hermite rule, also for steep activations, and are defined where a variance is 0.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._numerics import nonzero, safe_sqrt


_TERMS = 256  # terms of the series in the correlation; `expand` lists the errors
# The trapezoidal rule converges exponentially for a Gaussian weight, which is below 1e-36 beyond 13.
_STEP, _END = 0.025, 13.0
_OTHERS = (0.0437, 12.7), (0.0331, 12.7)  # step and end of the rules that it is compared with


Sides = tuple[tuple[int, ...], tuple[int, ...]]


class HermiteExpansion(NamedTuple):
    """Coefficients of phi(s z) and phi'(s z), one row per power of the correlation.

    The last two rows are the norms of the remainders of the truncated series, of the even and of the odd part. They
    make the result exact at correlations of 1 and -1 for any activation.
    """

    values: Float[Array, "terms ..."]
    slopes: Float[Array, "terms ..."]


def expand(phi: Callable[[Array], Array], deviation: Float[Array, "..."]) -> HermiteExpansion:
    """The expansion of an activation at points with these standard deviations.

    The largest relative errors in float64, at correlations from 0.5 to 1 and s = 1 / 3 / 10, are 5e-13 / 2e-9 / 1e-4
    for E[phi phi] of tanh and 5e-13 / 3e-8 / 2e-6 of softplus(5), and 5e-13 / 3e-7 / 1e-2 and 3e-11 / 1e-5 / 1e-3 for
    E[phi' phi'].
    """
    nodes, weights, table = (jnp.asarray(array, deviation.dtype) for array in _rule())
    z = jnp.tensordot(deviation, nodes, 0)
    values, slopes = jax.jvp(phi, (z,), (jnp.ones_like(z),))
    return HermiteExpansion(_coefficients(values, weights, table), _coefficients(slopes, weights, table))


def dual(
    one: Float[Array, "terms ..."], two: Float[Array, "terms ..."], correlation: Float[Array, "..."], sides: Sides
) -> Float[Array, "..."]:
    """sum_k one_k two_k correlation^k; `sides` are the axes of the correlation that each of the two lacks."""

    def horner(total, pair):
        a, b = (jnp.expand_dims(row, axes) for row, axes in zip(pair, sides, strict=True))
        return total * correlation + a * b, None

    return jax.lax.scan(horner, jnp.zeros_like(correlation), (one, two), reverse=True, unroll=6)[0]


def doubt(
    phi: Callable[[Array], Array],
    deviations: tuple[Float[Array, "..."], Float[Array, "..."]],
    points: Sequence[HermiteExpansion],
    correlation: Float[Array, "..."],
    sides: Sides,
    *,
    slopes: bool,
) -> Float[Array, ""]:
    """An estimate of the largest error of `dual`, relative to the product of the roots of both second moments.

    For the integrals, it is twice (once per factor) the change under coarser rules that end earlier, at up to 16 of the
    deviations. There are two such rules, since a kink may lie alike between the nodes of one and of the rule itself.
    For the series, the remainders with norms R_u and R_v are summed at another power of the correlation than their own.
    This error is at most R_u R_v |rho|^terms. For equal deviations, whose remainders are equal, it is at most 2
    sqrt(terms (1 - |rho|)) of that, since the tail falls no slower than for a jump.

    Arguments:
        slopes: whether to include the derivative.
    """
    kinds = range(2 if slopes else 1)
    few = jnp.sort(jnp.concatenate([s.ravel() for s in deviations]))
    # Evenly spread over the sorted deviations, including the smallest and the largest.
    few = few[np.unique(np.linspace(0, few.size - 1, 16).round().astype(int))]
    first, *others = (_low(phi, few, *rule) for rule in ((_STEP, _END), *_OTHERS))
    integrals = [functools.reduce(jnp.maximum, [_change(first[k], other[k]) for other in others]) for k in kinds]

    one, two = (jnp.expand_dims(s, axes) for s, axes in zip(deviations, sides, strict=True))
    size = jnp.abs(correlation)
    # The bound for equal deviations, plus the difference of the two deviations, once per term.
    apart = 2 * safe_sqrt(jnp.maximum(_TERMS * (1 - size), 0)) + _TERMS * jnp.abs(one - two) / nonzero(
        jnp.maximum(one, two)
    )
    share = size**_TERMS * jnp.minimum(apart, 1)
    total = jnp.zeros((), correlation.dtype)
    for kind in kinds:
        rests = [jnp.expand_dims(_rest_share(p[kind]), axes) for p, axes in zip(points, sides, strict=True)]
        total = jnp.maximum(total, 2 * integrals[kind] + jnp.max(rests[0] * rests[1] * share))
    return jax.lax.stop_gradient(total)


def _low(phi: Callable[[Array], Array], deviation: Float[Array, " n"], step: float, end: float) -> list[Array]:
    """The first 64 coefficients of phi(s z) and of phi'(s z), followed by the second moment."""
    nodes, weights, table = (jnp.asarray(array, deviation.dtype) for array in _rule(step, end, 64))
    z = jnp.tensordot(deviation, nodes, 0)
    both = jax.jvp(phi, (z,), (jnp.ones_like(z),))
    return [jnp.concatenate([table @ part.T, (weights @ part.T**2)[None]]) for part in both]


def _change(one: Float[Array, "rows n"], two: Float[Array, "rows n"]) -> Float[Array, ""]:
    """The largest relative change between two rules, of the norm of the coefficients or of half the second moment."""
    size = nonzero(jnp.abs(one[-1]))
    change = safe_sqrt(jnp.sum((two - one)[:-1] ** 2, axis=0) / size)
    # Half, since the relative change of a square is twice the change of its root.
    return jnp.max(jnp.maximum(change, jnp.abs(two[-1] - one[-1]) / (2 * size)))


def _rest_share(rows: Float[Array, "terms ..."]) -> Float[Array, "..."]:
    """The norm of the remainder of the series, relative to the norm of the whole."""
    total = jnp.sum(rows**2, axis=0)
    return safe_sqrt(jnp.sum(rows[-2:] ** 2, axis=0) / nonzero(total))


@functools.cache
def _rule(step: float = _STEP, end: float = _END, terms: int = _TERMS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, their Gaussian weights, and weights times h_k."""
    count = round(end / step)
    z = step * (np.arange(-count, count) + 0.5)  # no node at 0, where activations have kinks
    weights = np.exp(-(z**2) / 2) * step / np.sqrt(2 * np.pi)
    # An explicit recursion: NumPy's polynomials are not normalized, and k! overflows beyond 170.
    # h_(k+1) = (z h_k - sqrt(k) h_(k-1))/sqrt(k + 1).
    hermite = [np.ones_like(z), z]
    for k in range(1, terms - 1):
        hermite.append((z * hermite[k] - np.sqrt(k) * hermite[k - 1]) / np.sqrt(k + 1))
    return z, weights, weights * np.stack(hermite)


def _coefficients(f: Float[Array, "... nodes"], weights: Array, table: Array) -> Float[Array, "terms ..."]:
    known = jnp.einsum("...q,kq->k...", f, table)
    # The nodes are symmetric, so this is phi(-s z). Even and odd parts have the even and the odd coefficients.
    mirrored = f[..., ::-1]
    parts = ((f + mirrored) / 2, known[0::2]), ((f - mirrored) / 2, known[1::2])
    # The remainders take the powers `_TERMS` (even) and `_TERMS` + 1 (odd), so that signs at correlation -1 are right.
    return jnp.concatenate([known, jnp.stack([_rest(part, weights, rows) for part, rows in parts])])


def _rest(part: Float[Array, "... nodes"], weights: Array, rows: Float[Array, "terms ..."]) -> Float[Array, "..."]:
    # By Parseval, the second moment minus the squared coefficients is the squared norm of the remainder.
    total = part**2 @ weights
    rest = total - jnp.sum(rows**2, axis=0)
    # A difference of nearly equal numbers: below this it is rounding, whose root would not be small.
    rounding = 100 * jnp.finfo(rest.dtype).eps * total
    return safe_sqrt(jnp.where(rest > rounding, rest, 0))
