"""Kernel regression: the end of the flow of `js.kernels.linearized`, without an eigendecomposition if possible."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from ..._checks import concrete
from ._linearized import Linearized, predict, rounding
from ._matrices import read_kernel, read_ridge, read_start, read_targets, require_positive, tolerance
from ._modes import Eigenmodes


class Regression(eqx.Module):
    """A kernel regression. Make it with `js.kernels.regression`.

    Attributes:
        coefficients: a, with f(x) = f_0(x) + k(x) a.
        outputs: f on the training points, shape (n, c).
        y: the targets.
        rank: the number of rows, or the numerical rank if the eigendecomposition was needed.
        decomposed: whether the eigendecomposition was needed, because K + n ridge is singular to rounding. No jitter is
            added to the diagonal.
    """

    coefficients: Float[Array, "rows columns"]
    outputs: Float[Array, "n out"]
    y: Float[Array, "n out"]
    rank: Int[Array, ""]
    decomposed: Bool[Array, ""]

    def predict(
        self,
        cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"],
        start: Float[ArrayLike, "m out"] | None = None,
    ) -> Float[Array, "m out"]:
        """f on other points.

        Arguments:
            cross: kernel between these and the training points, in the layout of the training kernel.
            start: f_0 on these points; None means 0.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        return predict(cross, self.coefficients, self.y, start)

    def rounding(self, cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"]) -> Float[Array, "m out"]:
        """The error expected from rounding in `predict(cross)`, as in `js.kernels.linearized`."""
        return rounding(cross, self.coefficients, self.y)


def regression(
    kernel: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
    y: Float[ArrayLike, "n out"],
    *,
    start: Float[ArrayLike, "n out"] | None = None,
    ridge: Float[ArrayLike, ""] = 0.0,
) -> Regression:
    r"""Minimizes 1/(2n) sum_i |f(x_i) - y_i|^2 + ridge/2 |f - f_0|^2 in the norm of the kernel's Hilbert space.

    The solution is $f(x) = f_0(x) + k(x) (K + n\,\mathrm{ridge}\,I)^{-1} (y - f_0)$: `js.kernels.linearized` at t =
    inf. It is found by Cholesky or, if K + n ridge is singular to rounding, by eigendecomposition, which gives the
    solution of least norm. Under vmap both are computed. In float32, a small ridge leaves large coefficients on modes
    below rounding; `js.kernels.linearized` leaves these modes out, and predicts better.

    Arguments:
        kernel: the kernel on the training points, symmetric and positive semi-definite; (n, n) if it is the same for
            every output and outputs do not mix, else (n, c, n, c).
        y: targets, shape (n, c).
        start: f_0 on the training points; None means 0.
        ridge: the strength of the regularization, >= 0.

    Example:
        >>> kernel, y = jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([[1.0], [-1.0]])
        >>> print(js.kernels.regression(kernel, y).coefficients[:, 0].round(3))
        [ 1. -1.]
        >>> fit = js.kernels.regression(kernel, y, ridge=0.5)
        >>> print(fit.outputs[:, 0].round(3), fit.predict(cross=jnp.array([[1.0, 0.0]]))[:, 0].round(3))
        [ 0.5 -0.5] [0.5]

    Raises:
        ValueError: shapes or dtypes do not fit, the kernel is not symmetric or not positive semi-definite beyond
            rounding, ridge is negative.
    """
    targets = read_targets(y)
    matrix = read_kernel(kernel, targets)
    f0, rho = read_start(start, targets), read_ridge(ridge, targets)
    result, extremes = _solve(matrix, targets, f0, rho)
    require_positive(extremes)
    _require_positive_below_ridge(matrix, rho)
    return result


def _require_positive_below_ridge(matrix: Array, ridge: Array) -> None:
    """Raises ValueError for a concrete kernel whose negative eigenvalues the ridge would hide."""
    known = concrete(ridge)
    if known is None or known == 0 or concrete(matrix) is None:
        return
    largest = jnp.max(jnp.diagonal(matrix))  # at most the largest eigenvalue
    # Cholesky fails if an eigenvalue lies below the tolerance of `require_positive`, and costs less than eigenvalues.
    # Only then are these computed, for the message.
    shifted = matrix.at[jnp.diag_indices(len(matrix))].add(tolerance(matrix.dtype) * largest)
    if not bool(jnp.all(jnp.isfinite(jnp.linalg.cholesky(shifted, symmetrize_input=False)))):
        require_positive(jnp.linalg.eigvalsh(matrix))


@eqx.filter_jit
def _solve(matrix: Array, y: Array, start: Array, ridge: Array) -> tuple[Regression, Array]:
    """The regression, and the smallest and largest eigenvalues as far as they are known."""
    n, rows = y.shape[0], matrix.shape[0]
    shift = n * ridge
    gap = (y - start).reshape(rows, -1)
    shifted = matrix.at[jnp.diag_indices(rows)].add(shift)
    # In double precision whatever the kernel's dtype, as in `Eigenmodes`: single precision would lose a small ridge.
    with jax.enable_x64(True):
        double = jax.lax.convert_element_type(jax.lax.stop_gradient(matrix), jnp.float64)
        double = double + jax.lax.convert_element_type(jax.lax.stop_gradient(shift), jnp.float64) * jnp.eye(rows)
        factor = jnp.linalg.cholesky(double, symmetrize_input=False)
        pivots = jnp.diagonal(factor) ** 2
        # False if Cholesky failed, with NaN. Otherwise both ways are right, and this one is faster.
        sound = jnp.all(pivots > rows * float(jnp.finfo(y.dtype).eps) * jnp.max(pivots))
        # Under vmap both ways are taken: the failed one must stay finite, or its derivative of 0 would be NaN.
        factor = jnp.where(sound, factor, jnp.eye(rows))

    def direct() -> tuple[Regression, Array]:
        # The factor has no derivative: the solution's derivative follows from the equation that it solves.
        def solve(_, b: Array) -> Array:
            with jax.enable_x64(True):
                found = cho_solve((factor, True), jax.lax.convert_element_type(b, jnp.float64))
                return jax.lax.convert_element_type(found, y.dtype)

        coefficients = jax.lax.custom_linear_solve(lambda v: shifted @ v, gap, solve, symmetric=True)
        # From (K + n ridge) a = y - f_0: f_0 + K a = y - n ridge a, without a product with K.
        outputs = y - (shift * coefficients).reshape(y.shape)
        # No eigenvalue is known or needed: Cholesky has shown that the matrix is positive. Ones pass the check.
        known = Regression(coefficients, outputs, y, jnp.asarray(rows), jnp.array(False))
        return known, jnp.ones(2, y.dtype)

    def decomposed() -> tuple[Regression, Array]:
        flow = Linearized(Eigenmodes.of(matrix), y, start, ridge)
        end = jnp.full((), jnp.inf, y.dtype)
        ends = jnp.stack([flow.modes.values[0], flow.modes.values[-1]])
        return Regression(flow.coefficients(end), flow.outputs(end), y, flow.rank, jnp.array(True)), ends

    return jax.lax.cond(sound, direct, decomposed)
