"""Inputs drawn at random, with targets from a teacher.

These functions can be jitted, mapped over the key, the scale and the noise, and differentiated with respect to scale,
noise and teacher. Training samples do not depend on the number of test samples. Arrays have the default float dtype.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Real, Shaped

from .._checks import (
    concrete,
    describe,
    is_real,
    one_number,
    real_array,
    require_finite,
    require_flag,
    require_key,
    require_size,
)
from .._numerics import require_room
from ._dataset import Dataset


def matmul(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """The product a @ b in full precision: accelerators would otherwise round float32 factors to a shorter format."""
    return jnp.matmul(a, b, precision="highest")


def covariance_root(covariance: Any, in_size: int) -> Float[Array, "d d"]:
    """A matrix L with L L^T = covariance.

    Args:
        covariance: eigenvalues >= 0, shape `(d,)`, or a symmetric positive definite matrix, shape `(d, d)`.
        in_size: d.

    Raises:
        TypeError: `covariance` is not an array of real numbers.
        ValueError: it has another shape, or it is concrete and has entries that are not finite, has a negative
            eigenvalue, or is a matrix that is not symmetric and positive definite.
    """
    array = real_array(covariance, "covariance").astype(jnp.result_type(float))
    shape = array.shape
    if shape not in ((in_size,), (in_size, in_size)):
        raise ValueError(
            f"covariance must be eigenvalues of shape ({in_size},) or a matrix of shape ({in_size}, {in_size}), "
            f"got shape {shape}"
        )
    require_finite(covariance, "covariance")
    known = concrete(covariance)
    if len(shape) == 1:
        if known is not None and np.any(known < 0):
            raise ValueError(f"covariance has a negative eigenvalue, {known.min()}; eigenvalues must be >= 0")
        return jnp.diag(jnp.sqrt(array))
    if known is not None:
        if not np.allclose(known, known.T, rtol=1e-5, atol=1e-6 * np.abs(known).max()):
            raise ValueError(
                f"covariance must be symmetric; it differs from its transpose by {np.abs(known - known.T).max()}"
            )
        smallest, largest = np.linalg.eigvalsh(known)[[0, -1]]
        # Rounding turns the zero eigenvalues of a singular matrix into numbers of about this size, of either sign.
        if smallest <= 10 * in_size * jnp.finfo(array.dtype).eps * largest:
            raise ValueError(
                f"covariance must be positive definite, but its eigenvalues go from {smallest} to {largest}; for a "
                "degenerate covariance give the eigenvalues, shape (d,), zeros included"
            )
    return jnp.linalg.cholesky(array)


_Pair: TypeAlias = tuple[Float[Array, "n d"], Float[Array, "n c"]]


def line(
    n_train: int,
    in_size: int,
    *,
    n_test: int = 0,
    target: Callable[[Float[Array, ""]], Any] = lambda a: a,
    direction: Real[ArrayLike, "..."] | None = None,
    scale: Real[ArrayLike, ""] = 1.0,
    noise: Real[ArrayLike, ""] = 0.0,
    key: PRNGKeyArray,
) -> Dataset:
    """Points x = a u on a line through the origin, a ~ N(0, scale^2), with targets y = target(a) + noise N(0, 1).

    `js.theory.TwoLayerLine` is exact for these inputs.

    Args:
        n_train: number of training samples, at least 1.
        in_size: input dimension d, at least 1.
        target: function of the scalar a, returning a scalar or shape `(c,)`; the identity by default.
        key: random key, new style or legacy.

    Other Arguments:
        n_test: number of test samples, drawn like the training samples; 0 for no test set.
        direction: vector along u, shape `(d,)`, normalized to length 1; None draws it uniformly.
        scale: standard deviation of a, > 0.
        noise: standard deviation of the noise on training and test targets, >= 0.

    Returns:
        A Dataset with x of shape `(n, d)` and y of shape `(n, c)`.

    Example:
        >>> data = js.data.line(20, 3, direction=jnp.array([1.0, 0.0, 0.0]), key=jax.random.key(0))
        >>> data.x.shape, bool(jnp.all(data.y == data.x[:, :1]))
        ((20, 3), True)

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range or has the wrong shape, or the targets are not finite.
    """
    sizes = _sizes(n_train, n_test, in_size, key)
    dtype = jnp.result_type(float)
    scale, noise = one_number(scale, "scale"), one_number(noise, "noise", zero=True)
    key_direction, *keys = jax.random.split(key, 5)
    if direction is None:
        u = jax.random.normal(key_direction, (in_size,), dtype)
    else:
        known = concrete(direction)
        if known is not None and not is_real(known):
            raise TypeError(f"direction must be a vector of real numbers, got {describe(direction)}")
        if jnp.shape(direction) != (in_size,) or (known is not None and not known.any()):
            zero = "" if jnp.shape(direction) != (in_size,) else " of zeros"
            raise ValueError(
                f"direction must be a nonzero vector of shape ({in_size},), got {describe(direction)}{zero}"
            )
        require_finite(direction, "direction")
        u = jnp.asarray(direction, dtype)
    u = u / jnp.linalg.norm(u)

    def sample(n: int, key_x: PRNGKeyArray, key_noise: PRNGKeyArray) -> _Pair:
        a = scale * jax.random.normal(key_x, (n,), dtype)
        return a[:, None] * u[None, :], _targets(target, "target", a, noise, key_noise)

    test = sample(n_test, *keys[2:]) if n_test else ()
    return Dataset(*sample(n_train, *keys[:2]), *test, source=f"line: {sizes}")


def gaussian(
    n_train: int,
    in_size: int,
    out_size: int | None = None,
    *,
    n_test: int = 0,
    covariance: Real[ArrayLike, "..."] | None = None,
    whitened: bool = False,
    teacher: Real[ArrayLike, "..."] | None = None,
    noise: Real[ArrayLike, ""] = 0.0,
    key: PRNGKeyArray,
) -> Dataset:
    """Inputs x ~ N(0, covariance) with targets y = x @ teacher + noise N(0, 1).

    Args:
        n_train: number of training samples, at least 1.
        in_size: input dimension d, at least 1.
        out_size: output dimension c; None takes it from `teacher`, or 1 without a teacher.
        teacher: matrix of shape `(d, c)`; None draws its entries from N(0, 1/d).
        key: random key, new style or legacy.

    Other Arguments:
        n_test: number of test samples, from the same covariance; 0 for no test set.
        covariance: eigenvalues >= 0 of a diagonal covariance, shape `(d,)`, or a symmetric positive definite matrix,
            shape `(d, d)`; None is the identity. (A traced matrix that is not positive definite gives NaN.)
        whitened: make X^T X / n of the *training* inputs exactly the identity: X / sqrt(n) is then uniform on the
            matrices with orthonormal columns. Needs `n_train >= in_size` and excludes `covariance`. Test inputs
            are N(0, I).
        noise: standard deviation of the noise on training and test targets, >= 0.

    Returns:
        A Dataset with x of shape `(n, d)` and y of shape `(n, c)`.

    Example:
        >>> data = js.data.gaussian(20, 2, whitened=True, key=jax.random.key(0))
        >>> bool(jnp.allclose(data.x.T @ data.x / 20, jnp.eye(2), atol=1e-5))
        True

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range or has the wrong shape, `out_size` contradicts `teacher`, or
            `whitened` is impossible.
    """
    sizes = _sizes(n_train, n_test, in_size, key)
    dtype = jnp.result_type(float)
    noise = one_number(noise, "noise", zero=True)
    require_flag(whitened, "whitened")
    if whitened and covariance is not None:
        raise ValueError("whitened=True fixes the covariance of the training inputs; give it without covariance=")
    if whitened and n_train < in_size:
        raise ValueError(
            f"whitened=True needs n_train >= in_size for X^T X / n = I, got n_train={n_train} and in_size={in_size}"
        )
    # Every possible draw has its own key, so no draw depends on which others are made.
    key_teacher, *keys = jax.random.split(key, 5)
    weights = _teacher_matrix(teacher, in_size, out_size, key_teacher)
    root = None if covariance is None else covariance_root(covariance, in_size)

    def sample(n: int, key_x: PRNGKeyArray, key_noise: PRNGKeyArray, *, white: bool) -> _Pair:
        x = jax.random.normal(key_x, (n, in_size), dtype)
        if white:
            q, r = jnp.linalg.qr(x)
            # QR fixes columns only up to their signs; with those of R's diagonal, Q is uniformly distributed.
            x = q * jnp.where(jnp.diag(r) < 0, -math.sqrt(n), math.sqrt(n)).astype(dtype)[None, :]
        elif root is not None:
            x = matmul(x, root.T)
        return x, _targets(lambda one: matmul(one, weights), "teacher", x, noise, key_noise)

    test = sample(n_test, *keys[2:], white=False) if n_test else ()
    source = f"{'whitened ' if whitened else ''}gaussian: {sizes}"
    return Dataset(*sample(n_train, *keys[:2], white=whitened), *test, source=source)


def teacher_student(
    teacher: Callable[[Float[Array, " d"]], Any],
    in_size: int,
    n_train: int,
    *,
    n_test: int = 0,
    sphere: bool = False,
    noise: Real[ArrayLike, ""] = 0.0,
    key: PRNGKeyArray,
) -> Dataset:
    """Inputs N(0, I), or uniform on the unit sphere, with targets y = teacher(x) + noise N(0, 1).

    Args:
        teacher: any function of one sample `(d,)`, returning a scalar or shape `(c,)`, such as a network.
        in_size: input dimension d, at least 1.
        n_train: number of training samples, at least 1.
        n_test: number of test samples, drawn like the training samples; 0 for no test set.
        sphere: draw inputs uniformly on the sphere |x| = 1.
        noise: standard deviation of the noise on training and test targets, >= 0.
        key: random key, new style or legacy.

    Returns:
        A Dataset with x of shape `(n, d)` and y of shape `(n, c)`.

    Example:
        >>> data = js.data.teacher_student(lambda x: jnp.sin(x[0]), 3, 20, n_test=5, key=jax.random.key(0))
        >>> data
        Dataset(train: x f...[20,3], y f...[20,1]; test: x f...[5,3], y f...[5,1]; source: teacher_student: ...)

    Raises:
        TypeError: a count is not an integer, or `key` is not a key.
        ValueError: an argument is outside its range, or the teacher returns another shape, or values that are not
            finite.
    """
    sizes = _sizes(n_train, n_test, in_size, key)
    noise = one_number(noise, "noise", zero=True)
    require_flag(sphere, "sphere")
    if not callable(teacher):
        raise TypeError(f"teacher must be a function of one sample, got {describe(teacher)}")
    keys = jax.random.split(key, 4)

    def sample(n: int, key_x: PRNGKeyArray, key_noise: PRNGKeyArray) -> _Pair:
        x = jax.random.normal(key_x, (n, in_size), jnp.result_type(float))
        # The normal distribution is isotropic, so directions are uniform on the sphere.
        x = x / jnp.linalg.norm(x, axis=1, keepdims=True) if sphere else x
        return x, _targets(teacher, "teacher", x, noise, key_noise)

    test = sample(n_test, *keys[2:]) if n_test else ()
    source = f"teacher_student{' on the unit sphere' if sphere else ''}: {sizes}"
    return Dataset(*sample(n_train, *keys[:2]), *test, source=source)


def _sizes(n_train: int, n_test: int, in_size: int, key: PRNGKeyArray) -> str:
    """The sizes in words, after checks of the arguments that all three functions share."""
    require_size(n_train, "n_train")
    require_size(n_test, "n_test", least=0)
    require_size(in_size, "in_size")
    require_key(key)
    require_room((n_train + n_test) * in_size * jnp.dtype(jnp.result_type(float)).itemsize, "this dataset", key)
    return f"{n_train} training and {n_test} test samples in {in_size} dimensions"


def _targets(
    teacher: Callable[[Array], Any], name: str, x: Float[Array, "n ..."], noise: Float[Array, ""], key: PRNGKeyArray
) -> Float[Array, "n c"]:
    def one(sample: Float[Array, "..."]) -> Shaped[Array, " c"]:
        y = jnp.asarray(teacher(sample), x.dtype)
        if y.ndim > 1:
            raise ValueError(f"{name} must return a scalar or an array of shape (c,) for one sample, got {y.shape}")
        return jnp.atleast_1d(y)

    try:
        y = jax.vmap(one)(x)
    except jax.errors.JAXTypeError:
        raise  # the teacher branches on its sample: JAX's own message explains this better
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if str(error).startswith(f"{name} must return"):
            raise
        raise ValueError(f"{name} cannot take one sample, an array of shape {x.shape[1:]}: {error}") from error
    if concrete(noise) == 0:  # saves compiling the draw
        return y
    return y + noise * jax.random.normal(key, y.shape, y.dtype)


def _teacher_matrix(teacher: Any, in_size: int, out_size: int | None, key: PRNGKeyArray) -> Float[Array, "d c"]:
    if out_size is not None:
        require_size(out_size, "out_size")
    if teacher is None:
        shape = (in_size, 1 if out_size is None else out_size)
        # For inputs N(0, I), each target then has variance 1 on average over teachers.
        return jax.random.normal(key, shape, jnp.result_type(float)) / math.sqrt(in_size)
    known = concrete(teacher)
    if known is not None and not is_real(known):
        raise TypeError(f"teacher must be a matrix of real numbers, got {describe(teacher)}")
    shape = jnp.shape(teacher)
    if len(shape) != 2 or shape[0] != in_size or shape[1] == 0 or (out_size is not None and shape[1] != out_size):
        wanted = f"({in_size}, {'c' if out_size is None else out_size})"
        raise ValueError(f"teacher must be a matrix of shape {wanted} (in_size, out_size), got shape {shape}")
    require_finite(teacher, "teacher")
    return jnp.asarray(teacher, jnp.result_type(float))
