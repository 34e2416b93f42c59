"""One linear hidden neuron on whitened inputs: exact from any start.

Kunin et al., "Get rich quick: exact solutions reveal how unbalanced initializations promote rapid feature learning",
section 3.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._core import Assumption, Problem, Quantity, View
from ..._numerics import norm
from .._arguments import flow_time
from ..linear._by_mode import leaves_saddle
from ..linear._linear_flow import AbstractLinearForm, linear_flow, linear_network, positive_rates, whitened_inputs
from ._reduced_neuron import ReducedNeuron


class SingleNeuronFlow(AbstractLinearForm):
    """The exact gradient flow of f(x) = gamma m_2 a (m_1 w.x) under MSE, on inputs whitened on their row space.

    Any start and positive rates; delta and gamma of any sign, including a = 0 and delta = 0. (A start that differs from
    the saddle only by rounding is rejected, because rounding decides when it leaves.) Inputs are whitened on their row
    space, of any rank, if the nonzero eigenvalues of X^T X/n are equal.

    Provides parameters, outputs, NTK at any t in [0, inf]. `reduce` gives a `js.theory.ReducedNeuron`: basin, radius
    and alignment, preconditioner, and the upstream and downstream limits.

    Example:
        >>> net = js.nets.SingleNeuron(in_size=2, scaling=js.nets.Scaling.standard(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([1.0, -1.0]))
        >>> neuron = js.theory.SingleNeuronFlow().reduce(problem)
        >>> print(neuron.beta(jnp.inf).round(3))
        [ 1. -1.]

    Reference:
        @inproceedings{kunin2024get, title={Get rich quick: exact solutions reveal how unbalanced initializations
          promote rapid feature learning}, author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and
          Ganguli}, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}}
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2, hidden=1, outputs=1)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        neuron = self.reduce(problem)
        largest = jnp.max(jnp.abs(jnp.append(neuron.w, neuron.a)))
        saddle = leaves_saddle(neuron.growing, largest, norm(neuron.target))
        return [saddle, whitened_inputs(problem), positive_rates(problem)]

    def reduce(self, problem: Problem) -> ReducedNeuron:
        """The flow of a problem in natural units.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        flow = linear_flow(problem)
        w, a = flow.layers
        return ReducedNeuron(a[0, 0], flow.project(w)[0], flow.target[0], flow.speed, flow.outer)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        neuron = self.reduce(problem)
        t = flow_time(t, problem.dtype)
        flow = linear_flow(problem)
        w, _ = flow.layers
        a, inside = neuron.weights(t)
        # The part of w that no input sees stays constant.
        layers = (w + (inside - neuron.w)[None, :], a[None, None])
        return View(problem, t, flow.params(problem, layers))
