"""Affine maps of the inputs, fitted on the training set: principal components, whitening, standardization.

With X the (centered) n x d training inputs, X / sqrt(n) = U diag(s) V^T. Variances are averages over n, not n - 1.

A direction is null when its s is at most `10 sqrt(min(n, d)) eps` times the largest singular value of the uncentered
inputs (the mean's length is added in quadrature), where eps is the rounding unit of the inputs' dtype. Rounding alone
gives an empty direction an s of this size. Nothing is divided by such an s.

The linear algebra of concrete inputs runs in float64 NumPy, whatever their dtype. Traced inputs (inside jit or vmap)
keep their dtype, and asking for more than their rank gives NaN instead of an exception. Fitting principal components
or whitening costs one QR and one SVD: O(n d^2) operations, about ten seconds at d = 3072.
"""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from .._checks import concrete, describe, is_real, real_array, require_finite, require_flag, require_size


class Affine(eqx.Module):
    """The map x -> (x - mean) @ matrix, with mean of shape `(d,)` and matrix of shape `(d, k)`.

    Example:
        >>> half = js.data.Affine(mean=jnp.ones(2), matrix=jnp.eye(2) / 2)
        >>> half(jnp.array([1.0, 3.0])).tolist()
        [0.0, 1.0]

    Raises:
        TypeError, ValueError: mean or matrix is not an array of real numbers, or has another shape.
    """

    mean: Float[Array, " d"]
    matrix: Float[Array, "d k"]

    def __init__(self, mean: Float[Array, " d"], matrix: Float[Array, "d k"]):
        self.mean, self.matrix = real_array(mean, "mean"), real_array(matrix, "matrix")
        if self.mean.ndim != 1 or self.matrix.ndim != 2 or self.matrix.shape[0] != self.mean.shape[0]:
            raise ValueError(
                f"mean and matrix must have shapes (d,) and (d, k), got {self.mean.shape} and {self.matrix.shape}"
            )

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n k"]:
        """Maps one sample `(d,)` to `(k,)`, or `(n, d)` to `(n, k)`.

        Raises:
            ValueError: `x` has another shape.
        """
        if x.ndim not in (1, 2) or x.shape[-1] != self.mean.shape[0]:
            d = self.mean.shape[0]
            raise ValueError(f"this transform takes inputs of shape ({d},) or (n, {d}), got {x.shape}")
        centered = x - (self.mean if x.ndim == 1 else self.mean[None, :])
        # By default, accelerators multiply float32 matrices in lower precision.
        return jnp.matmul(centered, self.matrix, precision="highest")


class AbstractTransform(eqx.Module):
    """A rule that turns training inputs into a `js.data.Affine` map. To define one, implement `fit`.

    Example:
        >>> class Center(js.data.AbstractTransform):
        ...     def fit(self, x):
        ...         return js.data.Affine(x.mean(0), jnp.eye(x.shape[1], dtype=x.dtype))
        >>> data = js.data.Dataset(jnp.array([[0.0, 1.0], [4.0, 3.0]]), jnp.eye(2)).transform(Center())
        >>> data.x.tolist()
        [[-2.0, -1.0], [2.0, 1.0]]
    """

    @abc.abstractmethod
    def fit(self, x: Float[Array, " n *shape"]) -> Affine:
        """Fits the map to training inputs of shape `(n, d)`; raises ValueError if that is impossible."""


class PCA(AbstractTransform):
    """See `pca`."""

    k: int = eqx.field(static=True)  # a shape
    standardize: bool = eqx.field(static=True)  # a branch

    def fit(self, x: Float[Array, " n *shape"]) -> Affine:
        """The leading `k` directions of `x`; raises ValueError if its rank is smaller than `k`."""
        return _leading(x, self.k, standardize=self.standardize, center=True, asked=f"pca(k={self.k})")


class Whiten(AbstractTransform):
    """See `whiten`."""

    rank: int | None = eqx.field(static=True)  # a shape
    center: bool = eqx.field(static=True)  # a branch

    def fit(self, x: Float[Array, " n *shape"]) -> Affine:
        """All directions of `x` that are not null, or its leading `rank`; raises ValueError if there are fewer."""
        asked = f"whiten(rank={self.rank})"
        return _leading(x, self.rank, standardize=True, center=self.center, asked=asked)


class PartialWhiten(AbstractTransform):
    """See `partial_whiten`."""

    power: Real[ArrayLike, ""]
    center: bool = eqx.field(static=True)  # a branch

    def fit(self, x: Float[Array, " n *shape"]) -> Affine:
        """V diag(s^-power) V^T over the directions of `x` that are not null."""
        components = _principal_components(x, self.center)
        s, v = jnp.asarray(components.s, x.dtype), jnp.asarray(components.v, x.dtype)
        kept = jnp.asarray(components.kept)
        # The inner `where` avoids powers of 0: their derivative with respect to the power is NaN, even when masked.
        factor = jnp.where(kept, jnp.where(kept, s, 1) ** (-jnp.asarray(self.power, x.dtype)), 0)
        matrix = jnp.matmul(v * factor[None, :], v.T, precision="highest")
        return Affine(jnp.asarray(components.mean, x.dtype), matrix)


class Standardize(AbstractTransform):
    """See `standardize`."""

    def fit(self, x: Float[Array, " n *shape"]) -> Affine:
        """The mean and the inverse standard deviation of each feature of `x`, zero for a constant feature."""
        xp, z = _flat(x)
        mean, z = _centered(z)
        std = xp.sqrt((z**2).mean(0))
        constant = std <= 10 * float(jnp.finfo(x.dtype).eps) * xp.sqrt(std**2 + mean**2)
        factor = xp.where(constant, 0, 1 / xp.where(constant, 1, std))
        return Affine(jnp.asarray(mean, x.dtype), jnp.asarray(xp.diag(factor), x.dtype))


def pca(k: int, *, standardize: bool = True) -> AbstractTransform:
    """The `k` leading principal components of the training inputs, each of unit variance if `standardize`.

    Each component's sign is fixed by making its first entry of largest magnitude positive. (Components of equal
    variance are defined up to a rotation among themselves.)

    Args:
        k: number of components, at least 1.
        standardize: divide each component by its standard deviation on the training set.

    Returns:
        A transform from `(n, d)` to `(n, k)`; fitting it raises ValueError if the centered inputs' rank is below `k`.

    Example:
        >>> data = js.data.gaussian(20, 3, key=jax.random.key(0)).transform(js.data.pca(2))
        >>> bool(jnp.allclose((data.x**2).mean(0), 1, atol=1e-5))  # components of unit variance
        True

    Raises:
        TypeError: `k` is not an integer.
        ValueError: `k` is smaller than 1.
    """
    return PCA(require_size(k, "k"), standardize)


def whiten(rank: int | None = None, *, center: bool = True) -> AbstractTransform:
    """Makes X^T X / n the identity on the row space of the training inputs, in principal coordinates.

    The outputs are principal components in order of decreasing variance, each divided by its root mean square.
    Null directions (see the module's docstring) are dropped, so the output size is the rank of the inputs. The identity
    holds to about eps times the condition number of the directions kept.

    Args:
        rank: keep this many leading directions; None keeps all that are not null (concrete inputs only).
        center: subtract the training mean first.

    Returns:
        A transform from `(n, d)` to `(n, rank)`; fitting it raises ValueError if the inputs' rank is below `rank`.

    Example:
        >>> data = js.data.gaussian(20, 3, key=jax.random.key(0)).transform(js.data.whiten())
        >>> bool(jnp.allclose(data.x.T @ data.x / 20, jnp.eye(3), atol=1e-5))
        True

    Raises:
        TypeError: `rank` is neither None nor an integer.
        ValueError: `rank` is smaller than 1.
    """
    return Whiten(None if rank is None else require_size(rank, "rank"), center)


def partial_whiten(power: Real[ArrayLike, ""], *, center: bool = True) -> AbstractTransform:
    """Replaces each singular value s of X / sqrt(n) by s^(1 - power), in the original coordinates.

    Power 0 leaves the (centered) training inputs unchanged, and power 1 makes X^T X / n the projection onto their row
    space, which is the identity at full rank. Every power projects out null directions (see the module's docstring);
    only inputs outside the training set have components there. `power` may be traced.

    Args:
        power: between 0 and 1.
        center: subtract the training mean first.

    Returns:
        A transform from `(n, d)` to `(n, d)`.

    Example:
        >>> x = 2**0.5 * jnp.diag(jnp.array([16.0, 4.0]))  # X / sqrt(n) has the singular values 16 and 4
        >>> half = js.data.partial_whiten(0.5, center=False).fit(x)
        >>> print(jnp.diag(half(x) / 2**0.5).round(3))  # and now their square roots
        [4. 2.]

    Raises:
        ValueError: `power` is concrete and outside [0, 1], or not a scalar.
    """
    known = concrete(power)
    if known is not None and not is_real(known):
        raise TypeError(f"power must be a scalar in [0, 1], got {describe(power)}")
    require_flag(center, "center")
    if jnp.ndim(power) != 0 or (known is not None and not 0 <= known <= 1):
        shown = describe(power) if known is None or known.ndim else known
        raise ValueError(f"power must be a scalar in [0, 1] (0 leaves the inputs, 1 whitens them), got {shown}")
    return PartialWhiten(power, center)


def standardize() -> AbstractTransform:
    """Gives each feature of the training inputs mean zero and variance one.

    A feature that is constant on the training set carries no information and has no scale. It is mapped to zero, also
    in the test set, so the number of features stays the same. Constant means that the standard deviation is at most
    10 eps times the root mean square, where eps is the rounding unit of the inputs' dtype.

    Returns:
        A transform from `(n, d)` to `(n, d)`.

    Example:
        >>> js.data.standardize().fit(jnp.array([[0.0, 7.0], [4.0, 7.0]]))(jnp.array([4.0, 7.0])).tolist()
        [1.0, 0.0]
    """
    return Standardize()


class _PrincipalComponents(NamedTuple):
    """The mean (d,), descending singular values s (r,) of X / sqrt(n), directions v (d, r), and which are not null."""

    mean: Float[Any, " d"]
    s: Float[Any, " r"]
    v: Float[Any, "d r"]
    kept: Bool[Any, " r"]


def _flat(x: Float[Array, " n *shape"]) -> tuple[Any, Any]:
    """The array library to use (NumPy or JAX), and the inputs as its array (float64 if they are concrete)."""
    if x.ndim != 2:
        raise ValueError(f"transforms take flat inputs of shape (n, d), got {x.shape}; use x.reshape(len(x), -1) first")
    if x.size == 0:
        raise ValueError(f"a transform needs at least one sample and one feature, got inputs of shape {x.shape}")
    require_finite(x, "x")
    known = concrete(x)
    return (jnp, x) if known is None else (np, known.astype(np.float64))


def _centered(z: Any) -> tuple[Any, Any]:
    mean = z.mean(0)
    z = z - mean[None, :]
    # Rounding in a long sum leaves a remainder of a large mean, which would look like another direction: center twice.
    rest = z.mean(0)
    return mean + rest, z - rest[None, :]


def _principal_components(x: Float[Array, " n *shape"], center: bool) -> _PrincipalComponents:
    xp, z = _flat(x)
    n, d = z.shape
    mean, z = _centered(z) if center else (xp.zeros_like(z[0]), z)
    z = z / math.sqrt(n)
    if n > d:  # U is not needed, and the smaller triangular factor has the singular values and directions of X
        z = xp.linalg.qr(z, mode="r")
    _, s, vt = xp.linalg.svd(z, full_matrices=False)
    size = abs(vt)
    # The first entry within a margin of the largest: rounding must not choose between equal entries.
    pivot = xp.argmax(size >= (1 - 1e-4) * size.max(axis=1, keepdims=True), axis=1)
    v = (vt * xp.sign(xp.take_along_axis(vt, pivot[:, None], axis=1))).T
    rtol = 10 * math.sqrt(min(n, d)) * float(jnp.finfo(x.dtype).eps)
    return _PrincipalComponents(mean, s, v, s > rtol * xp.sqrt(s[0] ** 2 + (mean**2).sum()))


def _leading(x: Float[Array, " n *shape"], k: int | None, *, standardize: bool, center: bool, asked: str) -> Affine:
    components = _principal_components(x, center)
    kept = concrete(components.kept)
    given = f"the {x.shape[0]} x {x.shape[1]} training inputs{', centered,' if center else ''}"
    if kept is None and k is None:
        raise ValueError(
            f"{asked} takes its output size from the values of the inputs, so it cannot be fitted inside jit or vmap; "
            "give rank=, or fit it outside"
        )
    rank = len(components.s) if kept is None else int(kept.sum())
    if rank == 0:
        raise ValueError(f"{asked}: {given} are all zero up to rounding, so there is no direction to keep")
    k = rank if k is None else k
    if k > rank:
        raise ValueError(
            f"{asked}: {given} have rank {'at most ' if kept is None else ''}{rank}; ask for {rank} or fewer"
        )
    xp, s = (jnp if kept is None else np), components.s[:k]
    # The mask matters for traced inputs only: they cannot raise, so NaN marks a null direction.
    factor = xp.where(components.kept[:k], 1 / s if standardize else xp.ones_like(s), xp.nan)
    return Affine(jnp.asarray(components.mean, x.dtype), jnp.asarray(components.v[:, :k] * factor[None, :], x.dtype))
