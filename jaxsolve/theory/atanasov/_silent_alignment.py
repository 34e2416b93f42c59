r"""Two-layer linear networks from a small start, over the whole of training: silent alignment.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", section 3 and
appendix B. In the units of `_linear_flow`, with the target $s \beta^\top$ and $w = V_1 \beta$, the pair $(a, w)$
rotates as in Theorem 1 of Xu & Liu Ziyin with k = 1, y = s, P = q + r, Q = q - r at the start.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import require_not_negative, require_size
from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero, safe_hypot, safe_sqrt
from .._arguments import flow_time
from ..linear._linear_flow import (
    AbstractLinearForm,
    linear_flow,
    linear_network,
    LinearFlow,
    positive_rates,
    whitened_inputs,
)
from ..xu_ziyin._reduced_line import ReducedLine, rotate
from ._phase_one import small_start


OPPOSED = 0.99
"""The largest share Q/(P + Q) of the start that may point away from the target: errors grow as sqrt((P + Q)/P)."""


class Overlaps(NamedTuple):
    """The overlaps of both layers with the target, in natural units (rates and multipliers divided out).

    Attributes:
        q: (|a|^2 + |V_1 beta|^2)/2, half of the kernel in the direction of the target.
        r: a^T V_1 beta, the network in the direction of the target; converges to s.
    """

    q: Float[Array, "..."]
    r: Float[Array, "..."]


class SilentAlignment(AbstractLinearForm):
    r"""The gradient flow of a two-layer linear network with one output from a small start on whitened inputs.

    Covers alignment (eqs. 6 and 16 to 19, corrected) and spectral learning (eqs. 26 to 28, corrected) in one formula.
    With V = W/sqrt(eta), $\theta(t) = \ln\xi(t)$, $B = a \sinh\theta + w (\cosh\theta - 1)$ and $p = a + w$,

    $a(t) = a \cosh\theta + w \sinh\theta$,
    $V_1(t) = V_1 + B \beta^\top - \Big(1 - \sqrt{\tfrac{s - r(t)}{s - r(0)}}\Big) \hat p \hat p^\top V_\perp$,

    where $V_\perp$ is the part of V_1 in the row space of the inputs and orthogonal to $\beta$. The last term is not in
    the paper: it is what the network unlearns in other directions while it fits. With it, outputs are accurate to
    O(sigma^2 log(1/sigma)), without it only to O(sigma); q and r are accurate to the former order either way.

    Errors are of the order of the start's size, (|a|^2 + |V_1|^2)/s, which `check` reports; it accepts at most 0.01.
    Relative to the largest value, measured errors were up to 1.5 times that size for outputs and kernel (0.1 to 0.6
    times for most starts) and up to 3.1 times for the weights: measurements, not bounds. Inputs must be whitened on
    their row space, with any number of samples. Widths, positive rates, multipliers and gamma are free.
    Asymptotic: `js.exact` never returns it. Provides parameters, outputs, NTK at any t in [0, inf].

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1e-3, 1e-3], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(in_size=3, width_size=8, scaling=scaling, key=jax.random.key(0))
        >>> problem = js.Problem(net, 3**0.5 * jnp.eye(3), jnp.array([1.0, 2.0, 2.0]))
        >>> end = js.theory.SilentAlignment().overlaps(problem, jnp.inf)
        >>> print(f"q = {end.q:.3f}, r = {end.r:.3f}")  # both reach the target's size s = 3/sqrt(3)
        q = 1.732, r = 1.732

    Reference:
        @inproceedings{atanasov2022neural, title={Neural networks as kernel learners: the silent alignment effect},
          author={Alexander Atanasov and Blake Bordelon and Cengiz Pehlevan}, booktitle={ICLR}, year={2022}}
    """

    asymptotic: ClassVar[bool] = True

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2, outputs=1)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        path = _path(linear_flow(problem))
        return [
            positive_rates(problem),
            whitened_inputs(problem),
            small_start(problem, path.flow),
            _not_opposed(path.line),
        ]

    def reduce(self, problem: Problem) -> ReducedLine:
        """The flow along the target in six numbers, in gradient-flow time: f is k r, and its target is k s.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        return self._path(problem).line

    def overlaps(self, problem: Problem, t: Float[ArrayLike, "..."]) -> Overlaps:
        r"""q(t) and r(t) for t in [0, inf].

        $r, q = s\,\frac{(q_0 + r_0) e^{2sT} \mp (q_0 - r_0) e^{-2sT}}{(q_0 + r_0)(e^{2sT} - 1) + 2s}$ up to
        O(sigma^2) (eqs. 27 and 28, corrected: the printed pair holds only for r_0 = 0); T is time in natural units.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        line = self.reduce(problem)
        r = line.layer_product(flow_time(t, problem.dtype))
        return Overlaps(safe_hypot(r, line.root_pq), r)

    def kernel_matrix(self, problem: Problem, t: Float[Array, ""]) -> Float[Array, "in in"]:
        """M(t) of the eta-weighted NTK x^T M x' (eqs. 5, 7, 19, corrected): o^2 (V_1^T V_1 + |a|^2 I).

        From q_0 = O(sigma^2) it turns to the shape beta beta^T + I, then grows to o^2 s (beta beta^T + I) (eq. 8).

        Raises:
            NotApplicable: the problem is of another kind.
        """
        path = self._path(problem)
        first, a = path.layers(flow_time(t, problem.dtype))
        identity = jnp.eye(first.shape[1], dtype=first.dtype)
        return path.flow.outer**2 * (first.T @ first + jnp.sum(a**2) * identity)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        path = self._path(problem)
        t = flow_time(t, problem.dtype)
        return View(problem, t, path.flow.params(problem, path.layers(t)))

    def _path(self, problem: Problem) -> "_LayerPath":
        self.require_kind(problem)
        return _path(linear_flow(problem))


class _LayerPath(NamedTuple):
    flow: LinearFlow
    line: ReducedLine
    beta: Float[Array, " in"]
    w: Float[Array, " width"]

    def layers(self, t: Float[Array, ""]) -> tuple[Float[Array, "width in"], Float[Array, "1 width"]]:
        first, a = self.flow.layers[0], self.flow.layers[1][0]
        a, w = rotate(a, self.w, self.line.log_xi(t))
        p = self.flow.layers[1][0] + self.w
        p = p / nonzero(safe_sqrt(jnp.sum(p**2)))
        # p^T V_perp: the part along beta is removed.
        across = p @ self.flow.project(first) - (p @ self.w) * self.beta
        start = self.line.residual(jnp.zeros_like(t))
        unlearnt = 1 - safe_sqrt(self.line.residual(t) / nonzero(start))
        first = first + (w - self.w)[:, None] * self.beta[None, :] - p[:, None] * (unlearnt * across)[None, :]
        return first, a[None, :]


def _path(flow: LinearFlow) -> _LayerPath:
    s = safe_sqrt(jnp.sum(flow.target**2))
    beta = flow.target[0] / nonzero(s)
    w = flow.layers[0] @ beta
    # dT/dt is absorbed in k: k (y - k a.w) with y = k s.
    k = safe_sqrt(flow.speed)
    return _LayerPath(flow, ReducedLine.from_layers(flow.layers[1][0], w, k, k * s), beta, w)


def _not_opposed(line: ReducedLine) -> Assumption:
    away = (line.total - line.product) / nonzero(2 * line.total)
    return Assumption("the start does not oppose the target", away, OPPOSED, "share of it that must first decay")


class StartOverlaps(NamedTuple):
    """q and r of a random start: mean and standard deviation of q, standard deviation of r (its mean is 0)."""

    q_mean: Float[Array, ""]
    q_std: Float[Array, ""]
    r_std: Float[Array, ""]


def start_overlaps(
    width: int, *, sigma_u: float = 1.0, sigma_w: float = 1.0, eta_u: float = 1.0, eta_w: float = 1.0
) -> StartOverlaps:
    """The statistics of `Overlaps` for a start with u_i ~ N(0, sigma_u^2), w_ij ~ N(0, sigma_w^2) (eq. 17).

    With S = sigma^2/eta of each layer: q_mean = h (S_u + S_w)/2, q_std = sqrt(h (S_u^2 + S_w^2)/2),
    r_std = sqrt(h S_u S_w) at width h. The paper has S_u = sigma^2/h, S_w = sigma^2/d and no q_std. The ratio
    r_std/q_mean = 2/(sqrt(d) (1 + h/d)) tells if r_0 is negligible against q_0; at h = 10, d = 25 it is 0.29.

    Returns:
        `q_mean`, `q_std` and `r_std`; the mean of r is 0.

    Example:
        >>> start = js.theory.start_overlaps(100, sigma_u=0.1, sigma_w=0.1)
        >>> print(f"q = {start.q_mean:.2f} +- {start.q_std:.2f}, r = 0 +- {start.r_std:.2f}")
        q = 1.00 +- 0.10, r = 0 +- 0.10

    Arguments:
        width: number of hidden units h.
        sigma_u, eta_u: initial standard deviation and rate of the last layer; rates are > 0.
        sigma_w, eta_w: the same for the first layer.

    Raises:
        ValueError: a sigma or rate is negative or not finite, a rate is zero, or width < 1.
        TypeError: width is not an integer.
    """
    width = require_size(width, "width")
    for name, value in {"sigma_u": sigma_u, "sigma_w": sigma_w, "eta_u": eta_u, "eta_w": eta_w}.items():
        require_not_negative(value, name)
    if not (eta_u > 0 and eta_w > 0):
        raise ValueError(f"both rates must be > 0, got {eta_u} and {eta_w}")
    u, w = (jnp.asarray(sigma**2 / eta, jnp.result_type(float)) for sigma, eta in ((sigma_u, eta_u), (sigma_w, eta_w)))
    return StartOverlaps(
        width * (u + w) / 2, (width / 2) ** 0.5 * safe_hypot(u, w), width**0.5 * safe_sqrt(u) * safe_sqrt(w)
    )
