r"""The first phase of a two-layer linear network from a small start: its weights rotate before its output moves.

Atanasov, Bordelon and Pehlevan, "Neural networks as kernel learners: the silent alignment effect", appendices B.1 and
B.2. While the output is small, $\dot a = W g$ and $\dot W = a g^\top$ with the constant $g = o\, X^\top Y/n$: a
hyperbolic rotation of $(a, W \hat g)$ by the angle $|g| t$.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from ..._checks import require_positive
from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero, safe_product, safe_sqrt
from .._arguments import flow_time
from ..linear._linear_flow import AbstractLinearForm, linear_flow, linear_network, LinearFlow, positive_rates
from ..xu_ziyin._reduced_line import rotate


SMALL = 0.01
"""The largest size (see `small_start`) of a start that counts as small: it causes errors of about one percent."""


class EarlyGrowth(NamedTuple):
    """The direction that grows from a small start, and its growth rate.

    Attributes:
        direction: the unit vector towards which the first layer and the kernel rotate; zero without a target.
        rate: |g|. The layers grow as exp(rate t), the kernel as exp(2 rate t), with t in gradient-flow time.
    """

    direction: Float[Array, " in"]
    rate: Float[Array, ""]


class PhaseOne(AbstractLinearForm):
    r"""The early flow of a two-layer linear network with one output, MSE loss and any inputs (eqs. 6, 20, 21).

    With V = W/sqrt(eta), o = gamma m_1 m_2 sqrt(eta_1 eta_2), g = o X^T Y/n and w = V_1 g/|g|:
    a(t) = a cosh(|g| t) + w sinh(|g| t), V_1(t) = V_1 + [a sinh(|g| t) + w (cosh(|g| t) - 1)] g^T/|g|.

    Truncated terms, relative to the weights, are of size o^2 lambda_max(X^T X/n) |V(t)|^2/|g|: the formula is accurate
    until the output is no longer small, at about log(1/sigma^2)/(2 |g|). After that the formula keeps growing and the
    network does not: `js.theory.SilentAlignment` covers the whole of training on whitened inputs.
    Asymptotic: `js.exact` never returns it. Provides parameters, outputs and NTK.

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1e-3, 1e-3], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=scaling, key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.array([[3.0, 0.0], [0.0, 2.0]]), jnp.array([2.0, 4.0]))
        >>> direction, rate = js.theory.PhaseOne().growth(problem)
        >>> print(*(f"{value:.2f}" for value in (*direction, rate)))  # of X^T Y/n = (3, 4)
        0.60 0.80 5.00

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
        return [positive_rates(problem), small_start(problem, linear_flow(problem))]

    def growth(self, problem: Problem) -> EarlyGrowth:
        r"""The direction of X^T Y, that is $\Sigma\beta$ for targets $\beta^\top x$, and the rate of growth.

        The kernel becomes $|a(t)|^2 x^\top [\Sigma\beta\beta^\top\Sigma/(\beta^\top\Sigma^2\beta) + I] x'$ (eq. 25,
        corrected: the printed coefficient has a square root).

        Raises:
            NotApplicable: the problem is of another kind.
        """
        return _growth(self._flow(problem))

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        flow = self._flow(problem)
        direction, rate = _growth(flow)
        first, a = flow.layers[0], flow.layers[1][0]
        t = flow_time(t, a.dtype)
        start = first @ direction
        a, w = rotate(a, start, safe_product(rate, t))
        # Only the part along the direction rotates; the rest of V_1 is constant.
        layers = (first + (w - start)[:, None] * direction[None, :], a[None, :])
        return View(problem, t, flow.params(problem, layers))

    def _flow(self, problem: Problem) -> LinearFlow:
        self.require_kind(problem)
        return linear_flow(problem)


def small_start(problem: Problem, flow: LinearFlow) -> Assumption:
    """The assumption of a small start: size/(1 + size) with size = o^2 (lambda_max(X^T X/n) |a|^2 + |V_1 X^T|^2/n)/|g|.

    It bounds what the early flow omits from each layer's velocity, relative to |g| times the other layer. Norms are
    operator norms. With whitened inputs it is (|a|^2 + |V_1|^2)/s, with V_1 within the row space.
    """
    n = problem.x.shape[0]
    first, a = flow.layers[0], flow.layers[1][0]
    _, spread, axes = jnp.linalg.svd(problem.x / n**0.5, full_matrices=False)
    seen = first @ (axes.T * spread[None, :])
    layers = flow.outer**2 * (spread[0] ** 2 * jnp.sum(a**2) + jnp.linalg.norm(seen, 2) ** 2)
    total = layers + _growth(flow).rate
    return Assumption("the start is small", layers / nonzero(total), SMALL, "squared weights over the target's size")


def early_overlaps(
    start: Float[ArrayLike, " 5"],
    t: Float[ArrayLike, ""],
    *,
    s: Float[ArrayLike, ""],
    a: Float[ArrayLike, ""],
    b: Float[ArrayLike, ""],
) -> Float[Array, " 5"]:
    r"""The five overlaps of the early flow on unwhitened inputs (eqs. 22 to 24), in closed form.

    $r = (\beta^\top W^\top a,\ |a|^2,\ \beta^\top W^\top W \Sigma\beta,\ \beta^\top\Sigma W^\top a,\
    \beta^\top\Sigma W^\top W\Sigma\beta)$ obeys $\dot r = s M r$ with the eigenvalues $0, \pm\sqrt b, \pm 2\sqrt b$ of
    the matrix M of eq. (23). Rates and gamma are 1; f(x) = a^T W x, and targets are s beta^T x.

    Arguments:
        start: r at t = 0.
        t: gradient-flow time >= 0.
        s: the size of the target.
        a: beta^T Sigma beta.
        b: beta^T Sigma^2 beta > 0.

    Example:
        >>> start = jnp.array([0.0, 1.0, 1.0, 0.0, 1.0])  # whitened inputs, where two pairs of overlaps are equal
        >>> r = js.theory.early_overlaps(start, 1.0, s=1.0, a=1.0, b=1.0)
        >>> print(*(f"{value:.3f}" for value in r))  # sinh(2) and cosh(2)
        3.627 3.762 3.762 3.627 3.762

    Raises:
        ValueError: t is negative, or b is not positive.
    """
    dtype = jnp.result_type(jnp.asarray(start), float)
    r1, r2, r3, r4, r5 = jnp.asarray(start, dtype)
    require_positive(b, "b")
    s, a, b = (jnp.asarray(value, dtype) for value in (s, a, b))
    t, root = flow_time(t, dtype), jnp.sqrt(b)
    angle = s * root * t
    # In terms of w = W Sigma beta/sqrt(b) and the part z of W beta that does not grow, z = W beta - (a/sqrt(b)) w.
    ww, aw, share = r5 / b, r4 / root, a / root
    z_a, z_w = r1 - share * aw, r3 / root - share * ww
    # (|a|^2 + |w|^2)/2 and a.w rotate by twice the angle, (z.a, z.w) by the angle; |a|^2 - |w|^2 is constant. Only the
    # gains are added, so that a small overlap next to a large one keeps its digits.
    mean, aw = _gain((r2 + ww) / 2, aw, 2 * angle)
    z_a, z_w = _gain(z_a, z_w, angle)
    gains = jnp.stack([z_a + share * aw, mean, root * (z_w + share * mean), root * aw, b * mean])
    return jnp.stack([r1, r2, r3, r4, r5]) + gains


def _gain(a: Array, b: Array, s: Array) -> tuple[Array, Array]:
    """The changes that `rotate` makes to a and b."""
    near = jnp.abs(s) < 1
    small = jnp.where(near, s, 0)
    # cosh s - 1 = 2 sinh(s/2)^2: for small s the difference itself would lose its digits.
    sinh, turn = jnp.sinh(small), 2 * jnp.sinh(small / 2) ** 2
    far_a, far_b = rotate(a, b, s)
    return jnp.where(near, a * turn + b * sinh, far_a - a), jnp.where(near, b * turn + a * sinh, far_b - b)


def _growth(flow: LinearFlow) -> EarlyGrowth:
    # speed * target = o X^T Y/n, for inputs of any second moment.
    pull = flow.target[0]
    length = safe_sqrt(jnp.sum(pull**2))
    return EarlyGrowth(pull / nonzero(length), flow.speed * length)
