"""Two-layer linear networks whose modes do not mix: exact at any width, from any start within a mode.

Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks"; each mode is
Theorem 1 of Xu & Liu Ziyin.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero, safe_sqrt
from .._arguments import flow_time
from ..linear._by_mode import by_own_weights, has_target, no_saddle, own_size, shared_modes, SingularModes
from ..linear._linear_flow import (
    AbstractLinearForm,
    linear_flow,
    linear_network,
    LinearFlow,
    positive_rates,
    tolerance,
    whitened_inputs,
)
from ._reduced_line import ReducedLine, rotate


class DecoupledModes(AbstractLinearForm):
    r"""The exact gradient flow of a two-layer linear network under MSE that learns its modes independently.

    With singular vectors $u_k, v_k$ common to the target and to $V_2 V_1$ at the start, mode k has the hidden
    vectors $a_k = V_2^\top u_k$ and $b_k = V_1 v_k$. If those of different modes are orthogonal, each pair follows the
    flow of a two-layer network on a line (Saxe's modes: vectors of one entry). Balance is not needed, rates are
    positive, and inputs are whitened on their row space. Modes with a target, but without the part of $a_k \pm b_k$
    that grows towards it, end at a saddle that only rounding leaves: such starts are rejected.

    Provides parameters, outputs, NTK at any t in [0, inf]. `reduce` gives every mode in six numbers, as a
    `js.theory.ReducedLine`. Derivatives are along changes that keep the singular vectors of target and start; along
    other changes, which mix the modes, they are 0 and not meaningful.

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 1.0])
        >>> init = js.nets.Given([0.01 * jnp.eye(2), 0.01 * jnp.eye(2)])
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, out_size=2, width_size=2, scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([4.0, 1.0])))
        >>> print(js.theory.DecoupledModes().reduce(problem).timescale.t_c.round(3))  # 1/(2 s) with s = 4/2, 1/2
        [0.25 1.  ]

    Reference:
        @inproceedings{saxe2014exact, title={Exact solutions to the nonlinear dynamics of learning in deep linear neural
          networks}, author={Andrew M. Saxe and James L. McClelland and Surya Ganguli}, booktitle={ICLR}, year={2014}}
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        start = _start(problem)
        return [
            whitened_inputs(problem),
            positive_rates(problem),
            Assumption("target and start share their singular vectors", start.misalignment, tolerance(problem)),
            Assumption("hidden vectors of different modes are orthogonal", start.overlap, tolerance(problem)),
            by_own_weights("no mode is changed by others", start.others),
            start.saddle,
        ]

    def reduce(self, problem: Problem) -> ReducedLine:
        """Every mode as the flow of a network on a line, shape (modes,).

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        return _lines(_start(problem))

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        self.require_kind(problem)
        start = _start(problem)
        flow, modes = start.flow, start.modes
        t = flow_time(t, problem.dtype)
        angle = _lines(start).log_xi(t)
        a, b = rotate(start.a, start.b, angle[None, :])
        first, last = flow.layers
        layers = (first + (b - start.b) @ modes.into.T, last + modes.out @ (a - start.a).T)
        return View(problem, t, flow.params(problem, layers))


class _DecoupledStart(NamedTuple):
    flow: LinearFlow
    modes: SingularModes
    a: Float[Array, "hidden modes"]
    b: Float[Array, "hidden modes"]
    strength: Float[Array, " modes"]  # of the target
    misalignment: Float[Array, ""]
    overlap: Float[Array, ""]
    others: Float[Array, " modes"]  # the effect of the rest on a mode, relative to the part of the mode that grows
    saddle: Assumption


def _lines(start: _DecoupledStart) -> ReducedLine:
    # dT/dt is absorbed in k: k (y - k a.b) with y = k s.
    k = jnp.broadcast_to(safe_sqrt(start.flow.speed), start.strength.shape)
    return jax.vmap(ReducedLine.from_layers, in_axes=(1, 1, 0, 0))(start.a, start.b, k, k * start.strength)


def _start(problem: Problem) -> _DecoupledStart:
    flow = linear_flow(problem)
    first, last = flow.layers
    inside = flow.project(first)
    modes = shared_modes(flow.task * jnp.sign(flow.outer), last @ inside, last @ last.T, inside.T @ inside)
    a, b = last.T @ modes.out, inside @ modes.into
    target = modes.out.T @ flow.target  # (modes, in)
    strength = jnp.sum(target * modes.into.T, axis=1)
    # A mode that moves must not overlap with any other direction, including those outside of all modes.
    size = jnp.linalg.norm
    present = jnp.sum(a * b, axis=0)
    moving = jnp.abs(strength) + jnp.abs(present)
    moving = moving / nonzero(jnp.max(moving))
    off_target = size(flow.target - modes.out @ (strength[:, None] * modes.into.T)) / nonzero(size(flow.target))
    off_start = size(last @ inside - modes.out @ (present[:, None] * modes.into.T))
    # V_2 a_k = |a_k|^2 u_k and V_1^T b_k = |b_k|^2 v_k, if hidden vectors of different modes are orthogonal.
    off_out = size((last @ a - modes.out * jnp.sum(a * a, axis=0)[None, :]) * moving[None, :])
    off_into = size((inside.T @ b - modes.into * jnp.sum(b * b, axis=0)[None, :]) * moving[None, :])
    size_in, size_out = nonzero(size(inside)), nonzero(size(last))
    largest = jnp.maximum(size_in, size_out)
    # The rotation multiplies a + b by e^s and a - b by e^-s: the sign of the target decides which of the two grows.
    growing = _columns(a + jnp.sign(strength)[None, :] * b) / 2
    aimed = has_target(strength, largest, matrices=2, tolerance=tolerance(problem))
    # The largest weight: at the start, or at the end, where a.b is the target.
    reach = jnp.maximum(largest, safe_sqrt(jnp.max(jnp.abs(strength))))
    own = jnp.where(aimed, own_size(growing, largest), reach)
    outside = jnp.concatenate([last - modes.out @ a.T, inside.T - modes.into @ b.T])
    crossed = jnp.abs(a.T @ b)
    shared = (jnp.abs(a.T @ a) + jnp.abs(b.T @ b) + crossed + crossed.T) / own[None, :]
    others = jnp.sum(jnp.where(jnp.eye(len(own), dtype=bool), 0, shared), axis=1)
    others = others + (_columns(outside @ a) + _columns(outside @ b)) / reach + off_target * reach
    return _DecoupledStart(
        flow,
        modes,
        a,
        b,
        strength,
        jnp.maximum(off_target, off_start / (size_in * size_out)),
        jnp.maximum(off_out / size_out**2, off_into / size_in**2),
        others=jnp.where(aimed, others / own, 0),
        saddle=no_saddle(growing, aimed, largest),
    )


def _columns(m: Float[Array, "rows modes"]) -> Float[Array, " modes"]:
    return safe_sqrt(jnp.sum(m**2, axis=0))
