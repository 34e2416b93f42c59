"""The trace and Frobenius norm of an operator that is known by its products with vectors."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..._checks import require_size
from ..._numerics import nonzero, safe_sqrt, scaled
from ._eigenpairs import products
from ._matrix_free import AbstractSymmetricOperator, check_operator


class Estimate(NamedTuple):
    """A random estimate.

    Attributes:
        value: the estimate.
        standard_error: its standard deviation, estimated from the samples. NaN for one sample.
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def estimate_trace(operator: AbstractSymmetricOperator, *, key: Key[Array, ""], n_products: int = 60) -> Estimate:
    """tr A by Hutch++ (Meyer, Musco, Musco & Woodruff 2021): unbiased, with an error of order 1/n_products if A >= 0.

    A third of the products finds a subspace Q with the large eigenvalues, and a third gives the exact trace on it. The
    last third estimates the rest of the trace by random vectors, the only source of error.

    Arguments:
        operator: a symmetric operator, such as `NTKOperator(net, x)`.
        key: random key of the random vectors.
        n_products: products with the operator, at least 3. Only multiples of 3 are used.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> operator = js.kernels.NTKOperator(net, jnp.eye(2))
        >>> found = js.kernels.estimate_trace(operator, key=jax.random.key(1))
        >>> exact = jnp.einsum("iaia->", js.kernels.empirical(net, jnp.eye(2)).ntk)
        >>> bool(jnp.allclose(found.value, exact)), float(found.standard_error) < 1e-5
        (True, True)

    Raises:
        ValueError: n_products is below 3.
        TypeError: n_products is not an integer, operator is not an operator, or key is not a key.
    """
    check_operator(operator, key)
    return _estimate_trace(operator, _share(n_products, 3), key)


def estimate_frobenius_norm(
    operator: AbstractSymmetricOperator, *, key: Key[Array, ""], n_products: int = 60
) -> Estimate:
    """|A| = sqrt(tr A^2), with the trace of A^2 by Hutch++ and an error of order 1/n_products.

    Half of the products finds the subspace. The rest needs one product per vector, not two: v^T A^2 v = |A v|^2.

    Arguments:
        operator: a symmetric operator, such as `NTKOperator(net, x)`.
        key: random key of the random vectors.
        n_products: products with the operator, at least 4. Only multiples of 4 are used.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> operator = js.kernels.NTKOperator(net, jnp.eye(2))
        >>> found = js.kernels.estimate_frobenius_norm(operator, key=jax.random.key(1))
        >>> bool(jnp.allclose(found.value, jnp.linalg.norm(js.kernels.empirical(net, jnp.eye(2)).ntk.ravel())))
        True

    Raises:
        ValueError: n_products is below 4.
        TypeError: n_products is not an integer, operator is not an operator, or key is not a key.
    """
    check_operator(operator, key)
    return _estimate_norm(operator, _share(n_products, 4), key)


def _share(n_products: int, parts: int) -> int:
    if require_size(n_products, "n_products") < parts:
        raise ValueError(f"n_products must be at least {parts}, got {n_products}")
    return n_products // parts


@eqx.filter_jit
def _estimate_trace(operator: AbstractSymmetricOperator, share: int, key: Key[Array, ""]) -> Estimate:
    inside, outside = _split(operator, share, 1, key)
    # tr A = tr Q^T A Q + tr P A P with P = 1 - Q Q^T; the random vectors estimate the second term.
    on = jnp.sum(inside * products(operator, inside))
    return _collect(on, jnp.sum(outside * products(operator, outside), axis=0))


@eqx.filter_jit
def _estimate_norm(operator: AbstractSymmetricOperator, share: int, key: Key[Array, ""]) -> Estimate:
    inside, outside = _split(operator, share, 2, key)
    on, off = products(operator, inside), products(operator, outside)
    # |A|^2 = |A Q|^2 + tr P A^2 P, with squares relative to one size, which cancels and so needs no derivative.
    size = jax.lax.stop_gradient(nonzero(jnp.maximum(jnp.max(jnp.abs(on)), jnp.max(jnp.abs(off)))))
    square = _collect(jnp.sum((on / size) ** 2), jnp.sum((off / size) ** 2, axis=0))
    value = safe_sqrt(square.value)
    # The error of a root to first order: d sqrt(s) = ds/(2 sqrt(s)).
    return Estimate(size * value, size * square.standard_error / (2 * nonzero(value)))


def _split(
    operator: AbstractSymmetricOperator, share: int, power: int, key: Key[Array, ""]
) -> tuple[Float[Array, "size inside"], Float[Array, "size share"]]:
    """An orthonormal basis Q of a range of A^power, and random signs without their part along Q."""
    _, _, dtype = operator.flat()
    fixed = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, operator)
    sketch, rest = jax.random.split(key)
    ranged = jax.random.normal(sketch, (operator.size, min(share, operator.size)), dtype)
    for _ in range(power):
        # Only the range counts, so each power is rescaled to avoid overflow.
        ranged, _ = scaled(products(fixed, ranged))
    basis, _ = jnp.linalg.qr(ranged)  # any Q serves, so its derivative is not needed
    signs = jax.random.rademacher(rest, (operator.size, share), dtype)
    off = signs - basis @ (basis.T @ signs)
    return basis, off - basis @ (basis.T @ off)  # twice, or rounding leaves a part along Q


def _collect(inside: Float[Array, ""], samples: Float[Array, " share"]) -> Estimate:
    return Estimate(inside + jnp.mean(samples), jnp.std(samples, ddof=1) / samples.size**0.5)
