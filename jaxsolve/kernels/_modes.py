r"""Functions of a kernel matrix that a gradient flow makes of it, through one eigen-decomposition.

With $K = V \Lambda V^\top$ on n samples and $\mu = \lambda/n + \rho$ the rates of the flow, they are
$h(K) = \frac1n \int_0^t e^{-(K/n + \rho) s} ds$, whose eigenvalues are $t\,\varphi_1(-\mu t)/n$, and $K h(K)$.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from .._phi import finite_product, integrated_decay


class Modes(eqx.Module):
    """A positive semi-definite matrix and its eigen-decomposition, which has no derivative of its own.

    Eigenvalues of at most rows * eps times the largest are rounding: those modes count as null space.
    """

    matrix: Float[Array, "rows rows"]
    values: Float[Array, " rows"]
    vectors: Float[Array, "rows rows"]

    @staticmethod
    def of(matrix: Float[Array, "rows rows"]) -> "Modes":
        """Decomposes a symmetric matrix; only its lower triangle is read."""
        values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(matrix), symmetrize_input=False)
        return Modes(matrix, values, vectors)

    @property
    def kept(self) -> Bool[Array, " rows"]:
        """The modes outside the null space."""
        return kept_modes(self.values)

    @property
    def rank(self) -> Int[Array, ""]:
        """The number of modes outside the null space."""
        return jnp.sum(self.kept)

    def integral(
        self, target: Float[Array, "rows columns"], t: Float[Array, ""], ridge: Float[Array, ""], samples: int
    ) -> Float[Array, "rows columns"]:
        """h(K) on the columns of `target`, 0 on the null space."""
        return _apply(False, samples, self.matrix, self.values, self.vectors, target, t, ridge)

    def response(
        self, target: Float[Array, "rows columns"], t: Float[Array, ""], ridge: Float[Array, ""], samples: int
    ) -> Float[Array, "rows columns"]:
        """K h(K) on the columns of `target`: what a flow from 0 has learnt of them at time t."""
        return _apply(True, samples, self.matrix, self.values, self.vectors, target, t, ridge)


def kept_modes(values: Float[Array, " rows"]) -> Bool[Array, " rows"]:
    """Which eigenvalues (ascending) of a positive semi-definite matrix are more than rounding."""
    return values > values.shape[0] * jnp.finfo(values.dtype).eps * values[-1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _apply(times_kernel: bool, samples: int, matrix, values, vectors, target, t, ridge) -> Array:
    del matrix
    return _formula(times_kernel, samples, values, vectors, target, t, ridge)


def _formula(times_kernel: bool, samples: int, values, vectors, target, t, ridge) -> Array:
    weights, _ = _weights(times_kernel, samples, values, t, ridge)
    return vectors @ (weights[:, None] * (vectors.T @ target))


@functools.partial(_apply.defjvp, symbolic_zeros=True)
def _apply_jvp(times_kernel: bool, samples: int, primals, tangents):
    _, values, vectors, target, t, ridge = primals
    moved, _, _, *others = tangents
    function = functools.partial(_formula, times_kernel, samples, values, vectors)
    value, tangent = _jvp(function, (target, t, ridge), others)
    if not isinstance(moved, SymbolicZero):
        # Daleckii and Krein: divided differences in place of the eigenvectors' derivatives, which do not exist where
        # eigenvalues are equal.
        differences = _divided_differences(times_kernel, samples, values, t, ridge)
        change = differences * (vectors.T @ moved @ vectors)
        tangent = tangent + vectors @ (change @ (vectors.T @ target))
    return value, tangent


def _jvp(function: Any, primals: tuple[Any, ...], tangents: list[Any]) -> tuple[Array, Array]:
    """`jax.jvp` in those arguments that move."""
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]
    if not moving:
        value = function(*primals)
        return value, jnp.zeros_like(value)

    def reduced(*changed):
        full = list(primals)
        for i, argument in zip(moving, changed, strict=True):
            full[i] = argument
        return function(*full)

    return jax.jvp(reduced, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))


def _weights(times_kernel: bool, samples: int, values, t, ridge) -> tuple[Array, Array]:
    """The eigenvalues of h(K), or of K h(K), and of K/n + ridge."""
    kept = kept_modes(values)
    share = jnp.where(kept, values, 0) / samples
    rate = jnp.where(kept, share + ridge, 1)
    return integrated_decay(rate, t) * (share if times_kernel else jnp.where(kept, 1 / samples, 0)), rate


def _divided_differences(times_kernel: bool, samples: int, values, t, ridge) -> Array:
    """(w_i - w_j)/(lambda_i - lambda_j) of the weights w, without cancellation, also where eigenvalues are equal.

    The null space stays null: with it w = 0 at lambda = 0.
    """
    kept = kept_modes(values)
    integral, rate = _weights(False, samples, values, t, ridge)
    ordered = jnp.where(kept, values, 0)
    both, one = kept[:, None] & kept[None, :], kept[:, None] | kept[None, :]
    large = jnp.maximum(ordered[:, None], ordered[None, :])
    to_null = jnp.maximum(integral[:, None], integral[None, :]) / jnp.where(one, large, 1)
    of_integral = jnp.where(both, _second_integral(rate, t) / samples**2, jnp.where(one, to_null, 0))
    if not times_kernel:
        return of_integral
    # The product rule, (lambda h)[i, j] = lambda_i h[i, j] + h_j; the side of the larger eigenvalue cancels least.
    of_small = jnp.where(values[:, None] < values[None, :], integral[:, None], integral[None, :])
    return large * of_integral + of_small


def _second_integral(rate: Array, t: Array) -> Array:
    """(g(a) - g(b))/(a - b) with g(a) the integral of exp(-a s) from 0 to t, for all pairs of rates > 0."""
    a = jnp.maximum(rate[:, None], rate[None, :])
    b = jnp.minimum(rate[:, None], rate[None, :])
    near = finite_product(a, t) < 1
    x, y, early = jnp.where(near, a * t, 0), jnp.where(near, b * t, 0), jnp.where(near, t, 0)
    # -t^2 sum_m (-1)^m/(m + 2)! times the sum of x^j y^(m - j)
    power = symmetric = jnp.ones_like(x)
    total, factor = jnp.zeros_like(x), 0.5
    for m in range(18):  # x, y < 1, so the next term is below the rounding of float64
        total = total + factor * symmetric
        power = power * y
        symmetric = x * symmetric + power
        factor = -factor / (m + 3)
    finite = jnp.where(jnp.isinf(t), 1, t)
    left = jnp.where(jnp.isinf(t), 0, jnp.exp(-b * finite) * integrated_decay(a - b, finite))
    far = (left - integrated_decay(b, t)) / jnp.where(near, 1, a)
    return jnp.where(near, -(early**2) * total, far)
