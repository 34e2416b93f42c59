"""All solutions of X beta = y: the possible limits of a network whose training loss vanishes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._checks import concrete, describe, require_finite


class Interpolants(eqx.Module):
    """The affine set of all beta with X beta = y.

    X may have any rank and any shape, as long as there is a solution. Differentiable in X (at fixed rank) and y.

    Arguments:
        x: inputs X, one row per sample.
        y: targets, converted to the dtype of x.

    Attributes:
        shortest: the beta of least norm |beta|, X^+ y.

    Example:
        >>> solutions = js.theory.Interpolants(jnp.array([[1.0, 2.0]]), jnp.array([5.0]))
        >>> print(solutions.shortest.round(2), solutions.across(jnp.array([2.5, 0.0])).round(2))
        [1. 2.] [ 2. -1.]

    Raises:
        ValueError: shapes do not match, a value is not finite, or X beta = y has no solution.
    """

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    pinv: Float[Array, "d n"]
    shortest: Float[Array, " d"]

    def __init__(self, x: Float[ArrayLike, "n d"], y: Float[ArrayLike, " n"]):
        x, y = jnp.asarray(x), jnp.asarray(y)
        if x.ndim != 2 or y.ndim != 1 or x.shape[0] != y.shape[0] or x.size == 0:
            raise ValueError(
                f"x must have shape (n, d) and y shape (n,) with n, d >= 1, got x {describe(x)} and y {describe(y)}"
            )
        require_finite(x, "x")
        require_finite(y, "y")
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
        self.x, self.y = x.astype(dtype), y.astype(dtype)
        self.pinv = jnp.linalg.pinv(self.x, rtol=self._cutoff)
        once = self.pinv @ self.y
        # A second round (iterative refinement) removes the condition number of X from the residual.
        self.shortest = once + self.pinv @ (self.y - self.x @ once)
        self._check_solvable()

    @property
    def _cutoff(self) -> float:
        """Singular values of X below this fraction of the largest count as zero."""
        return 10 * max(self.x.shape) * float(jnp.finfo(self.x.dtype).eps)

    def _check_solvable(self) -> None:
        missed = jnp.linalg.norm(self.y - self.x @ self.shortest)
        size = jnp.linalg.norm(self.x) * jnp.linalg.norm(self.shortest) + jnp.linalg.norm(self.y)
        solved = missed <= 64 * max(self.x.shape) ** 0.5 * float(jnp.finfo(self.x.dtype).eps) * size
        known = concrete(solved)
        if known is None:  # traces raise nothing
            self.shortest = jnp.where(solved, self.shortest, jnp.nan)
        elif not known:
            raise ValueError(
                f"X beta = y has no solution: the closest beta misses y by {missed / jnp.linalg.norm(self.y):.2g} of "
                f"its norm (x has shape {self.x.shape} and rank {np.linalg.matrix_rank(np.asarray(self.x))}). Training "
                "cannot reach zero loss on such data; take fewer samples, more inputs, or targets that a linear "
                "function fits"
            )

    def require_start(self, start: Float[Array, "..."]) -> None:
        """Raises ValueError unless a start (or any per-coordinate value) has the shape of beta, or is one number."""
        if start.shape not in ((), self.shortest.shape):
            raise ValueError(f"x has {self.x.shape[1]} inputs, but the potential is for a beta of shape {start.shape}")

    def across(self, beta: Float[Array, " d"]) -> Float[Array, " d"]:
        """The part of beta outside the row space of X, (I - X^+ X) beta."""
        once = beta - self.pinv @ (self.x @ beta)
        return once - self.pinv @ (self.x @ once)

    def basis(self) -> tuple[Float[Array, "d k"], Bool[Array, " k"]]:
        """An orthonormal basis of the row space of X as columns, k = min(n, d), and which columns are used.

        Columns past the rank of X are zero. The basis follows changes of X without the gradient of an SVD, which does
        not exist at repeated singular values.
        """
        _, sizes, rows = jnp.linalg.svd(jax.lax.stop_gradient(self.x), full_matrices=False)
        used = sizes > self._cutoff * sizes[0]
        fixed = jax.lax.stop_gradient(jnp.where(used[:, None], rows, 0).T)
        # X^+ X, the projector on the row space, maps the fixed basis to itself, and carries the derivative.
        return self.pinv @ (self.x @ fixed), used
