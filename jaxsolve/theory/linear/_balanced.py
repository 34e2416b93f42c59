"""Lambda-balanced two-layer linear networks on whitened inputs: exact at any width and any number of outputs.

Fukumizu 1998; Braun et al. 2022; Domine et al. 2024, "From lazy to rich: exact learning dynamics in deep linear
networks".
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import nonzero
from .._arguments import flow_time
from ._by_mode import has_target, no_saddle, squared_is_known
from ._linear_flow import (
    AbstractLinearForm,
    linear_flow,
    linear_network,
    LinearFlow,
    positive_rates,
    tolerance,
    whitened_inputs,
)
from ._reduced_balanced import Blocks, ReducedBalanced


# Rounding errors above this leave a saddle within most runs, because they grow like the learned modes.
_SOON = 1e-10


class Balanced(AbstractLinearForm):
    r"""The exact gradient flow of a two-layer linear network under MSE whose layers are lambda-balanced.

    Balanced means $V_2^\top V_2 - V_1 V_1^\top = \lambda I$ for $V_l = W_l/\sqrt{\eta_l}$, $V_1$ on the inputs' row
    space (as `nets.LambdaBalanced` makes them): lambda of any sign, any sizes that allow it, any rank, any positive
    rates. Inputs are whitened on their row space. An imbalance acts like a change of rates of the same size, so it is
    measured relative to all weights, not to each weak mode.

    A start may have no component that grows towards a mode of its target: it is opposite, zero, or parallel to a
    stronger mode. It then falls to a saddle, or stays there, until rounding has grown: 36 units of growth in double
    precision. The form then leaves the saddle like an integration of the weights and reaches the same end. On the way
    they differ (by 0.06 where measured), as each follows its own rounding, which enters as (eps e^{growth T})^2. In
    single precision it takes only 16 units, and such starts are rejected.

    Provides outputs and NTK at any t in [0, inf]. The weights are known up to a rotation of the hidden units that has
    no closed form. `blocks` gives them up to this rotation, which is enough for every norm and Gram matrix.

    Example:
        >>> weights = [0.1 * jnp.eye(2), 0.1 * jnp.eye(2)]  # lambda = 0
        >>> scaling = js.nets.Scaling(multiplier=[1.0, 1.0], sigma=[1.0, 1.0], eta=[1.0, 1.0])
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, out_size=2, width_size=2, scaling=scaling, init=js.nets.Given(weights), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # targets that mix the modes
        >>> print(bool(js.theory.Balanced().check(problem).exact))
        True

    Reference:
        @article{fukumizu1998effect, title={Effect of batch learning in multilayer neural networks},
          author={Kenji Fukumizu}, year={1998}}
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset({Quantity.OUTPUTS, Quantity.KERNEL})

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        start = _start(problem)
        found = [
            whitened_inputs(problem),
            positive_rates(problem),
            _is_balanced(problem, start),
        ]
        if jnp.finfo(problem.dtype).eps > _SOON:
            found.append(_meets_no_saddle(problem, start))
        if problem.x_test is not None:
            found.append(_sees_no_more(problem, problem.x_test, start))
        return found

    def reduce(self, problem: Problem) -> ReducedBalanced:
        """The flow of a problem in natural units.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        return _reduce(_start(problem))

    def blocks(self, problem: Problem, t: Float[Array, ""]) -> Blocks:
        """W_1/sqrt(eta_1) and W_2/sqrt(eta_2) at time t, up to a rotation of the hidden units.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        return _blocks(_start(problem), t)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        self.require_kind(problem)
        start = _start(problem)
        blocks, outer = _blocks(start, t), start.flow.outer
        matrix = outer * (blocks.last @ blocks.first.T)
        outputs = problem.x @ matrix.T
        outputs = outputs if problem.initial is None else outputs - problem.initial
        test_outputs = None if problem.x_test is None else problem.x_test @ matrix.T
        if test_outputs is not None and problem.initial_test is not None:
            test_outputs = test_outputs - problem.initial_test
        hidden = problem.x @ blocks.first
        same_output = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        # V_2 contributes the inner products of hidden signals, V_1 the inner products of inputs times V_2 V_2^T.
        first = (hidden @ hidden.T)[:, None, :, None] * same_output[None, :, None, :]
        last = (problem.x @ problem.x.T)[:, None, :, None] * (blocks.last @ blocks.last.T)[None, :, None, :]
        return View(
            problem,
            jnp.asarray(t, problem.dtype),
            given_outputs=outputs,
            given_test_outputs=test_outputs,
            given_kernel=outer**2 * (first + last),
        )


class _BalancedStart(NamedTuple):
    flow: LinearFlow
    inside: Float[Array, "hidden in"]  # the first layer on the inputs' row space
    outgoing: Float[Array, "hidden hidden"]
    incoming: Float[Array, "hidden hidden"]
    balance: Float[Array, ""]

    @property
    def largest(self) -> Float[Array, ""]:
        """The largest weight."""
        return jnp.max(jnp.abs(jnp.concatenate([self.flow.layers[1], self.inside.T])))


def _start(problem: Problem) -> _BalancedStart:
    flow = linear_flow(problem)
    first, last = flow.layers
    inside = flow.project(first)
    outgoing, incoming = last.T @ last, inside @ inside.T
    # lambda if the difference is lambda I; otherwise its mean eigenvalue.
    return _BalancedStart(flow, inside, outgoing, incoming, jnp.trace(outgoing - incoming) / outgoing.shape[0])


def _reduce(start: _BalancedStart) -> ReducedBalanced:
    flow = start.flow
    return ReducedBalanced.build(start.inside.T, flow.layers[1], flow.task, 1 / nonzero(flow.outer), start.balance)


def _blocks(start: _BalancedStart, t: Float[Array, ""]) -> Blocks:
    return _reduce(start).blocks(start.flow.time(flow_time(t, start.inside.dtype)))


def _is_balanced(problem: Problem, start: _BalancedStart) -> Assumption:
    gap = start.outgoing - start.incoming - start.balance * jnp.eye(len(start.outgoing), dtype=problem.dtype)
    size = jnp.linalg.norm(start.outgoing) + jnp.linalg.norm(start.incoming)
    known = (start.largest == 0) | squared_is_known(start.largest)
    return Assumption(
        "layers are lambda-balanced",
        jnp.where(known, jnp.linalg.norm(gap) / nonzero(size), jnp.inf),
        tolerance(problem),
        "|V_2^T V_2 - V_1 V_1^T - lambda I| relative to its terms",
    )


def _meets_no_saddle(problem: Problem, start: _BalancedStart) -> Assumption:
    """Assumes that each of the fastest modes, as many as the layer holds, has a hidden direction that grows."""
    reduced = _reduce(start)
    rows, pivots, found = reduced.start
    asked = has_target(reduced.strength, start.largest, matrices=2, tolerance=tolerance(problem))
    held = jnp.minimum(jnp.sum(asked), len(pivots))
    growing = jnp.where(pivots < held, found * jnp.abs(jnp.diagonal(rows[pivots])), 0)
    return no_saddle(growing, jnp.arange(len(pivots)) < held, start.largest)


def _sees_no_more(problem: Problem, x_test: Float[Array, "m in"], start: _BalancedStart) -> Assumption:
    first = start.flow.layers[0]
    outside = (first - start.inside) @ x_test.T
    return Assumption(
        "test inputs lie in the row space of the training inputs",
        jnp.linalg.norm(outside) / nonzero(jnp.linalg.norm(first) * jnp.linalg.norm(x_test)),
        tolerance(problem),
        "the first layer's response to their part outside it",
    )
