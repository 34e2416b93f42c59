"""One linear hidden neuron on whitened inputs: exact from any start.

Kunin et al., "Get rich quick: exact solutions reveal how unbalanced initializations promote rapid feature learning",
section 3.
"""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._dynamics import Assumption, Quantity, View
from .._problem import Problem
from ._linear_flow import linear_flow, linear_network, positive_rates, whitened_inputs
from ._linear_form import AbstractLinearForm
from ._reduced_neuron import ReducedNeuron


class SingleNeuronFlow(AbstractLinearForm):
    """The exact gradient flow of f(x) = gamma m_2 a (m_1 w.x) under MSE, on inputs whitened on their row space.

    Any start, positive rates, delta and gamma of any sign, through a = 0 and delta = 0. Inputs are whitened on their
    row space, of any rank, if the non-zero eigenvalues of X^T X/n are equal.

    Provides parameters, outputs, NTK at any t in [0, inf]. `reduce` gives basin, radius and alignment, preconditioner
    and the upstream and downstream limits.
    """

    asymptotic: ClassVar[bool] = False

    @property
    def provides(self) -> frozenset[Quantity]:
        return frozenset(Quantity)

    def structural_assumptions(self, problem: Problem) -> list[Assumption]:
        return linear_network(problem, matrices=2, hidden=1, outputs=1)

    def numerical_assumptions(self, problem: Problem) -> list[Assumption]:
        return [whitened_inputs(problem), positive_rates(problem)]

    def reduce(self, problem: Problem) -> ReducedNeuron:
        """The flow of a problem in its own units.

        Raises:
            NotApplicable: the problem is of another kind.
        """
        self.require_kind(problem)
        flow = linear_flow(problem)
        w, a = flow.layers
        return ReducedNeuron(a[0, 0], flow.project(w)[0], flow.target[0], flow.speed)

    def at(self, problem: Problem, t: Float[Array, ""]) -> View:
        neuron = self.reduce(problem)
        flow = linear_flow(problem)
        w, _ = flow.layers
        a, inside = neuron.weights(t)
        # What no input sees stays where it was.
        layers = (w + (inside - neuron.w)[None, :], a[None, None])
        return View(problem, jnp.asarray(t, problem.x.dtype), flow.params(problem, layers))
