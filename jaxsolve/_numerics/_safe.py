"""Functions with correct limits, and with finite derivatives at these limits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """True if all numbers in a tree are finite."""
    # 0 times a number is 0 if the number is finite, else NaN; a sum is faster than a reduction of booleans.
    return jnp.all(jnp.stack([jnp.isfinite(jnp.sum(0 * leaf)) for leaf in jax.tree.leaves(tree)]))


def safe_product(zero: Array, infinite: Array) -> Array:
    """A product in which an exact zero wins over an infinity."""
    # Both factors are replaced before they meet: 0 times inf is NaN, and so is its derivative.
    return jnp.where(zero == 0, 0, zero * jnp.where(zero == 0, 1, infinite))


def kept_product(zero: Array, infinite: Array) -> Array:
    """A product like `safe_product`, in which a zero times a finite factor keeps its derivative."""
    endless = jnp.isinf(infinite)
    return jnp.where(endless, safe_product(zero, infinite), zero * jnp.where(endless, 0, infinite))


def nonzero(value: Array) -> Array:
    return jnp.where(value == 0, 1, value)


def magnitude(value: Array) -> Array:
    """|value|, with derivative 1 at 0, for a branch `value >= 0` that is smooth there."""
    return jnp.where(value >= 0, value, -value)


def squares_over(vector: Array, weights: Array) -> Array:
    """The sum of vector^2 / weights over the entries with weights > 0."""
    return jnp.sum(jnp.where(weights > 0, vector**2 / nonzero(weights), 0))


def safe_sqrt(value: Array) -> Array:
    """The square root, with derivative 0 at 0."""
    return jnp.where(value == 0, 0, jnp.sqrt(nonzero(value)))


def scaled(array: Array) -> tuple[Array, Array]:
    """An array divided by its largest magnitude, and that magnitude: squares then neither overflow nor vanish."""
    largest = jnp.max(jnp.abs(array))
    # Constant under differentiation: callers multiply it back in, or it cancels.
    size = jax.lax.stop_gradient(nonzero(jnp.where(jnp.isinf(largest), 1, largest)))
    return array / size, size


def norm(array: Array) -> Array:
    """The Frobenius norm without overflow, with derivative 0 at 0."""
    one, size = scaled(array)
    return size * safe_sqrt(jnp.sum(one**2))


def unit(array: Array) -> Array:
    """An array over its Frobenius norm; NaN for zeros, which have no direction."""
    one, _ = scaled(array)
    return one / safe_sqrt(jnp.sum(one**2))


def safe_hypot(one: Array, two: Array) -> Array:
    """sqrt(one^2 + two^2) without overflow, with derivative 0 at 0; inf if either is infinite."""
    large = jnp.maximum(jnp.abs(one), jnp.abs(two))
    infinite = jnp.isinf(large)
    scale = jax.lax.stop_gradient(nonzero(jnp.where(infinite, 1, large)))
    one, two = (jnp.where(infinite, 0, side) for side in (one, two))
    return jnp.where(infinite, jnp.inf, scale * safe_sqrt((one / scale) ** 2 + (two / scale) ** 2))


def tanhc(x: Array) -> Array:
    """tanh(x)/x for x >= 0."""
    near = x < 1e-2
    small, large = jnp.where(near, x, 0), jnp.where(near, 1, x)
    # The next term, 1382/155925 x^10, is below 1e-22 here.
    series = 1 - small**2 / 3 + 2 * small**4 / 15 - 17 * small**6 / 315 + 62 * small**8 / 2835
    decay = jnp.expm1(-2 * large)
    # tanh(x) = (1 - E)/(1 + E) with E = exp(-2 x) = 1 + decay.
    return jnp.where(near, series, -decay / (2 + decay) / large)
