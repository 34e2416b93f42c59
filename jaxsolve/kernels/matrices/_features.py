r"""Features whose inner products are a kernel: a flow of outputs becomes a flow of a linear model's parameters."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import real_array
from ._layout import as_matrix
from ._matrices import read_cross, read_kernel, require_positive
from ._modes import Eigenmodes, kept_modes


class Features(NamedTuple):
    """Features of every point, in one block per output, or one for all outputs if the kernel is the same for each.

    Attributes:
        train: features on the training points.
        others: features on the other points; None if there are none.
    """

    train: Float[Array, "n blocks features"]
    others: Float[Array, "m blocks features"] | None


def features(
    kernel: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
    cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"] | None = None,
) -> Features:
    r"""phi with phi(X) phi(X)^T = K and phi(x) phi(X)^T = k(x), with as many entries as K has rows.

    $\phi(X) = K^{1/2}$ and $\phi(x) = k(x) K^{-1/2}$; $K^{-1/2}$ vanishes on the null space. First derivatives in the
    kernel exist as long as its rank does not change.

    Arguments:
        kernel: kernel on the training points, (n, n) or (n, c, n, c).
        cross: kernel between other points and these, (m, n) or (m, c, n, c).

    Example:
        >>> kernel, cross = jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([[1.0, 0.5]])
        >>> found = js.kernels.features(kernel, cross)
        >>> train, others = found.train[:, 0], found.others[:, 0]
        >>> print((train @ train.T).round(3), (others @ train.T).round(3))
        [[2. 1.]
         [1. 2.]] [[1.  0.5]]

    Raises:
        ValueError: shapes or dtypes do not fit, or the kernel is not symmetric or not positive semi-definite.
    """
    array = real_array(kernel, "kernel")
    as_matrix(array)
    y = jnp.zeros((array.shape[0], array.shape[1] if array.ndim == 4 else 1), array.dtype)
    modes = Eigenmodes.of(read_kernel(array, y))
    require_positive(modes.values)
    rows = modes.values.shape[0]
    split = lambda matrix: matrix.reshape(-1, rows // y.shape[0], rows)
    train = split(_power(False, modes.matrix, modes.values, modes.vectors))
    if cross is None:
        return Features(train, None)
    inverse = _power(True, modes.matrix, modes.values, modes.vectors)
    return Features(train, split(read_cross(cross, rows, y) @ inverse))


class FeatureModel(eqx.Module):
    """A model that is linear in its weights; an input holds a sample's features, followed by its initial outputs."""

    weights: Float[Array, "features columns"]

    def __call__(self, x: Float[Array, "blocks features_and_columns"]) -> Float[Array, " out"]:
        size = self.weights.shape[0]
        # One block and a column per output if all outputs share a kernel; else a block per output and one column.
        return (x[:, :size] @ self.weights + x[:, size:]).ravel()

    @classmethod
    def at_start(cls, inputs: Float[Array, "n blocks features_and_columns"], outputs: int) -> "FeatureModel":
        """The model with weights 0: it gives the initial outputs, and its NTK is the kernel for any weights."""
        columns = outputs // inputs.shape[1]
        return cls(jnp.zeros((inputs.shape[2] - columns, columns), inputs.dtype))


def beside(
    features: Float[Array, "n blocks features"], outputs: Float[Array, "n out"]
) -> Float[Array, "n blocks features_and_columns"]:
    """The inputs of a feature model: features, followed by initial outputs."""
    return jnp.concatenate([features, outputs.reshape(*features.shape[:2], -1)], axis=2)


# A custom rule, since the power has a derivative where eigenvalues are equal, but eigenvectors have none.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _power(inverse: bool, matrix, values, vectors) -> Array:
    """K^(1/2) or K^(-1/2)."""
    # `matrix` is an argument only for its tangent, which the rule below uses; values and vectors have no derivatives.
    del matrix
    return (vectors * _roots(inverse, values)[0][None, :]) @ vectors.T


@_power.defjvp
def _power_jvp(inverse: bool, primals, tangents):
    _, values, vectors = primals
    weights, root, kept = _roots(inverse, values)
    one, two = root[:, None], root[None, :]
    some = kept[:, None] | kept[None, :]
    # The Daleckii-Krein formula. For roots a and b: (a - b)/(a^2 - b^2) = 1/(a + b), which does not cancel.
    difference = 1 / jnp.where(some, one + two, 1)
    if inverse:
        # (1/a - 1/b)/(a^2 - b^2); with the null space, where the power is 0, it is (1/a)/a^2.
        both = kept[:, None] & kept[None, :]
        product = jnp.where(both, one * two, 1)
        to_null = 1 / jnp.where(some, jnp.maximum(one, two), 1) ** 3
        difference = jnp.where(both, -difference / product, to_null)
    change = jnp.where(some, difference, 0) * (vectors.T @ tangents[0] @ vectors)
    return (vectors * weights[None, :]) @ vectors.T, vectors @ change @ vectors.T


def _roots(inverse: bool, values) -> tuple[Array, Array, Array]:
    """The eigenvalues of the power, the eigenvalues of the root, and whether each is outside the null space."""
    kept = kept_modes(values)
    root = jnp.where(kept, jnp.sqrt(jnp.where(kept, values, 1)), 0)
    return (jnp.where(kept, 1 / jnp.where(kept, root, 1), 0) if inverse else root), root, kept
