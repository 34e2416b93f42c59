"""Checks of kernels, targets and initial outputs: shapes, dtypes, symmetry and sign."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete, describe, require_finite, require_not_negative, require_settings


def read_targets(y: Any) -> Float[Array, "n out"]:
    """Targets of shape (n, c) with at least one row."""
    array = _floating(y, "y")
    if jnp.finfo(array.dtype).bits < 32:
        raise ValueError(f"y must be float32 or float64, got {describe(array)}; convert it with astype")
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"y must have shape (n, c), one row per training point, got {describe(array)}")
    return array


def read_start(start: Any, y: Float[Array, "n out"]) -> Float[Array, "n out"]:
    """The initial outputs, with the shape of y; None means 0."""
    if start is None:
        return jnp.zeros_like(y)
    return read_like(start, y.shape, "start", y)


def read_like(value: Any, shape: tuple[int, ...], name: str, like: Array) -> Array:
    """An array with this shape and the dtype of another."""
    array = _floating(value, name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {describe(array)}")
    if array.dtype != like.dtype:
        raise ValueError(f"{name} is {array.dtype}, the others are {like.dtype}; convert one of them with astype")
    return array


def read_ridge(ridge: Any, like: Array) -> Float[Array, ""]:
    """One number >= 0."""
    require_not_negative(ridge, "ridge")
    if jnp.shape(ridge) != ():
        raise ValueError(f"ridge must be one number, got {describe(ridge)}")
    return jnp.asarray(ridge, like.dtype)


def read_kernel(kernel: Any, y: Float[Array, "n out"], name: str = "kernel") -> Float[Array, "rows rows"]:
    """A symmetric kernel as a matrix: (n, n) if it is the same for every output, else (n, c, n, c) as (nc, nc)."""
    n, c = y.shape
    array = _floating(kernel, name)
    shape = (n, n) if array.ndim == 2 else (n, c, n, c)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {(n, n)} or {(n, c, n, c)} for targets {(n, c)}, got {array.shape}")
    matrix = read_like(array, shape, name, y).reshape(-1, n if array.ndim == 2 else n * c)
    require_symmetric(matrix, name)
    return matrix


def read_cross(cross: Any, rows: int, y: Float[Array, "n out"], name: str = "cross") -> Float[Array, "points rows"]:
    """The kernel between other points and the training points, as a matrix laid out like the training kernel."""
    n, c = y.shape
    array = _floating(cross, name)
    m = array.shape[0] if array.ndim else 0
    # With rows = n c the training kernel mixes outputs, so the cross kernel needs blocks as well.
    diagonal = array.ndim == 2 and rows == n
    shape = (m, n) if diagonal else (m, c, n, c)
    if array.shape != shape or (not diagonal and rows != n * c):
        wanted = f"(m, {n})" if rows == n else f"(m, {c}, {n}, {c})"
        raise ValueError(f"{name} must have shape {wanted} like the kernel it was built with, got {array.shape}")
    return read_like(array, shape, name, y).reshape(-1, rows)


def spread(kernel: Float[Array, "n m"], outputs: int) -> Float[Array, "n out m out"]:
    """A kernel that is the same for every output, with output axes."""
    return kernel[:, None, :, None] * jnp.eye(outputs, dtype=kernel.dtype)[None, :, None, :]


def tolerance(dtype: Any) -> float:
    """The share of the largest entry or eigenvalue up to which asymmetry or negative eigenvalues are rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.5


def require_positive(values: Float[Array, " rows"], name: str = "kernel") -> None:
    """Raises ValueError if a concrete kernel has an eigenvalue that is negative beyond rounding; `values` ascend."""
    known = concrete(values)
    if known is None or np.isnan(known).any():
        return
    if known[0] < -tolerance(known.dtype) * np.max(np.abs(known)):
        raise ValueError(
            f"{name} is not positive semi-definite: its smallest eigenvalue is {known[0]:.3g}, its largest "
            f"{known[-1]:.3g}. Pass a kernel between a set of points and itself, such as an NTK or NNGP kernel."
        )


def require_symmetric(matrix: Array, name: str, *, finite: bool = True) -> None:
    """Raises ValueError if a concrete matrix is not symmetric up to rounding, or, with `finite`, not finite."""
    if finite:
        require_finite(matrix, name)
    known = concrete(matrix)
    if known is None or known.size == 0 or not np.all(np.isfinite(known)):
        return
    difference = np.max(np.abs(known - known.T))
    if difference > tolerance(known.dtype) * np.max(np.abs(known)):
        raise ValueError(
            f"{name} must be symmetric; the largest difference between it and its transpose is {difference:.3g}. "
            "Its rows and columns must be the same points in the same order."
        )


def _floating(value: ArrayLike | Any, name: str) -> Array:
    require_settings(value, name)
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be an array of real numbers, got {describe(value)}") from error
    if not jnp.issubdtype(array.dtype, jnp.floating) or jnp.finfo(array.dtype).bits < 32:
        raise ValueError(f"{name} must be float32 or float64, got {describe(array)}; convert it with astype")
    return array
