"""Muon in deep linear networks: every mode moves at constant speed until it reaches its target."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero
from .._arguments import flow_time
from ._by_mode import by_own_weights, has_target, layer_modes, no_saddle, own_size
from ._linear_flow import AbstractLinearForm, linear_flow, linear_network, positive_rates, tolerance, whitened_inputs


class MuonModes(AbstractLinearForm):
    r"""The exact flow of orthogonalized gradients (Muon with small steps) in aligned deep linear networks under MSE.

    The flow is $\dot W_l = -\eta_l\, \mathrm{polar}(\partial L/\partial W_l)$ with
    $\mathrm{polar}(A) = A (A^\top A)^{-1/2}$ on the range of A: all singular values of a step are 1. Where target and
    layers share their singular vectors (aligned), every singular value of every layer moves at its layer's speed,

    $$w_{l,k}(t) = w_{l,k}(0) + \eta_l t \quad \text{until} \quad \prod_l w_{l,k} = s_k,$$

    and then stops; from above the target it falls. Weak modes are therefore learned first, where gradient flow learns
    strong modes first, and layers need not be balanced. Steps of size h oscillate about the end by
    $h \prod_{j \ne l} w_j$. If a fraction of a start's weights is not aligned, it deviates from the solution by about
    that fraction, which `check` measures mode by mode.

    Give it to `js.solve` in place of a simulation. `js.exact`, which is for gradient flow, never chooses it. Time is
    the rate times the number of steps. Provides parameters, outputs, NTK at any t in [0, inf].

    Example:
        >>> scaling = js.nets.Scaling(multiplier=[1.0] * 3, sigma=[1.0] * 3, eta=[1.0] * 3)
        >>> init = js.nets.Given([0.2 * jnp.eye(2)] * 3)
        >>> net = js.nets.DeepLinear(
        ...     in_size=2, out_size=2, width_size=2, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.diag(jnp.array([3.0, 1.0])))
        >>> strong, weak = js.theory.MuonModes().arrival_times(problem)
        >>> print(f"{weak:.2f}, then {strong:.2f}")  # 1 - 0.2, then 3^(1/3) - 0.2
        0.80, then 1.24

    Reference:
        Muon: Jordan et al. 2024; matrix factorization with it: Rhee, Simon and Karkada, arXiv 2606.30509 (`jaxsolve
        reproduce rhee/fig1`). The solution is derived here, and tested against steps with exact polar factors.
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
            Assumption("target and start share their singular vectors", start.off_target, tolerance(problem)),
            by_own_weights("every mode is alone in all layers", start.mismatch),
            start.saddle,
        ]

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        self.require_kind(problem)
        start = _start(problem)
        t = flow_time(t, problem.dtype)
        gained = start.speeds * jnp.minimum(t, start.arrival)[None, :]
        layers = tuple(
            # The part of a layer that is in no mode stays constant.
            layer + above @ (gain[:, None] * below.T)
            for layer, gain, below, above in zip(
                problem.params.weights, gained, start.frames[:-1], start.frames[1:], strict=True
            )
        )
        return View(problem, t, eqx.tree_at(lambda params: params.weights, problem.params, layers))

    def arrival_times(self, problem: Problem) -> Float[Array, " modes"]:
        """The time (rate times number of steps) at which each mode reaches its target and stops.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        return _start(problem).arrival


class _MuonStart(NamedTuple):
    frames: tuple[Float[Array, "layer modes"], ...]  # shared by the layers below and above, input first
    speeds: Float[Array, "layers modes"]  # of singular values: the rate, or minus the rate for modes above their target
    arrival: Float[Array, " modes"]
    off_target: Float[Array, ""]
    mismatch: Float[Array, " modes"]  # overlap with other modes, relative to the mode's smallest weight
    saddle: Assumption


def _start(problem: Problem) -> _MuonStart:
    flow = linear_flow(problem)
    rates = jnp.stack([jnp.asarray(rate, problem.dtype) for rate in problem.net.rates().weights])
    layers = list(problem.params.weights)
    layers[0] = flow.project(layers[0])
    goal = flow.target * jnp.prod(jnp.sqrt(rates))  # for the product of the weights themselves
    modes, _, _, frames, each = layer_modes(layers, goal)
    sizes, pairs = jnp.stack(each), list(zip(layers, frames[:-1], frames[1:], strict=True))
    # The frames carry sizes >= 0: where they are opposite to a mode, its target has the other sign.
    turned = jnp.where(jnp.sum(modes.out * frames[-1], axis=0) < 0, -1, 1)
    target = jnp.sum(modes.out * (goal @ modes.into), axis=0) * turned
    rebuilt = modes.out @ ((target * turned)[:, None] * modes.into.T)
    off_target = jnp.linalg.norm(goal - rebuilt) / nonzero(jnp.linalg.norm(goal))

    lengths = lambda columns: jnp.linalg.norm(columns, axis=0)
    leaks = [
        jnp.maximum(lengths(layer.T @ above - below * size[None, :]), lengths(layer @ below - above * size[None, :]))
        for (layer, below, above), size in zip(pairs, sizes, strict=True)
    ]
    leaks.append(lengths(frames[-1] - modes.out * turned[None, :]) * sizes[-1])
    largest, smallest = jnp.max(jnp.stack([lengths(layer).max() for layer in layers])), jnp.min(sizes, axis=0)
    aimed = has_target(target, largest, matrices=len(layers), tolerance=tolerance(problem))
    leak = jnp.max(jnp.stack(leaks), axis=0) / own_size(smallest, largest)

    rises = jnp.prod(sizes, axis=0) < target
    speeds = jnp.where(rises[None, :], 1, -1) * rates[:, None]
    alive = jnp.all(sizes > 0, axis=0)
    arrival = jnp.where(alive, _arrival(sizes, speeds, jnp.maximum(target, 0)), 0)
    saddle = no_saddle(jnp.where(target > 0, smallest, 0), aimed, largest)
    return _MuonStart(tuple(frames), speeds, arrival, off_target, jnp.where(aimed | alive, leak, 0), saddle)


def _arrival(
    sizes: Float[Array, "layers modes"], speeds: Float[Array, "layers modes"], target: Float[Array, " modes"]
) -> Float[Array, " modes"]:
    """The t >= 0 with prod_l (sizes + speeds t) = target, by bisection; a Newton step provides its derivative."""
    reached = lambda t, sizes, speeds: jnp.prod(sizes + speeds * t[None, :], axis=0)
    fixed = jax.lax.stop_gradient((sizes, speeds, target))
    rises = speeds[0] > 0
    # `above`: where the gain alone makes the product. `below`, for falling modes: where the first layer reaches 0.
    matrices = len(sizes)
    above = jnp.exp((jnp.log(nonzero(fixed[2])) - jnp.sum(jnp.log(jnp.abs(fixed[1])), axis=0)) / matrices)
    below = jnp.min(fixed[0] / jnp.abs(fixed[1]), axis=0)
    ends = jnp.zeros_like(target), jnp.where(rises, above, below)

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        over = (reached(middle, *fixed[:2]) > fixed[2]) == rises
        return jnp.where(over, ends[0], middle), jnp.where(over, middle, ends[1])

    root = jax.lax.fori_loop(0, 100, halve, ends)[1]  # 100 halvings: far below the rounding of float64
    slope = jax.jvp(lambda t: reached(t, *fixed[:2]), (root,), (jnp.ones_like(root),))[1]
    return root + (target - reached(root, sizes, speeds)) / jax.lax.stop_gradient(nonzero(slope))
