"""Which integrator serves which problem."""

import diffrax

from .._problem import Problem
from ..integrators import FunctionSpace


# Up to so many outputs on the training set a flow is hardly stiff, and an explicit method is as fast.
FEW_OUTPUTS = 16


def choose_integrator(problem: Problem) -> diffrax.AbstractSolver:
    """The integrator of `GradientFlow()`, by the kind and size of a problem, never by its numbers."""
    outputs = problem.y.size
    if outputs <= FEW_OUTPUTS:
        return diffrax.Tsit5()
    return FunctionSpace()
