"""Two-layer linear networks on data along a line: exact at any width, from any start.

Xu & Liu Ziyin, "Three Mechanisms of Feature Learning in a Linear Network", Proposition 1 and Theorem 1.
"""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, NotApplicable, Problem, Quantity, View
from ..._numerics import kept_product, nonzero, norm
from ...losses import AbstractLoss, MSE
from .._arguments import flow_time
from ..linear._by_mode import leaves_saddle
from ..linear._linear_flow import AbstractLinearForm, linear_network, positive_rates
from ._line_clock import line_clock, LineClock, Speed
from ._reduced_line import ReducedLine, rotate


class TwoLayerLine(AbstractLinearForm):
    """The exact gradient flow of a two-layer linear network with one output, inputs on a line and a smooth loss.

    Any width, start and positive per-layer rates, and gamma of any sign; test inputs may lie anywhere. Under MSE,
    inputs x_i = a_i n reduce to one point rho n with rho^2 = E[a^2] and the target E[a y]/rho (Proposition 1), and
    everything is in closed form. Under another differentiable loss the weights take the same path at another pace: a
    scalar quadrature, whose relative error `check` measures. It is 1e-13 for smooth convex losses. More than 1e-10
    (1e-3 in single precision) is rejected: kinks, and most losses with several minima along the path, where the pace
    nearly drops to zero on the way. At t = inf, a loss that ends in a kink has no derivative: it is not finite.

    A start that differs from the saddle only by rounding is rejected, because rounding decides when it leaves.

    Provides parameters, outputs, NTK at any t in [0, inf]. `reduce` gives the flow in six numbers, a
    `js.theory.ReducedLine`, from which zeta, norms and time scales follow at no cost. Derivatives in the inputs
    are along changes that leave them on a line.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.array([[3.0, 4.0]]), jnp.array([2.0]))  # one data point
        >>> end = js.solve(problem, js.theory.TwoLayerLine(), float("inf"), observe=js.observe.outputs())
        >>> print(f"{end['outputs'].item():.4f}")
        2.0000

    Reference:
        @inproceedings{xu2025three, title={Three Mechanisms of Feature Learning in a Linear Network},
          author={Yizhou Xu and Liu Ziyin}, booktitle={ICLR}, year={2025}, note={arXiv 2401.07085}}
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2, outputs=1, loss=AbstractLoss)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        n, a = _line(problem.x)
        off = norm(problem.x - a[:, None] * n[None, :]) / nonzero(norm(problem.x))
        rounding = 100 * float(jnp.finfo(problem.dtype).eps)
        found = [
            Assumption("inputs lie on a line", off, rounding, "share of the inputs' norm off the line"),
            positive_rates(problem),
        ]
        line = _read(problem)
        # As in `rotate`, a + b grows towards a target y > 0, and a - b towards a target y < 0.
        growing = norm(line.a + jnp.where(line.reduced.y < 0, -1, 1) * line.b) / 2
        largest = jnp.max(jnp.abs(jnp.stack([line.a, line.b])))
        found.append(leaves_saddle(growing, largest, line.reduced.y / nonzero(line.reduced.k)))
        if not isinstance(problem.loss, MSE):
            found.append(
                Assumption(
                    "the loss is smooth enough for the clock's quadrature",
                    _clock(problem, line).error,
                    max(1e-10, 1e4 * float(jnp.finfo(problem.dtype).eps)),
                    "relative error of the angle",
                )
            )
        return found

    def reduce(self, problem: Problem) -> ReducedLine:
        """The flow of a problem under MSE in six numbers.

        Raises:
            NotApplicable: the problem is of another kind, or its loss is not MSE.
        """
        self.require_kind(problem)
        if not isinstance(problem.loss, MSE):
            raise NotApplicable(
                f"the flow in six numbers is that of MSE, this problem has {type(problem.loss).__name__}; "
                "`at` serves others"
            )
        return _read(problem).reduced

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        self.require_kind(problem)
        line = _read(problem)
        reduced, net = line.reduced, problem.net
        t = flow_time(t, problem.dtype)
        if isinstance(problem.loss, MSE):
            s, product = reduced.log_xi(t), reduced.layer_product(t)
        else:
            s = _clock(problem, line).angle(_speed(problem, line), t)
            product = reduced.product_at(s)
        a, b = rotate(line.a, line.b, s)
        eta_w, eta_u = net.rates().weights
        u = (jnp.sqrt(eta_u) * a)[None, :]
        # At t = inf layers may be infinite, but only along the line.
        w = net.weights[0] + kept_product(line.n[None, :], (jnp.sqrt(eta_w) * (b - line.b))[:, None])
        params = eqx.tree_at(lambda p: p.weights, problem.params, (w, u))
        outputs = _outputs(problem, line, product)
        # The kernel of the reduced point, times the coordinates of both inputs divided by rho.
        kernel = kept_product(line.scaled[:, None] * line.scaled[None, :], reduced.ntk_of(product))
        return View(
            problem,
            t,
            params,
            given_outputs=outputs,
            given_kernel=kernel[:, None, :, None],
            given_observations={"layer_alignment": reduced.zeta_of(product)[None]},
        )


class _Line(NamedTuple):
    reduced: ReducedLine
    a: Float[Array, " width"]
    b: Float[Array, " width"]
    n: Float[Array, " in"]
    along: Float[Array, " n"]  # the coordinate of every input on the line
    rho: Float[Array, ""]
    sign: Float[Array, ""]  # of gamma m_1 m_2

    @property
    def scaled(self) -> Float[Array, " n"]:
        """The coordinates divided by their root mean square."""
        return self.along / nonzero(self.rho)


def _read(problem: Problem) -> _Line:
    net = problem.net
    w, u = net.weights[0], net.weights[1][0]
    eta_w, eta_u = net.rates().weights
    n, along = _line(problem.x)
    rho = norm(along) / math.sqrt(along.size)
    target = problem.y[:, 0] if problem.initial is None else problem.y[:, 0] + problem.initial[:, 0]
    y = jnp.mean(along * target) / nonzero(rho)
    outer = net.scaling.gamma * net.scaling.multiplier[0] * net.scaling.multiplier[1]
    sign = jnp.where(outer < 0, -1, 1).astype(y.dtype)
    a, b = u / jnp.sqrt(eta_u), (w @ n) / jnp.sqrt(eta_w)
    k = jnp.abs(outer) * rho * jnp.sqrt(eta_u) * jnp.sqrt(eta_w)
    return _Line(ReducedLine.from_layers(a, b, k, sign * y), a, b, n, along, rho, sign)


def _outputs(problem: Problem, line: _Line, product: Float[Array, ""]) -> Float[Array, "n out"]:
    outputs = kept_product(line.scaled, line.sign * kept_product(line.reduced.k, product))[:, None]
    return outputs if problem.initial is None else outputs - problem.initial


def _speed(problem: Problem, line: _Line) -> Speed:
    def speed(s):
        # k g(a.b) of the docstring of `_line_clock`; the loss's gradient already includes the 1/n of the average.
        slopes = problem.loss.gradient(_outputs(problem, line, line.reduced.product_at(s)), problem.y)[:, 0]
        return -line.reduced.k * line.sign * jnp.sum(line.scaled * slopes)

    return speed


@eqx.filter_jit  # `check` is called outside of traces too, where its many steps would be compiled separately
def _clock(problem: Problem, line: _Line) -> LineClock:
    return line_clock(_speed(problem, line), problem.dtype)


def _line(x: Float[Array, "n in"]) -> tuple[Float[Array, " in"], Float[Array, " n"]]:
    """The direction of inputs on a line, and their coordinates. One power iteration from the longest input is exact."""
    scaled = x / nonzero(jnp.max(jnp.abs(x)))
    longest = scaled[jnp.argmax(jnp.sum(scaled**2, axis=1))]
    n = (scaled @ longest) @ scaled
    n = n / nonzero(norm(n))
    return n, x @ n
