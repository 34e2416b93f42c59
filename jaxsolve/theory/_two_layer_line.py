"""Two-layer linear networks on data along a line: exact at any width, from any start.

Xu & Liu Ziyin, "Three Mechanisms of Feature Learning in a Linear Network", Proposition 1 and Theorem 1.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._dynamics import AbstractRandomAccess, Assumption, NotApplicable, Quantity, Validity, View
from .._problem import Problem
from .._safe import nonzero, safe_product, safe_sqrt
from ..losses import MSE
from ..nets import AbstractDense
from ._reduced_line import ReducedLine


class TwoLayerLine(AbstractRandomAccess):
    """The exact gradient flow of a two-layer linear network with one output, MSE loss and inputs on a line.

    Any width, start, positive per-layer rates and gamma of any sign. Inputs x_i = a_i n are reduced to one point
    rho n with rho^2 = E[a^2] and the target E[a y]/rho (Proposition 1); test inputs may lie anywhere.

    Provides parameters, outputs, NTK at any t in [0, inf]. `reduce` gives the flow in six numbers, for zeta, norms and
    time scales at no cost.
    """

    @property
    def name(self) -> str:
        return "TwoLayerLine"

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return ts

    def check(self, problem: Problem) -> Validity:
        net, x = problem.net, problem.x
        dense = isinstance(net, AbstractDense)
        kind = [
            ("a dense network", dense, type(net).__name__),
            ("two weight matrices", dense and len(net.weights) == 2, f"{len(net.weights) if dense else '?'} matrices"),
            ("linear activation", dense and net.activation.linear, str(net.activation) if dense else "?"),
            ("no biases", dense and not net.biases, "biases"),
            ("one output", problem.y.shape[1] == 1, f"{problem.y.shape[1]} outputs"),
            ("MSE loss", isinstance(problem.loss, MSE), type(problem.loss).__name__),
            ("inputs are vectors", x.ndim == 2, f"inputs of shape {x.shape[1:]}"),
        ]
        dtype = x.dtype
        eps = float(jnp.finfo(dtype).eps)
        assumptions = [
            Assumption(name, jnp.asarray(0.0 if holds else np.inf, dtype), 0.0, "" if holds else f"it has {found}")
            for name, holds, found in kind
        ]
        if all(holds for _, holds, _ in kind):
            n, a = _line(x)
            off = jnp.linalg.norm(x - a[:, None] * n[None, :]) / nonzero(jnp.linalg.norm(x))
            eta = jnp.stack([jnp.asarray(rate) for rate in net.rates().weights])
            assumptions += [
                Assumption("inputs lie on a line", off, 100 * eps, "share of the inputs' norm off the line"),
                Assumption("both rates are positive", jnp.where(jnp.all(eta > 0), 0.0, 1.0).astype(dtype), 0.0),
            ]
        return Validity(tuple(assumptions))

    def reduce(self, problem: Problem) -> ReducedLine:
        """The flow of a problem in six numbers.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        return self._reduce(problem).reduced

    def _reduce(self, problem: Problem) -> "_Line":
        validity = self.check(problem)
        if validity.structural:
            raise NotApplicable(f"TwoLayerLine does not solve this problem: it needs {validity.missed()}")
        net = problem.net
        w, u = net.weights[0], net.weights[1][0]
        eta_w, eta_u = net.rates().weights
        n, along = _line(problem.x)
        rho = safe_sqrt(jnp.mean(along**2))
        target = problem.y[:, 0] if problem.initial is None else problem.y[:, 0] + problem.initial[:, 0]
        y = jnp.mean(along * target) / nonzero(rho)
        outer = net.scaling.gamma * net.scaling.multiplier[0] * net.scaling.multiplier[1]
        sign = jnp.where(outer < 0, -1, 1).astype(y.dtype)
        a, b = u / jnp.sqrt(eta_u), (w @ n) / jnp.sqrt(eta_w)
        k = jnp.abs(outer) * rho * jnp.sqrt(eta_u) * jnp.sqrt(eta_w)
        return _Line(ReducedLine.from_layers(a, b, k, sign * y), a, b, n, along, rho, sign)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        line = self._reduce(problem)
        reduced, net = line.reduced, problem.net
        t = jnp.asarray(t, problem.x.dtype)
        s = reduced.log_xi(t)
        a, b = _rotate(line.a, line.b, s)
        eta_w, eta_u = net.rates().weights
        u = (jnp.sqrt(eta_u) * a)[None, :]
        w = net.weights[0] + (jnp.sqrt(eta_w) * (b - line.b))[:, None] * line.n[None, :]
        params = eqx.tree_at(lambda p: p.weights, problem.params, (w, u))
        scaled = line.along / nonzero(line.rho)
        outputs = (line.sign * reduced.f(t) * scaled)[:, None]
        outputs = outputs if problem.initial is None else outputs - problem.initial
        kernel = reduced.ntk(t) * (scaled[:, None] * scaled[None, :])
        return View(problem, t, params, given_outputs=outputs, given_kernel=kernel[:, None, :, None])


class _Line(NamedTuple):
    reduced: ReducedLine
    a: Float[Array, " width"]
    b: Float[Array, " width"]
    n: Float[Array, " in"]
    along: Float[Array, " n"]  # the coordinate of every input on the line
    rho: Float[Array, ""]
    sign: Float[Array, ""]  # of gamma m_1 m_2


def _line(x: Float[Array, "n in"]) -> tuple[Float[Array, " in"], Float[Array, " n"]]:
    """The direction of inputs on a line, and their coordinates: one power iteration from the longest input is exact."""
    scaled = x / nonzero(jnp.max(jnp.abs(x)))
    longest = scaled[jnp.argmax(jnp.sum(scaled**2, axis=1))]
    n = (scaled @ longest) @ scaled
    n = n / nonzero(safe_sqrt(jnp.sum(n**2)))
    return n, x @ n


def _rotate(a: Array, b: Array, s: Array) -> tuple[Array, Array]:
    """(a cosh s + b sinh s, b cosh s + a sinh s): in this form for small s, through a + b and a - b for large."""
    near = jnp.abs(s) < 1
    small = jnp.where(near, s, 0)
    cosh, sinh = jnp.cosh(small), jnp.sinh(small)
    large = jnp.where(near, 1, s)
    plus, minus = safe_product(a + b, jnp.exp(large)) / 2, safe_product(a - b, jnp.exp(-large)) / 2
    return (
        jnp.where(near, a * cosh + b * sinh, plus + minus),
        jnp.where(near, b * cosh + a * sinh, plus - minus),
    )
