r"""The flow of a two-layer linear network on a line, reduced to one angle.

Xu & Liu Ziyin, "Three Mechanisms of Feature Learning in a Linear Network", Theorem 1, in a form that neither overflows
nor cancels. With $a_i = u_i/\sqrt{\eta_u}$ and $b_i = (w_i \cdot n)/\sqrt{\eta_w}$ the flow is a hyperbolic rotation
of $(a, b)$ by an angle $s(t) = \ln \xi(t)$ common to all neurons, driven by $\dot s = k (y - f)$ with
$f = k\, a \cdot b$.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..._checks import concrete
from ..._numerics import kept_product, magnitude, nonzero, safe_hypot, safe_product, safe_sqrt, tanhc
from .._arguments import flow_time


class Timescale(NamedTuple):
    """The time scale t_c of the flow, and the two rates that set it: 1/t_c^2 = feature^2 + kernel^2 (eq. 17)."""

    t_c: Float[Array, "..."]
    feature: Float[Array, "..."]  # 2 k |y|
    kernel: Float[Array, "..."]  # 2 k^2 sqrt(P Q)


class ReducedLine(eqx.Module):
    r"""The whole flow of a two-layer linear network on a line, in six numbers (or arrays of one common shape).

    Attributes:
        total: (P + Q)/2 = (|a|^2 + |b|^2)/2.
        product: a.b at the start, (P - Q)/2.
        gram: sqrt(|a|^2 |b|^2 - (a.b)^2) = sqrt(P Q - phi^2/4), conserved, 0 for parallel layers.
        phi: |a|^2 - |b|^2, conserved.
        k: |gamma m_1 m_2| rho sqrt(eta_u eta_w) >= 0.
        y: the target, with the sign of gamma m_1 m_2.

    Times are gradient-flow times in [0, inf]. Every method is differentiable, including at t = inf. Built from a
    problem by `js.theory.TwoLayerLine`, or from the paper's P, Q and phi.

    Example:
        >>> line = js.theory.ReducedLine.from_pq(P=1.0, Q=1.0, phi=0.0, k=1.0, y=2.0)
        >>> print(*(f"{value:.2f}" for value in line.f(jnp.array([0.0, 1.0, jnp.inf]))))
        0.00 1.93 2.00
    """

    total: Float[Array, "..."]
    product: Float[Array, "..."]
    gram: Float[Array, "..."]
    phi: Float[Array, "..."]
    k: Float[Array, "..."]
    y: Float[Array, "..."]

    @staticmethod
    def from_pq(
        P: Float[ArrayLike, "..."],
        Q: Float[ArrayLike, "..."],
        phi: Float[ArrayLike, "..."],
        k: Float[ArrayLike, "..."],
        y: Float[ArrayLike, "..."],
    ) -> "ReducedLine":
        """The flow from the paper's P, Q (eq. 9) and phi (eq. 21).

        Derivatives in P and Q exist only where both are > 0 (elsewhere they are NaN), with `from_layers` always.

        Raises:
            ValueError: P, Q or k is negative, or phi^2 > 4 P Q, which no pair of layers has.
        """
        P, Q, phi, k, y = (jnp.asarray(value) for value in (P, Q, phi, k, y))
        for name, value in (("P", P), ("Q", Q), ("k", k)):
            known = concrete(value)
            if known is not None and not np.all(known >= 0):
                raise ValueError(f"{name} must be >= 0, got a smallest value of {known.min()}")
        root = jnp.sqrt(P) * jnp.sqrt(Q)
        known, bound = concrete(phi), concrete(root)
        if known is not None and bound is not None and not np.all(np.abs(known) <= 2 * bound * (1 + 1e-5)):
            raise ValueError("phi^2 must not exceed 4 P Q (Cauchy-Schwarz)")
        half = jnp.abs(phi) / 2
        # Parallel layers have phi^2 = 4 P Q; rounding may put the difference on either side of zero.
        squared = jnp.maximum(root - half, 0) * (root + half)
        return ReducedLine((P + Q) / 2, (P - Q) / 2, safe_sqrt(squared), phi, k, y)

    @staticmethod
    def from_layers(a: Float[Array, " width"], b: Float[Array, " width"], k: Array, y: Array) -> "ReducedLine":
        """The flow from the two layers, each divided by the root of its rate; without cancellation."""
        aa, bb, ab = jnp.sum(a**2), jnp.sum(b**2), jnp.sum(a * b)
        # |a|^2 |b|^2 - (a.b)^2 from the part of b orthogonal to a.
        projection = ab / jnp.where(aa == 0, 1, aa)
        gram = safe_sqrt(aa) * safe_sqrt(jnp.sum((b - projection * a) ** 2))
        return ReducedLine((aa + bb) / 2, ab, gram, jnp.sum((a - b) * (a + b)), k, y)

    @property
    def pq(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """P and Q; the smaller is computed from their product, because their difference would cancel."""
        large = self.total + magnitude(self.product)
        small = self.root_pq * (self.root_pq / nonzero(large))
        return jnp.where(self.product >= 0, large, small), jnp.where(self.product >= 0, small, large)

    @property
    def root_pq(self) -> Float[Array, "..."]:
        """sqrt(P Q)."""
        return safe_hypot(self.phi / 2, self.gram)

    @property
    def rate(self) -> Float[Array, "..."]:
        """k R with R = sqrt(y^2 + k^2 P Q): half the rate at which the flow converges."""
        return self.k * safe_hypot(self.y, self.k * self.root_pq)

    @property
    def timescale(self) -> Timescale:
        """t_c = 1/(2 k R), and its feature-learning and kernel terms (eq. 17). Infinite where nothing moves."""
        feature, kernel = 2 * self.k * jnp.abs(self.y), 2 * self.k * (self.k * self.root_pq)
        t_c = jnp.where(self.total == 0, jnp.inf, 1 / (2 * self.rate))  # layers of zeros stay
        return Timescale(t_c, feature, kernel)

    def _solve(self, t: Float[ArrayLike, "..."]) -> "_Solution":
        """The flow at time t. Every sum below has terms of one sign, so nothing cancels.

        With T = tanh(k R t), tau = T/R and e = 1 - T: xi^2 = h_y/h_x, h_x = e + X tau, h_y = e + Y tau, and
        (y - f)/(y - f(0)) = (1 - T^2)/(h_x h_y).
        """
        k, y, S, C = self.k, self.y, self.total, self.product
        root_pq = self.root_pq
        R = safe_hypot(y, k * root_pq)
        r0 = y - k * C
        P, Q = self.pq
        small = jnp.minimum(P, Q)
        # R - y and R + y: the smaller would cancel, and is computed from their product.
        above = R + magnitude(y)
        # Where R = 0, only y is left of R -+ y to first order: the remainder of R cancels in h_x and h_y.
        below = jnp.where(R == 0, -y, (k * root_pq) * (k * root_pq / nonzero(above)))
        X = jnp.where(y >= 0, below, above) + k * P
        Y = jnp.where(y >= 0, above, below) + k * Q
        low, high = jnp.minimum(X, Y), jnp.maximum(X, Y)

        # Beyond `late`, exp(-2 k R t) is zero in this dtype. Such t, including inf, must not reach a product that is
        # differentiated.
        late = -0.5 * float(np.log(np.finfo(R.dtype).tiny))
        t = flow_time(t, R.dtype)
        settled = safe_product(R, safe_product(k, t)) > late
        kt = safe_product(k, jnp.where(settled, 0, t))
        x = jnp.where(R == 0, 0, R * kt)
        E = jnp.where(settled, 0, jnp.exp(-2 * x))
        e = 2 * E / (1 + E)
        tau = jnp.where(settled, 1 / nonzero(R), kt * tanhc(x))
        h_x, h_y, h_low, h_high = (e + kept_product(W, tau) for W in (X, Y, low, high))

        # Towards the saddle (P = 0 < y or Q = 0 > y) e and h_low vanish together, and their ratio is one.
        at_saddle = (low == 0) & (R > 0)
        share = jnp.where(at_saddle, 1, e / jnp.where(at_saddle, 1, h_low))
        remaining = 2 / (1 + E) * share / h_high

        # a.b has gained 2 r0 (tau/h_high) (G/h_low).
        opposed = y * C < 0
        G = jnp.where(opposed, small + jnp.abs(C) * (e + tau * below), S + kept_product(magnitude(y * C), tau))
        G = G + safe_product((k * root_pq) * root_pq, tau)
        ratio = jnp.where(at_saddle, jnp.abs(C), G / jnp.where(at_saddle, 1, h_low))
        slow = tau < 1
        tau_share = jnp.where(slow, tau / h_high, 1 / nonzero(e / jnp.where(slow, 1, tau) + high))
        gain = 2 * r0 * tau_share * ratio

        # a.b in three ways, each a difference of two terms: from the start for early times, from the target for late
        # times, from xi on the way into the saddle. The one with the smallest terms has the most digits.
        residual = r0 * remaining
        up = safe_product(P, h_y / jnp.where(h_x == 0, 1, h_x)) / 2
        down = safe_product(Q, h_x / jnp.where(h_y == 0, 1, h_y)) / 2
        safe_k = nonzero(k)
        ways = (
            (jnp.abs(C) + jnp.abs(gain), C + gain),
            (jnp.where(k == 0, jnp.inf, (jnp.abs(y) + jnp.abs(residual)) / safe_k), (y - residual) / safe_k),
            (up + down, up - down),
        )
        size, product = ways[0]
        for other_size, other in ways[1:]:
            size, product = jnp.minimum(size, other_size), jnp.where(other_size < size, other, product)
        return _Solution(residual, product, r0, tau, h_x, h_y)

    def residual(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """y - f(t), with a small relative error however small it is."""
        return self._solve(t).residual

    def layer_product(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """a.b at time t."""
        return self._solve(t).product

    def product_at(self, s: Float[Array, "..."]) -> Float[Array, "..."]:
        """a.b after a rotation by the angle s = ln xi, for any loss."""
        P, Q = self.pq
        # a.b = C cosh 2s + S sinh 2s = (P e^2s - Q e^-2s)/2: the second cancels for small s, the first for large s.
        near = jnp.abs(s) < 0.5
        small, large = jnp.where(near, 2 * s, 0), jnp.where(near, 1, 2 * s)
        early = self.product * jnp.cosh(small) + self.total * jnp.sinh(small)
        return jnp.where(near, early, (safe_product(P, jnp.exp(large)) - safe_product(Q, jnp.exp(-large))) / 2)

    def zeta_of(self, product: Float[Array, "..."]) -> Float[Array, "..."]:
        """The alignment at this value of a.b."""
        endless = jnp.isinf(product)  # as on separable data
        product, gram = jnp.where(endless, jnp.sign(product), product), jnp.where(endless, 0, self.gram)
        size = safe_hypot(product, gram)
        # Both vanish only for parallel layers that meet the saddle: there zeta keeps the sign it came with.
        return jnp.where(size == 0, jnp.sign(self.product), product / nonzero(size))

    def ntk_of(self, product: Float[Array, "..."]) -> Float[Array, "..."]:
        """K(x, x) at this value of a.b: 2 k^2 sqrt((a.b)^2 + P Q)."""
        return 2 * self.k * (self.k * safe_hypot(product, self.root_pq))

    def f(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """The output on the reduced data point, with the sign of gamma m_1 m_2 (eq. 19)."""
        return self.observe(t)[1]

    def ntk(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """K(x, x) on the reduced data point (eq. 18): k^2 (P xi^2 + Q/xi^2) = 2 k^2 sqrt((a.b)^2 + P Q)."""
        return self.observe(t)[2]

    def zeta(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """The alignment u.v/(|u||v|) of the layers (eqs. 20, 21); 0 where a layer vanishes throughout."""
        return self.observe(t)[0]

    def observe(self, t: Float[ArrayLike, "..."]) -> tuple[Array, Array, Array]:
        """(zeta, f, ntk) at time t, from a single solution of the flow."""
        product = self._solve(t).product
        return self.zeta_of(product), self.k * product, self.ntk_of(product)

    def squared_norms(self, t: Float[ArrayLike, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """|a|^2 = |u|^2/eta_u and |b|^2 = |v|^2/eta_w at time t."""
        product = self._solve(t).product
        large = safe_hypot(product, self.root_pq) + magnitude(self.phi) / 2
        scale = nonzero(large)
        # The smaller norm is computed from the product of both, |a|^2 |b|^2 = (a.b)^2 + gram^2.
        small = product * (product / scale) + self.gram * (self.gram / scale)
        return jnp.where(self.phi >= 0, large, small), jnp.where(self.phi >= 0, small, large)

    def log_xi(self, t: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
        """ln xi(t) (eq. 8), the angle of the hyperbolic rotation. Infinite at t = inf if it ends in the saddle."""
        solution = self._solve(t)
        growing = solution.start >= 0
        # xi^2 = h_y/h_x, where h_y - h_x = 2 (y - f(0)) tau: the larger over the smaller, minus 1, for log1p.
        ahead = 2 * magnitude(solution.start) * solution.tau / jnp.where(growing, solution.h_x, solution.h_y)
        return jnp.where(growing, 1, -1) * jnp.log1p(ahead) / 2


class _Solution(NamedTuple):
    residual: Array
    product: Array
    start: Array  # y - f(0)
    tau: Array
    h_x: Array
    h_y: Array


def rotate(a: Array, b: Array, s: Array) -> tuple[Array, Array]:
    """(a cosh s + b sinh s, b cosh s + a sinh s): directly for small s, through a + b and a - b for large s."""
    near = jnp.abs(s) < 1
    small = jnp.where(near, s, 0)
    cosh, sinh = jnp.cosh(small), jnp.sinh(small)
    large = jnp.where(near, 1, s)
    plus, minus = safe_product(a + b, jnp.exp(large)) / 2, safe_product(a - b, jnp.exp(-large)) / 2
    return (
        jnp.where(near, a * cosh + b * sinh, plus + minus),
        jnp.where(near, b * cosh + a * sinh, plus - minus),
    )
