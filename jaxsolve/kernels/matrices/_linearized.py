r"""Gradient flow under a fixed kernel, for all times from one eigendecomposition.

$\dot f(x) = -\frac1n k(x)(f - y) - \rho (f(x) - f_0(x))$ has the solution
$f(x, t) = f_0(x) + k(x)\,h_t(K)(y - f_0)$ with $h_t(K) = \frac1n \int_0^t e^{-(K/n + \rho) s} ds$
(Jacot et al. 2018; Lee et al. 2019, eqs. 8-9).
"""

import warnings
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from ..._checks import concrete, describe, real_array
from ..._numerics import nonzero
from ._matrices import (
    read_cross,
    read_kernel,
    read_like,
    read_ridge,
    read_start,
    read_targets,
    require_positive,
    spread,
)
from ._modes import Eigenmodes, Spectrum


# Warn if rounding hides whether more than this share of the initial loss is left.
UNRESOLVED = 0.01
# Warn if rounding leaves errors above this in outputs on other points, relative to the largest output.
LOOSE = 1e-3


class Linearized(eqx.Module):
    """The flow of MSE under a fixed kernel, at any time in [0, inf]. Make it with `js.kernels.linearized`.

    First derivatives exist in everything, in the kernel even where eigenvalues are equal; higher ones exist in y,
    start, ridge and time only. The decomposition is in float64 for float32 kernels, too. An eigenvalue that cannot be
    told from 0 counts as 0, and nothing is learned along it. The limit is the largest of 4 eps |K|_F/sqrt(rows) (the
    rounding of the entries), 4 eps of float64 times the largest eigenvalue, and twice the most negative one. On test
    points, too, a positive semi-definite kernel has no component along it. `unresolved` says how much that leaves open.

    Attributes:
        modes: the training kernel, as a matrix with n rows (the same for every output) or n c rows.
        y, start: targets and outputs at t = 0, shape (n, c).
        ridge: the rate at which f returns to its start.
    """

    modes: Eigenmodes
    y: Float[Array, "n out"]
    start: Float[Array, "n out"]
    ridge: Float[Array, ""]

    @property
    def rates(self) -> Float[Array, " rows"]:
        """The rates of the modes in 1/time, ascending: the eigenvalues of K/n + ridge, or ridge in the null space."""
        share = jnp.where(self.modes.kept, self.modes.values, 0) / self.y.shape[0]
        return share + self.ridge

    @property
    def rank(self) -> Int[Array, ""]:
        """The number of modes that are learned: the numerical rank of the kernel."""
        return self.modes.rank

    @property
    def spectrum(self) -> Spectrum:
        """The spectrum of the kernel, and the share of the initial loss on each mode."""
        return self.modes.spectrum(self._gap())

    def unresolved(self, t: Float[ArrayLike, ""]) -> Float[Array, ""]:
        """The share of the initial loss, 0 to 1, for which rounding hides whether it is still there at time t.

        It lies on modes whose eigenvalue is below rounding or little above. It is 0 at early times, and where a gap of
        a factor 100 shows that the kernel has a lower rank. Outside a trace, a query at such a time warns if it exceeds
        1 %.
        """
        return self.spectrum.unresolved(self._time(t), self.ridge, len(self.y))

    def outputs(self, t: Float[ArrayLike, ""]) -> Float[Array, "n out"]:
        """f(t) on the training points. Raises ValueError for t < 0; NaN inside traces."""
        self._warn(t)
        return self.start + self._unfold(self.modes.response(self._gap(), self._time(t), self.ridge, len(self.y)))

    def coefficients(self, t: Float[ArrayLike, ""]) -> Float[Array, "rows columns"]:
        """The coefficients h_t(K)(y - f_0): f(x, t) is f_0(x) + k(x) times these."""
        self._warn(t)
        return self.modes.integral(self._gap(), self._time(t), self.ridge, len(self.y))

    def predict(
        self,
        t: Float[ArrayLike, ""],
        cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"],
        start: Float[ArrayLike, "m out"] | None = None,
    ) -> Float[Array, "m out"]:
        """f(t) on other points.

        Arguments:
            t: time.
            cross: kernel between these and the training points, in the layout of the training kernel.
            start: f_0 on these points; None means 0.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        return predict(cross, self.coefficients(t), self.y, start)

    def rounding(
        self, t: Float[ArrayLike, ""], cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"]
    ) -> Float[Array, "m out"]:
        """The error expected from rounding in `predict(t, cross)`, in units of f.

        It grows with t: coefficients of small modes are large and cancel on test points. Each product of an entry of
        the kernel and a coefficient has a relative error of eps, and so does each partial sum of the n products: (1 +
        sqrt(n)/3) eps sqrt(sum_i (k_i a_i)^2).
        """
        return rounding(cross, self.coefficients(t), self.y)

    def _time(self, t: Float[ArrayLike, ""]) -> Float[Array, ""]:
        known = concrete(t)
        if known is not None and not (known.ndim == 0 and known.dtype.kind in "fiu" and known >= 0):
            raise ValueError(f"t must be one time in [0, inf], got {describe(t)}")
        t = jnp.asarray(t, self.y.dtype)
        return jnp.where(t >= 0, t, jnp.nan)

    def _warn(self, t: Float[ArrayLike, ""]) -> None:
        share = concrete(self.unresolved(t))
        if share is not None and share > UNRESOLVED:
            warnings.warn(
                f"{float(share):.2g} of the loss at the start lies on modes whose eigenvalues {self.y.dtype} cannot "
                f"tell from 0, so it is not known whether it remains at t = {float(jnp.asarray(t)):.3g}: it is "
                "counted as remaining. Ask for an earlier time, or compute the kernel in float64: "
                "jax.config.update('jax_enable_x64', True)",
                stacklevel=3,
            )

    def _gap(self) -> Float[Array, "rows columns"]:
        # (n, c) for a kernel that is the same for every output; one column of length n c for one that mixes outputs.
        return (self.y - self.start).reshape(self.modes.values.shape[0], -1)

    def _unfold(self, rows: Float[Array, "rows columns"]) -> Float[Array, "n out"]:
        return rows.reshape(self.y.shape)


def linearized(
    kernel: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
    y: Float[ArrayLike, "n out"],
    *,
    start: Float[ArrayLike, "n out"] | None = None,
    ridge: Float[ArrayLike, ""] = 0.0,
) -> Linearized:
    """The gradient flow of MSE = 1/(2n) sum |f - y|^2 under a fixed kernel.

    Arguments:
        kernel: the kernel on the training points, symmetric and positive semi-definite; (n, n) if it is the same for
            every output and outputs do not mix, else (n, c, n, c). Units: output^2 / (loss time).
        y: targets, shape (n, c).
        start: outputs at t = 0; None means 0.
        ridge: weight decay toward the start, >= 0, which adds ridge/2 |f - f_0|^2 to the loss in the norm of the
            kernel's Hilbert space (|theta - theta_0|^2, each layer over its eta). It adds n ridge to K's diagonal.

    Example:
        >>> flow = js.kernels.linearized(jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.array([[1.0], [-1.0]]))
        >>> print([f"{rate:.2f}" for rate in flow.rates], flow.outputs(1.0)[:, 0].round(3))
        ['0.50', '1.50'] [ 0.393 -0.393]
        >>> print(flow.predict(jnp.inf, cross=jnp.array([[1.0, 0.0]])).round(3))
        [[1.]]

    Raises:
        ValueError: shapes or dtypes do not fit, the kernel is not symmetric or not positive semi-definite beyond
            rounding, ridge is negative.
    """
    targets = read_targets(y)
    modes = Eigenmodes.of(read_kernel(kernel, targets))
    require_positive(modes.values)
    return Linearized(modes, targets, read_start(start, targets), read_ridge(ridge, targets))


def predict(
    cross: ArrayLike, coefficients: Float[Array, "rows columns"], y: Float[Array, "n out"], start: ArrayLike | None
) -> Float[Array, "m out"]:
    """f_0(x) + k(x) times the coefficients. Warns, outside a trace, if rounding leaves too few digits."""
    moved = read_cross(cross, coefficients.shape[0], y) @ coefficients
    moved = moved.reshape(-1, y.shape[1])
    outputs = moved if start is None else moved + read_like(start, moved.shape, "start", y)
    if concrete(outputs) is not None:
        error, size = jnp.max(rounding(cross, coefficients, y)), jnp.max(jnp.abs(outputs))
        if error > LOOSE * size:
            warnings.warn(
                f"rounding in {y.dtype} leaves errors of about {float(error):.1e} in outputs of at most "
                f"{float(size):.1e}: coefficients of small modes are large, and cancel. Compute the kernels in "
                "float64, ask for an earlier time, or take a larger ridge",
                stacklevel=3,
            )
    return outputs


def rounding(cross: ArrayLike, coefficients: Float[Array, "rows columns"], y: Float[Array, "n out"]) -> Array:
    """The error expected from rounding in k(x) times the coefficients, with the shape of the outputs."""
    matrix, rows = read_cross(cross, coefficients.shape[0], y), coefficients.shape[0]
    # Entries are off by eps, and a sum of n terms by n roundings of partial sums. Measured errors for 100 to 1,400
    # points were 0.1 to 0.7 of this.
    terms = (1 + rows**0.5 / 3) * float(jnp.finfo(y.dtype).eps)
    # The largest is taken out, so that no square overflows.
    size = nonzero(jnp.max(jnp.abs(coefficients)))
    return (terms * size * jnp.sqrt(matrix**2 @ (coefficients / size) ** 2)).reshape(-1, y.shape[1])


class Normal(NamedTuple):
    """Mean and covariance of a normal distribution of functions.

    The covariance is (m, m), the same for every output without correlation between outputs, or (m, c, m, c).
    """

    mean: Float[Array, "m out"]
    covariance: Float[Array, "m m"] | Float[Array, "m out m out"]


class LinearizedEnsemble(eqx.Module):
    """Flows under one kernel from normally distributed starts. Make it with `js.kernels.linearized_ensemble`.

    Covariances are remainders of the initial ones, so their errors are relative to those: 10 eps of the largest.

    Attributes:
        flow: the flow of the mean.
        initial: covariance of the starts, as a matrix like the kernel.
    """

    flow: Linearized
    initial: Float[Array, "rows rows"]

    def outputs(self, t: Float[ArrayLike, ""]) -> Normal:
        """f(t) on the training points."""
        # L S L^T with L = 1 - K h_t(K) and S the initial covariance: columns first, then rows.
        left = self._left(self._left(self.initial, t).T, t)
        return Normal(self.flow.outputs(t), self._unfold((left + left.T) / 2))

    def predict(
        self,
        t: Float[ArrayLike, ""],
        cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"],
        initial_cross: Float[ArrayLike, "m n"] | Float[ArrayLike, "m out n out"],
        initial: Float[ArrayLike, "m m"] | Float[ArrayLike, "m out m out"],
        start: Float[ArrayLike, "m out"] | None = None,
    ) -> Normal:
        """f(t) on other points (Lee et al. 2019, eqs. 14-15).

        Arguments:
            t: time.
            cross: kernel between these and the training points.
            initial_cross: covariance of the starts between these and the training points.
            initial: covariance of the starts on these points.
            start: mean of the starts on these points; None means 0.

        Raises:
            ValueError: shapes or dtypes do not fit.
        """
        flow, y = self.flow, self.flow.y
        rows = self.initial.shape[0]
        matrix = read_cross(cross, rows, y)
        with_train = read_cross(self._like_kernel(initial_cross), rows, y, "initial_cross")
        # f(x, t) = f_0(x) + W (y - f_0(X)) with W = k(x) h_t(K) is linear in the start, which gives the covariance
        # below. h_t(K) is symmetric, so W is the transpose of h_t(K) k(x)^T.
        weights = flow.modes.integral(matrix.T, flow._time(t), flow.ridge, len(y)).T
        mixed = weights @ with_train.T
        mean = flow.predict(t, cross, start)
        # The mean has the shape of targets on these points, against which the covariance is checked.
        here = read_kernel(self._like_kernel(initial), mean, "initial")
        covariance = here - mixed - mixed.T + weights @ self.initial @ weights.T
        return Normal(mean, self._unfold((covariance + covariance.T) / 2))

    def _left(self, matrix: Float[Array, "rows columns"], t: Float[ArrayLike, ""]) -> Float[Array, "rows columns"]:
        """The part of the columns that is left at time t: the linear map from starts to residuals."""
        flow = self.flow
        return matrix - flow.modes.response(matrix, flow._time(t), flow.ridge, len(flow.y))

    def _like_kernel(self, kernel: ArrayLike) -> Array:
        array = jnp.asarray(kernel)
        n, c = self.flow.y.shape
        # The training kernel has a row for each output, so the other kernels need the same blocks.
        mixes = self.initial.shape[0] != n
        return spread(array, c) if mixes and array.ndim == 2 else array

    def _unfold(self, matrix: Float[Array, "points points"]) -> Array:
        n, c = self.flow.y.shape
        if self.initial.shape[0] == n:
            return matrix
        return matrix.reshape(matrix.shape[0] // c, c, matrix.shape[0] // c, c)


def linearized_ensemble(
    kernel: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
    initial: Float[ArrayLike, "n n"] | Float[ArrayLike, "n out n out"],
    y: Float[ArrayLike, "n out"],
    *,
    start: Float[ArrayLike, "n out"] | None = None,
    ridge: Float[ArrayLike, ""] = 0.0,
) -> LinearizedEnsemble:
    """The flow of `js.kernels.linearized` from a normal distribution of starts.

    With the infinite-width NTK as kernel and the NNGP kernel as covariance of the starts, this is the ensemble of
    infinitely wide networks (Lee et al. 2019, "Wide neural networks of any depth evolve as linear models").

    Arguments:
        kernel, y, ridge: as for `js.kernels.linearized`.
        initial: covariance of the starts on the training points; (n, n) if outputs are independent and equal.
        start: mean of the starts; None means 0.

    Example:
        >>> kernel = jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> flow = js.kernels.linearized_ensemble(kernel, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> start, late = flow.outputs(0.0), flow.outputs(4.0)
        >>> print(start.covariance[0, 0], f"{late.covariance[0, 0]:.3f}", f"{late.mean[0, 0]:.3f}")
        1.0 0.009 0.865

    Raises:
        ValueError: as for `js.kernels.linearized`, for both kernels.
    """
    flow = linearized(kernel, y, start=start, ridge=ridge)
    covariance = real_array(initial, "initial")
    if flow.modes.values.shape[0] != len(flow.y) and covariance.ndim == 2:
        covariance = spread(covariance, flow.y.shape[1])
    matrix = read_kernel(covariance, flow.y, "initial")
    if matrix.shape != flow.modes.matrix.shape:
        raise ValueError(f"initial has blocks {jnp.shape(initial)}, so the kernel must have them as well")
    require_positive(jnp.linalg.eigvalsh(matrix), "initial")
    return LinearizedEnsemble(flow, matrix)
