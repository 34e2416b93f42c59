"""The hyperbolic entropy: the potential of diagonal networks, and of the singular values of balanced ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Bool, Float

from ..._checks import concrete
from ..._numerics import nonzero, safe_hypot
from .._arguments import as_floats, as_positive
from ._interpolants import Interpolants
from ._potentials import AbstractPotential


class HyperbolicEntropy(AbstractPotential):
    r"""$\Phi = k \sum_i q(\beta_i)$ with $q' = \mathrm{asinh}(\beta/w) - \mathrm{asinh}(\beta_0/w)$.

    It is quadratic far below the width w, and $|\beta| \log(2|\beta|/w)$ far above it. As w decreases, minimizers go
    from the least l2 norm (for beta_0 = 0) to the least l1 norm, in the worst case only as fast as 1/log(1/w).

    Arguments:
        width: w > 0, one number or one per coordinate.
        factor: k > 0. It does not change the minimizer.
        beta_0: beta at the start, one number or one per coordinate.

    Example:
        >>> x, y = jnp.array([[1.0, 2.0]]), jnp.array([5.0])
        >>> for width in (1e-6, 1e6):  # sparse from small weights, shortest from large ones
        ...     print(js.theory.implicit_bias(js.theory.HyperbolicEntropy(width), x, y).round(2))
        [0.  2.5]
        [1. 2.]

    Reference:
        @inproceedings{woodworth2020kernel, title={Kernel and rich regimes in overparametrized models}, author={Blake
          Woodworth and Suriya Gunasekar and Jason D. Lee and Edward Moroshko and Pedro Savarese and Itay Golan and
          Daniel Soudry and Nathan Srebro}, booktitle={Conference on Learning Theory}, year={2020}}

    Raises:
        ValueError: a value is not finite, or width or factor is not positive (at this precision).
    """

    width: Float[Array, "..."]
    factor: Float[Array, ""]
    beta_0: Float[Array, "..."]

    def __init__(
        self,
        width: Float[ArrayLike, "..."],
        factor: Float[ArrayLike, ""] = 1.0,
        *,
        beta_0: Float[ArrayLike, "..."] = 0.0,
    ):
        self.width, self.factor = as_positive(width, "width"), as_positive(factor, "factor")
        self.beta_0 = as_floats(beta_0, "beta_0")

    @staticmethod
    def of_diagonal_network(u: Float[ArrayLike, "..."], v: Float[ArrayLike, "..."]) -> "HyperbolicEntropy":
        r"""The potential of f(x) = (u^2 - v^2).x (Woodworth et al. 2020), whose weights all train at one rate.

        w = 2 |u_i v_i| is conserved. From u = v = alpha: w = 2 alpha^2, and
        $q = \beta\, \mathrm{asinh}(\beta/2\alpha^2) - \sqrt{\beta^2 + 4\alpha^4} + 2\alpha^2$.

        Arguments:
            u, v: the weights at the start, one number or one per coordinate; none may be zero.

        Raises:
            ValueError: their shapes differ, or a weight is zero.
        """
        u, v = as_floats(u, "u"), as_floats(v, "v")
        v = v.astype(u.dtype)
        if u.shape != v.shape and 0 not in (u.ndim, v.ndim):
            raise ValueError(f"u and v must have the same shape, or be one number; got {u.shape} and {v.shape}")
        for name, weights in (("u", concrete(u)), ("v", concrete(v))):
            if weights is not None and not np.all(weights):
                raise ValueError(f"no weight of {name} may be zero at the start, got {weights.tolist()}")
        # u^2 - v^2 as a product, which keeps its digits where u is close to v.
        return HyperbolicEntropy(2 * jnp.abs(u) * jnp.abs(v), beta_0=(u - v) * (u + v))

    @staticmethod
    def of_singular_values(
        delta: Float[ArrayLike, ""],
        eta_a: Float[ArrayLike, ""] = 1.0,
        eta_w: Float[ArrayLike, ""] = 1.0,
        *,
        beta_0: Float[ArrayLike, "..."] = 0.0,
    ) -> "HyperbolicEntropy":
        r"""The potential of the singular values of a lambda-balanced two-layer network (Kunin et al., equation (119)).

        $q'' = 1/\sqrt{\delta^2 + 4 \eta_a \eta_w x^2}$, printed for rates of 1. With rates, the width is
        $|\delta|/(2\sqrt{\eta_a \eta_w})$ and the factor is $1/(2\sqrt{\eta_a \eta_w})$.

        Arguments:
            delta: eta_w A A^T - eta_a W W^T = delta I, not zero.
            eta_a, eta_w: rates of A (above) and W (below the hidden layer).
            beta_0: the singular values at the start.

        Raises:
            ValueError: delta is zero or a rate is not positive.
        """
        delta = as_floats(delta, "delta")
        known = concrete(delta)
        if known is not None and not known.all():
            raise ValueError("delta must not be zero: the potential's second derivative is then infinite at 0")
        eta_a, eta_w = (
            as_positive(eta, name).astype(delta.dtype) for eta, name in ((eta_a, "eta_a"), (eta_w, "eta_w"))
        )
        twice = 2 * jnp.sqrt(eta_a) * jnp.sqrt(eta_w)
        return HyperbolicEntropy(jnp.abs(delta) / twice, 1 / twice, beta_0=beta_0)

    def _cast(self, dtype: Any) -> tuple[Array, Array, Array]:
        """Width, factor, and asinh(beta_0/w)."""
        width, factor, beta_0 = (number.astype(dtype) for number in (self.width, self.factor, self.beta_0))
        return width, factor, jnp.arcsinh(beta_0 / width)

    def value(self, beta: Float[Array, " d"]) -> Float[Array, ""]:
        width, factor, origin = self._cast(beta.dtype)
        # sqrt(beta^2 + w^2) - w without cancellation
        hinge = beta * (beta / (safe_hypot(beta, width) + width))
        return factor * jnp.sum(beta * (jnp.arcsinh(beta / width) - origin) - hinge)

    def mirror_map(self, beta: Float[Array, " d"]) -> Float[Array, " d"]:
        width, factor, origin = self._cast(beta.dtype)
        return factor * (jnp.arcsinh(beta / width) - origin)

    def inverse_mirror_map(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        width, factor, origin = self._cast(dual.dtype)
        return width * jnp.sinh(dual / factor + origin)

    def minimize(self, interpolants: Interpolants) -> Float[Array, " d"]:
        """Newton's method on the dual problem, which converges from anywhere (see `_DualNewton`)."""
        interpolants.require_start(self.width)
        interpolants.require_start(self.beta_0)
        shortest = interpolants.shortest
        width, _, origin = self._cast(shortest.dtype)
        basis, used = interpolants.basis()
        largest = jnp.maximum(jnp.max(jnp.abs(shortest)), jnp.max(jnp.abs(self.beta_0.astype(shortest.dtype))))
        # Up to a factor the potential depends only on beta/w: scaled together, both are of order one for the solver.
        scale = jax.lax.stop_gradient(nonzero(largest))
        dual = _Dual(basis, used, basis.T @ shortest / scale, width / scale, origin)
        tolerance = float(jnp.finfo(shortest.dtype).eps)
        solution = optx.root_find(
            _missed,
            _DualNewton(rtol=tolerance, atol=tolerance),
            jnp.zeros(basis.shape[1], shortest.dtype),
            dual,
            max_steps=512,
            throw=False,
        )
        # Rounding of theta, magnified by ln(|beta|/w), leaves an error in the constraints; remove it to first order.
        beta = dual.beta(solution.value)
        left = dual.slope(beta) * (dual.basis @ dual.newton(beta, _missed(solution.value, dual)))
        beta = scale * (beta + jax.lax.stop_gradient(left))
        return jnp.where(solution.result == optx.RESULTS.successful, beta, jnp.nan)


class _Dual(NamedTuple):
    """The dual problem: find nu with V^T beta(V nu) = z, where beta(theta) = w sinh(theta + origin)."""

    basis: Float[Array, "d k"]  # V
    used: Bool[Array, " k"]  # the others are zero columns
    target: Float[Array, " k"]  # z
    width: Float[Array, "..."]
    origin: Float[Array, "..."]

    def beta(self, nu: Float[Array, " k"]) -> Float[Array, " d"]:
        return self.width * jnp.sinh(self.basis @ nu + self.origin)

    def slope(self, beta: Float[Array, " d"]) -> Float[Array, " d"]:
        """D, the derivative of beta with respect to theta: from |beta| where it is large down to the width."""
        return safe_hypot(beta, self.width)

    def newton(self, beta: Float[Array, " d"], missed: Float[Array, " k"]) -> Float[Array, " k"]:
        """-(V^T D V)^-1 missed: through the QR of sqrt(D) V, which keeps twice the digits."""
        root = jnp.sqrt(self.slope(beta))[:, None] * self.basis
        # R^T R = V^T D V, with 1 for unused columns so that R is invertible.
        free = jnp.diag(jnp.where(self.used, 0, 1).astype(root.dtype))
        factor = jnp.linalg.qr(jnp.concatenate([root, free]), mode="r")
        return -solve_triangular(factor, solve_triangular(factor, missed, trans=1))


def _missed(nu: Float[Array, " k"], dual: _Dual) -> Float[Array, " k"]:
    """The residual of the constraints at beta(nu); nu itself where there are no constraints."""
    return jnp.where(dual.used, dual.basis.T @ dual.beta(nu) - dual.target, nu)


class _DualNewton(optx.AbstractRootFinder):
    """Newton's method for `_Dual`, damped by ln(1 + d)/d, where d is the largest change of theta in a full step.

    The dual objective is w sum cosh(theta_i + origin_i) - nu.z. Its third derivative along any direction is at most the
    second times the change of theta, so with this damping every step lowers it, from anywhere (generalized
    self-concordance: Sun & Tran-Dinh 2019). Widths far below |beta| cost few steps: the damped first step changes theta
    by about ln(|beta|/w), which is the distance to the root. (A full first step changes it by |beta|/w.)
    """

    rtol: float
    atol: float
    norm: Callable[[Any], Any] = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags):
        """The first state: the root is not found yet."""
        return jnp.array(False)

    def step(self, fn, y, args, options, state, tags):
        """One damped Newton step; no step at a root."""
        dual: _Dual = args
        residual, aux = fn(y, args)
        theta = dual.basis @ y
        beta = dual.beta(y)
        step = dual.newton(beta, residual)
        change = jnp.max(jnp.abs(dual.basis @ step))
        # ln(1 + change)/change, by its series where change may be 0.
        damping = jnp.where(change < 1e-3, 1 - change / 2, jnp.log1p(change) / jnp.where(change < 1e-3, 1, change))
        # The size of the residual that rounding of theta and of the sums causes.
        size = jnp.max(jnp.abs(dual.basis).T @ jnp.abs(beta) + jnp.abs(dual.target))
        found = self.norm(residual) <= 4 * self.rtol * (2 + jnp.max(jnp.abs(theta))) * size
        return jnp.where(found, y, y + damping * step), found, aux

    def terminate(self, fn, y, args, options, state, tags):
        """Ends the search when the constraints hold to rounding."""
        return state, optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        """Returns the root unchanged."""
        return y, aux, {}
