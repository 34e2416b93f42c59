"""Balanced deep linear networks on whitened inputs: exact at any depth.

Saxe et al. 2014; Arora et al. 2018; Atanasov, Bordelon & Pehlevan 2022, section 4 (corrected).
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero
from .._arguments import flow_time
from ._by_mode import by_own_weights, has_target, layer_modes, no_saddle, own_size
from ._deep_mode import half_loss_time, mode_strength
from ._linear_flow import (
    AbstractLinearForm,
    linear_flow,
    linear_network,
    LinearFlow,
    positive_rates,
    tolerance,
    whitened_inputs,
)


class DeepBalanced(AbstractLinearForm):
    r"""The exact gradient flow of a balanced linear network of L >= 2 matrices under MSE, mode by mode.

    Balanced means $V_{l+1}^\top V_{l+1} = V_l V_l^\top$ for $V_l = W_l/\sqrt{\eta_l}$, with $V_1$ on the inputs' row
    space. Target and start share their singular vectors; inputs are whitened on their row space; rates are positive.
    Then all layers have the same singular values v, and every mode obeys $\dot v = v^{L-1} (s - v^L)$.

    Modes that oppose their target, or have one and start at zero, end at a saddle that only rounding leaves: rejected.

    Provides parameters, outputs, NTK at any t in [0, inf]. Derivatives are along changes that keep the singular vectors
    of target and start; along other changes, which mix the modes, they are 0 and not meaningful.

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0] * 3, sigma=[1.0] * 3, eta=[1.0] * 3)
        >>> init = js.nets.Given([0.2 * jnp.eye(2)] * 3)
        >>> net = js.nets.DeepLinear(
        ...     in_size=2, out_size=2, width_size=2, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([3.0, 1.0])))
        >>> strong, weak = js.theory.DeepBalanced().half_loss_times(problem)
        >>> print(f"{strong:.1f}, then {weak:.1f}")
        2.8, then 7.5

    Reference:
        @inproceedings{saxe2014exact, title={Exact solutions to the nonlinear dynamics of learning in deep linear neural
          networks}, author={Andrew M. Saxe and James L. McClelland and Surya Ganguli}, booktitle={ICLR}, year={2014}}
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        start = _start(problem)
        return [
            whitened_inputs(problem),
            positive_rates(problem),
            Assumption("adjacent layers are balanced", start.imbalance, tolerance(problem)),
            Assumption("target and start share their singular vectors", start.misalignment, tolerance(problem)),
            by_own_weights("every mode is the same in all layers", start.mismatch),
            start.saddle,
        ]

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        self.require_kind(problem)
        start = _start(problem)
        flow = start.flow
        t = flow_time(t, problem.dtype)
        # Saddles are left by powers of time, so T has to be infinite at t = inf.
        endless = jnp.isinf(t)
        T = jnp.where(endless & (flow.speed > 0), jnp.inf, flow.speed * jnp.where(endless, 0, t))
        v = mode_strength(start.v, start.target, T, matrices=len(flow.layers))
        layers = tuple(
            # Only the gain of the modes is added, so the part of a layer that is in no mode stays constant.
            layer + above @ ((v - start.v)[:, None] * below.T)
            for layer, below, above in zip(flow.layers, start.frames[:-1], start.frames[1:], strict=True)
        )
        return View(problem, t, flow.params(problem, layers))

    def half_loss_times(self, problem: Problem) -> Float[Array, " modes"]:
        """The gradient-flow time at which the loss of each mode has halved; NaN for modes that do not rise.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        start = _start(problem)
        times = half_loss_time(start.v, start.target, matrices=len(start.flow.layers))
        return jnp.where(start.flow.speed == 0, jnp.nan, times / nonzero(start.flow.speed))


class _DeepBalancedStart(NamedTuple):
    flow: LinearFlow
    frames: tuple[Float[Array, "layer modes"], ...]  # shared by the layers below and above, input first
    v: Float[Array, " modes"]  # singular values, the same in all layers
    target: Float[Array, " modes"]  # of v^L
    imbalance: Float[Array, ""]
    misalignment: Float[Array, ""]
    mismatch: Float[Array, " modes"]  # between layers and with other modes, relative to v
    saddle: Assumption


def _start(problem: Problem) -> _DeepBalancedStart:
    flow = linear_flow(problem)
    first = flow.project(flow.layers[0])
    layers = (first, *flow.layers[1:])
    modes, product, scales, frames, sizes = layer_modes(layers, flow.task * jnp.sign(flow.outer))
    target = jnp.sum(modes.out * (flow.target @ modes.into), axis=0)
    shares = jnp.stack([one / scale for one, scale in zip(sizes, scales, strict=True)])
    alive = jnp.all(shares > 0, axis=0)
    # The geometric mean over layers, through logarithms, as products of many small numbers would underflow.
    logs = jnp.mean(jnp.log(jnp.where(alive, jnp.stack(sizes), 1)), axis=0)
    v = jnp.where(alive, jnp.exp(logs), 0)
    strength = jnp.sum(modes.out * frames[-1], axis=0) * jnp.prod(shares, axis=0)
    rebuild = lambda diagonal: modes.out @ (diagonal[:, None] * modes.into.T)
    gaps = [
        jnp.linalg.norm(above.T @ above - below @ below.T) / nonzero(jnp.sum(above**2) + jnp.sum(below**2))
        for below, above in zip(layers[:-1], layers[1:], strict=True)
    ]
    off_target = jnp.linalg.norm(flow.target - rebuild(target)) / nonzero(jnp.linalg.norm(flow.target))
    off_start = jnp.linalg.norm(product - rebuild(strength))
    # The frames carry v >= 0: where they are opposite to a mode, its target has the other sign.
    target = jnp.where(strength < 0, -target, target)
    # A mode is moved by its overlap with others and by a rotated target: both relative to its own weights.
    lengths = lambda columns: jnp.linalg.norm(columns, axis=0)
    leaks = [
        lengths(w.T @ above - below * v[None, :])
        for w, below, above in zip(layers, frames[:-1], frames[1:], strict=True)
    ]
    leaks.append(lengths(frames[-1] - modes.out * jnp.where(strength < 0, -1, 1)[None, :]) * v)
    largest = jnp.max(jnp.stack([lengths(layer).max() for layer in layers]))
    # The largest weight: at the start, or at the end, where v^L is the target.
    reach = jnp.maximum(largest, jnp.max(jnp.abs(target)) ** (1 / len(layers)))
    leak = jnp.max(jnp.stack(leaks), axis=0) + off_target * reach
    aimed = has_target(target, largest, matrices=len(layers), tolerance=tolerance(problem))
    return _DeepBalancedStart(
        flow,
        tuple(frames),
        v,
        target,
        jnp.max(jnp.stack(gaps)),
        jnp.maximum(off_target, off_start),
        mismatch=jnp.where(aimed, leak / own_size(v, largest), 0),
        saddle=no_saddle(jnp.where(target > 0, v, 0), aimed, largest),
    )
