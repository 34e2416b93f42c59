r"""The functions of a kernel matrix that solve gradient flow, from one eigendecomposition.

With $K = V \Lambda V^\top$ on n samples and the flow's rates $\mu = \lambda/n + \rho$, they are $h(K) = \frac1n
\int_0^t e^{-(K/n + \rho) s} ds$, whose eigenvalues are $t\,\varphi_1(-\mu t)/n$, and $K h(K)$.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Int

from ..._numerics import finite_product, integrated_decay, nonzero, norm, safe_product


# Eigenvalues below the rounding error count as 0. The rank is clear if none lies within this factor above it.
CLEAR = 100.0


class Eigenmodes(eqx.Module):
    """A positive semi-definite matrix and its eigendecomposition, which is not differentiated itself.

    The decomposition is in double precision, whatever the dtype of the matrix. The flow at late times depends on small
    eigenvalues, which single precision gives only to eps times the largest, although the matrix resolves many better.
    Eigenvalues up to `rounding_error` count as null space.
    """

    matrix: Float[Array, "rows rows"]
    values: Float[Array, " rows"]
    vectors: Float[Array, "rows rows"]

    @staticmethod
    def of(matrix: Float[Array, "rows rows"]) -> "Eigenmodes":
        """Decomposes a symmetric matrix; only its lower triangle is read."""
        return Eigenmodes(matrix, *eigh(matrix))

    @property
    def kept(self) -> Bool[Array, " rows"]:
        """The modes outside the null space."""
        return kept_modes(self.values)

    @property
    def rank(self) -> Int[Array, ""]:
        """The number of modes outside the null space."""
        return jnp.sum(self.kept)

    def spectrum(self, gap: Float[Array, "rows columns"]) -> "Spectrum":
        """The spectrum, with the shares of the columns of `gap` in it."""
        return Spectrum(self.values, jnp.sum((self.vectors.T @ (gap / nonzero(norm(gap)))) ** 2, axis=1))

    def integral(
        self, target: Float[Array, "rows columns"], t: Float[Array, ""], ridge: Float[Array, ""], samples: int
    ) -> Float[Array, "rows columns"]:
        """h(K) applied to the columns of `target`; it is 0 on the null space."""
        return _apply(False, samples, self.matrix, self.values, self.vectors, target, t, ridge)

    def response(
        self, target: Float[Array, "rows columns"], t: Float[Array, ""], ridge: Float[Array, ""], samples: int
    ) -> Float[Array, "rows columns"]:
        """K h(K) applied to the columns of `target`: the outputs of a flow from 0 toward them at time t."""
        return _apply(True, samples, self.matrix, self.values, self.vectors, target, t, ridge)


class Spectrum(eqx.Module):
    """Eigenvalues, ascending, and the share of the initial loss that lies on each."""

    values: Float[Array, " rows"]
    shares: Float[Array, " rows"]

    def unresolved(self, t: Float[Array, ""], ridge: Float[Array, ""], samples: int) -> Float[Array, ""]:
        """The share of the initial loss for which rounding hides whether it is left at time t.

        An eigenvalue is known up to half of `rounding_error`. In the null space it may be anything from 0 to all of
        `rounding_error`, unless the rank is clear: then it is 0.
        """
        error, kept = rounding_error(self.values), kept_modes(self.values)
        clear = ~jnp.any(kept & (self.values <= CLEAR * error))
        least = jnp.where(kept, self.values - error / 2, 0)
        most = jnp.where(kept, self.values, jnp.where(clear, 0, error))

        def left(values: Array) -> Array:
            share = values / samples
            return (1 - safe_product(share, integrated_decay(share + ridge, t))) ** 2

        return jnp.sum(self.shares * jnp.abs(left(least) - left(most)))

    def error(self, t: Float[Array, ""], ridge: Float[Array, ""], samples: int) -> Float[Array, ""]:
        """The error from rounding of the kernel in outputs at time t, relative to their initial gap to the targets.

        To first order, a change dK of norm `rounding_error` mixes each mode with every other, in proportion to the
        difference of their remaining shares over the difference of their eigenvalues; the slowest mode differs most. A
        mode in the null space may be learned as fast as the rounding error would learn it, unless the rank is clear.
        """
        error, kept = rounding_error(self.values), kept_modes(self.values)
        clear = ~jnp.any(kept & (self.values <= CLEAR * error))
        slowest = jnp.min(jnp.where(kept, self.values, 0))  # 0 if there is a null space
        above = jnp.where(kept, self.values - slowest, 0)
        rate = slowest / samples + ridge
        # (exp(-rate t) - exp(-rate_k t))/(rate_k - rate); with a ridge, at most 1/(rate rate_k) stays.
        faster = safe_product(jnp.exp(-finite_product(rate, t)), integrated_decay(above / samples, t))
        stays = safe_product(ridge, integrated_decay(rate, t) * integrated_decay(above / samples + rate, t))
        mixed = error / samples * (faster + stays)
        hidden = jnp.where(clear, 0, safe_product(error / samples, integrated_decay(error / samples + ridge, t)))
        # A mode is off by at most its whole gap.
        each = jnp.where(kept, jnp.minimum(mixed, 1), hidden)
        return jnp.sqrt(jnp.sum(self.shares * each**2))


def eigh(
    matrix: Float[Array, "*batch rows rows"],
) -> tuple[Float[Array, "*batch rows"], Float[Array, "*batch rows rows"]]:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices, found in float64 and rounded to their dtype.

    Only lower triangles are read. Derivatives are stopped.
    """
    with jax.enable_x64(True):
        double = jax.lax.convert_element_type(jax.lax.stop_gradient(matrix), jnp.float64)
        found = jnp.linalg.eigh(double, symmetrize_input=False)
        values, vectors = (jax.lax.convert_element_type(part, matrix.dtype) for part in found)
    return values, vectors


def rounding_error(values: Float[Array, " rows"]) -> Float[Array, ""]:
    """The size below which eigenvalues (ascending) of a positive semi-definite matrix cannot be told from 0.

    It is the largest of three errors. Entries are rounded independently, by some eps: as a random matrix, this has the
    norm eps |K|_F/sqrt(rows), or a few times that if the entries come from long sums. The decomposition itself errs by
    a few eps of float64 times the largest eigenvalue. And a negative eigenvalue shows an error, which positive ones may
    share.
    """
    entries = 4 * float(jnp.finfo(values.dtype).eps) * norm(values) / values.shape[0] ** 0.5
    decomposition = 4 * float(np.finfo(np.float64).eps) * jnp.max(jnp.abs(values))
    return jnp.maximum(jnp.maximum(entries, decomposition), -2 * values[0])


def kept_modes(values: Float[Array, " rows"]) -> Bool[Array, " rows"]:
    """True for the eigenvalues (ascending) of a positive semi-definite matrix that are more than rounding."""
    return values > rounding_error(values)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _apply(times_kernel: bool, samples: int, matrix, values, vectors, target, t, ridge) -> Array:
    # `matrix` is an argument only for its tangent, which `_apply_jvp` uses: the decomposition has none.
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
        # Daleckii and Krein: divided differences replace the derivatives of eigenvectors, which do not exist where
        # eigenvalues are equal.
        differences = _divided_differences(times_kernel, samples, values, t, ridge)
        change = differences * (vectors.T @ moved @ vectors)
        tangent = tangent + vectors @ (change @ (vectors.T @ target))
    return value, tangent


def _jvp(function: Any, primals: tuple[Any, ...], tangents: list[Any]) -> tuple[Array, Array]:
    """`jax.jvp` with respect to the arguments that have a tangent."""
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
    # 1 replaces the rates of the null space, whose weight is 0: a rate of 0 has an infinite integral at t = inf.
    rate = jnp.where(kept, share + ridge, 1)
    return integrated_decay(rate, t) * (share if times_kernel else jnp.where(kept, 1 / samples, 0)), rate


def _divided_differences(times_kernel: bool, samples: int, values, t, ridge) -> Array:
    """(w_i - w_j)/(lambda_i - lambda_j) for the weights w, without cancellation, even where eigenvalues are equal.

    The null space stays null: w = 0 at lambda = 0.
    """
    kept = kept_modes(values)
    integral, rate = _weights(False, samples, values, t, ridge)
    ordered = jnp.where(kept, values, 0)
    both, one = kept[:, None] & kept[None, :], kept[:, None] | kept[None, :]
    large = jnp.maximum(ordered[:, None], ordered[None, :])
    # If one of the two is null, its lambda and w are 0, which leaves w/lambda of the other.
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
    # For a t < 1 the difference of integrals cancels and a power series does not; else take the closed form below.
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
    # a (g(a) - g(b)) = exp(-b t) - exp(-a t) - (a - b) g(b), divided by a (a - b). The first difference over a - b is
    # exp(-b t) times the integral of exp(-(a - b) s), which stays finite at a = b.
    left = jnp.where(jnp.isinf(t), 0, jnp.exp(-b * finite) * integrated_decay(a - b, finite))
    far = (left - integrated_decay(b, t)) / jnp.where(near, 1, a)
    return jnp.where(near, -(early**2) * total, far)
