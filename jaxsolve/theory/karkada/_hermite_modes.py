r"""Eigenvalues and eigenfunctions of a rotation-invariant kernel on data whose covariance is known.

Karkada, Turnbull, Liu and Simon, "Predicting kernel regression learning curves from only raw data statistics".
"""

import heapq
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ..._checks import concrete, describe, require_size
from .._arguments import as_floats


def hermite_modes(
    variances: Float[ArrayLike, " d"], coefficients: Float[ArrayLike, " levels"], count: int
) -> Int[np.ndarray, "modes d"]:
    r"""The degrees $\alpha$ of the modes of a rotation-invariant kernel with the largest eigenvalues, largest first.

    On Gaussian data with covariance eigenvalues $\gamma_i$, of a kernel whose levels are $c_\ell$, eigenvalues and
    eigenfunctions are close to

    $$\lambda_\alpha = c_{|\alpha|} \prod_i \gamma_i^{\alpha_i}, \quad
      h_\alpha(x) = \prod_i h_{\alpha_i}(z_i), \quad |\alpha| = \sum_i \alpha_i,$$

    with the normalized Hermite polynomials $h_k$ and the data $z$ in units of their deviations along principal
    components. So covariance and kernel decide which polynomials are learned first: `hermite_eigenvalues` go
    into `js.theory.kernel_regression_error`, with the target's coefficients along `hermite_functions`.

    It holds in the limit of many dimensions and of levels that fall fast. Of a Gaussian kernel of width w it is known
    by how much it is missed: with $R = \sum_i \gamma_i/w^2$ and the effective dimension
    $d = (\sum_i \gamma_i)^2/\sum_i \gamma_i^2$, the first eigenvalue is too small by the share $3R^2/(2d)$, each degree
    in direction i adds $2\gamma_i/w^2$ to that of a mode, and the sum of all is too large by $R^2/(2d)$. At R = 1 modes
    of degree 2 are off by 6 % at d = 40, and by half at d = 10. What the sum of the eigenvalues of the modes taken
    lacks to the mean of k(x, x) acts as a ridge: add it.

    Arguments:
        variances: gamma_i >= 0, shape (d,), in any order.
        coefficients: c_l of the levels 0, 1, ..., as of `js.theory.level_coefficients`. A level whose coefficient is
            not positive has no modes.
        count: the number of modes; there are fewer where no more have a positive eigenvalue.

    Returns:
        Degrees, an array of NumPy, as it is known before anything runs, shape (modes, d). Only what is returned, and
        its neighbors, are looked at: 10000 modes of 3000 dimensions take 3 s.

    Example:
        >>> variances, coefficients = jnp.array([0.6, 0.3, 0.1]), jnp.array([0.5, 0.5, 0.5])
        >>> degrees = js.theory.hermite_modes(variances, coefficients, 4)
        >>> for alpha, eigenvalue in zip(degrees, js.theory.hermite_eigenvalues(degrees, variances, coefficients)):
        ...     print(alpha, f"{eigenvalue:.2f}")
        [0 0 0] 0.50
        [1 0 0] 0.30
        [2 0 0] 0.18
        [0 1 0] 0.15

    Reference:
        @inproceedings{karkada2026predicting, title={Predicting kernel regression learning curves from only raw data
          statistics}, author={Dhruva Karkada and Joseph Turnbull and Yuxi Liu and James B. Simon}, booktitle={ICLR},
          year={2026}, note={arXiv 2510.14878}}

    Raises:
        TypeError: an argument is traced, or count is no integer.
        ValueError: a shape is another one, a value is not finite, a variance is negative, or count is below 1.
    """
    count = require_size(count, "count")
    known = [concrete(_one_axis(value, name)) for value, name in _named(variances, coefficients)]
    if any(value is None for value in known):
        raise TypeError(
            "variances and coefficients must be known here, as they decide which modes come first: call hermite_modes "
            "outside of jit and grad, and give hermite_eigenvalues the traced ones"
        )
    gamma, levels = (np.asarray(value, np.float64) for value in known)
    if (gamma < 0).any():
        raise ValueError(f"variances must be >= 0, got {gamma.min()}")
    order = np.argsort(-gamma, kind="stable")
    falling = gamma[order]

    # A mode is the sorted tuple of its factors' places, the place of the largest variance first. To move one factor to
    # the next place is not to make it larger: so the next largest is always among the neighbors of those taken.
    waiting: list[tuple[float, tuple[int, ...]]] = []
    met = set()

    def meet(mode: tuple[int, ...]) -> None:
        eigenvalue = float(levels[len(mode)] * np.prod(falling[list(mode)]))
        if eigenvalue > 0 and mode not in met:
            met.add(mode)
            heapq.heappush(waiting, (-eigenvalue, mode))

    for level in range(len(levels)):
        meet((0,) * level)
    found = []
    while waiting and len(found) < count:
        _, mode = heapq.heappop(waiting)
        found.append(mode)
        for i, place in enumerate(mode):
            last = i + 1 == len(mode) or mode[i + 1] > place
            if last and place + 1 < len(falling):
                meet((*mode[:i], place + 1, *mode[i + 1 :]))
    degrees = np.zeros((len(found), len(gamma)), int)
    for row, mode in zip(degrees, found, strict=True):
        np.add.at(row, order[list(mode)], 1)
    return degrees


def hermite_eigenvalues(
    degrees: Int[ArrayLike, "modes d"], variances: Float[ArrayLike, " d"], coefficients: Float[ArrayLike, " levels"]
) -> Float[Array, " modes"]:
    r"""The eigenvalues $c_{|\alpha|} \prod_i \gamma_i^{\alpha_i}$ of modes. Variances and coefficients may be traced.

    Arguments:
        degrees: alpha of each mode, as of `js.theory.hermite_modes`.
        variances: gamma_i, shape (d,).
        coefficients: c_l, shape (levels,).

    Example:
        >>> degrees = js.theory.hermite_modes(jnp.array([0.75, 0.25]), jnp.array([0.5, 0.5]), 3)
        >>> print(js.theory.hermite_eigenvalues(degrees, jnp.array([0.75, 0.25]), jnp.array([0.5, 0.5])))
        [0.5   0.375 0.125]

    Raises:
        TypeError: degrees are traced.
        ValueError: shapes do not fit, a value is not finite, or a degree has no level.
    """
    gamma, levels = (_one_axis(value, name) for value, name in _named(variances, coefficients))
    degrees = _known_degrees(degrees, gamma.size)
    if degrees.sum(1).max(initial=0) >= levels.size:
        raise ValueError(f"modes of degree {degrees.sum(1).max()} need as many levels and one more, got {levels.size}")
    places, powers = _factors(degrees)
    dtype = jnp.result_type(gamma, levels)
    factors = gamma.astype(dtype)[places] ** jnp.asarray(powers, dtype)
    return levels.astype(dtype)[degrees.sum(1)] * jnp.prod(factors, axis=1)


def hermite_functions(z: Float[ArrayLike, "n d"], degrees: Int[ArrayLike, "modes d"]) -> Float[Array, "n modes"]:
    r"""The functions $h_\alpha(z) = \prod_i h_{\alpha_i}(z_i)$ at points: products of normalized Hermite polynomials.

    Over $z \sim N(0, I)$ they are orthonormal. Over other data they are nearly so at best: take coefficients of a
    target along the columns Q of their QR decomposition, in which earlier modes come first.

    Arguments:
        z: the data along their principal components, in units of their deviations, ordered as the variances; (n, d).
        degrees: alpha of each mode, as of `js.theory.hermite_modes`.

    Example:
        >>> z = jnp.array([[0.0, 1.0], [2.0, 1.0]])
        >>> print(js.theory.hermite_functions(z, jnp.array([[0, 0], [1, 1], [2, 0]])).round(3))
        [[ 1.     0.    -0.707]
         [ 1.     2.     2.121]]

    Raises:
        TypeError: degrees are traced.
        ValueError: shapes do not fit, or a value is not finite.
    """
    z = as_floats(z, "z")
    if z.ndim != 2:
        raise ValueError(f"z must have the shape (n, d), got {describe(z)}")
    degrees = _known_degrees(degrees, z.shape[1])
    table = [jnp.ones_like(z), z]
    for k in range(1, degrees.max(initial=0)):
        table.append((z * table[k] - k**0.5 * table[k - 1]) / (k + 1) ** 0.5)
    polynomials = jnp.stack(table)
    product = jnp.ones((len(z), len(degrees)), z.dtype)
    for places, powers in zip(*(part.T for part in _factors(degrees)), strict=True):
        product = product * polynomials[powers, :, places].T
    return product


def _named(variances: Any, coefficients: Any) -> tuple[tuple[Any, str], tuple[Any, str]]:
    return (variances, "variances"), (coefficients, "coefficients")


def _one_axis(value: Any, name: str) -> Float[Array, " n"]:
    array = as_floats(value, name)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} must be at least one number, along one axis, got {describe(value)}")
    return array


def _known_degrees(degrees: Any, dimensions: int) -> Int[np.ndarray, "modes d"]:
    known = concrete(degrees)
    if known is None:
        raise TypeError(f"degrees must be known before anything runs, got {describe(degrees)} that is traced")
    if known.ndim != 2 or known.shape[1] != dimensions or known.dtype.kind not in "iu" or (known < 0).any():
        raise ValueError(f"degrees must be integers >= 0 of the shape (modes, {dimensions}), got {describe(degrees)}")
    return known


def _factors(degrees: Int[np.ndarray, "modes d"]) -> tuple[Int[np.ndarray, "modes k"], Int[np.ndarray, "modes k"]]:
    """The places of a mode's nonzero degrees, and these; zeros fill up, and count for nothing."""
    most = int(np.count_nonzero(degrees, axis=1).max(initial=0))
    places = np.argsort(degrees == 0, axis=1, kind="stable")[:, :most]
    return places, np.take_along_axis(degrees, places, axis=1)
