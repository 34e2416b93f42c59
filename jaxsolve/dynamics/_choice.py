"""Which integrator serves which problem."""

import math

import diffrax
import equinox as eqx
import jax

from .. import kernels, losses
from .._problem import Problem
from ..integrators import FunctionSpace, ParameterSpace, RungeKuttaChebyshev


# Up to so many outputs on the training set a flow is hardly stiff, and an explicit method is as fast.
FEW_OUTPUTS = 16
# Up to so many parameters, if they are no more than the outputs, the eigenvectors of the Hessian are the cheapest.
FEW_PARAMETERS = 500
# Beyond so many outputs, the eigenvectors of the kernel cost more than the stages of a stabilised explicit method.
MANY_OUTPUTS = 4096


def choose_integrator(problem: Problem) -> diffrax.AbstractSolver:
    """The integrator of `GradientFlow()`, by the kind and size of a problem, never by its numbers."""
    outputs = problem.y.size
    # Along the margins of plain hinge an error per parameter sees every jump of the velocity.
    if outputs <= FEW_OUTPUTS and not isinstance(problem.loss, losses.Hinge):
        return diffrax.Tsit5()
    if _parameters(problem) <= min(outputs, FEW_PARAMETERS):
        return ParameterSpace()
    if outputs <= MANY_OUTPUTS and _fits(problem):
        return FunctionSpace()
    return RungeKuttaChebyshev()


def _parameters(problem: Problem) -> int:
    """How many there are; of the problem, as in a sweep, the shapes may be all that is known."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter_eval_shape(lambda p: p.params, problem)))


def _fits(problem: Problem) -> bool:
    """Whether `FunctionSpace` takes less than half of the free memory, as far as it is known."""
    free = kernels.free_memory()
    if free is None:
        return True
    outputs, item = problem.y.size, problem.x.dtype.itemsize
    if problem.state is None:
        held = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(_signals(problem)) if hasattr(leaf, "shape"))
    else:
        held = outputs * _parameters(problem)  # a whole Jacobian
    # Signals are held by the step and its dense output; of the kernel there are also the eigenvectors and work space.
    return item * (3 * held + 8 * outputs**2) < free // 2


def _signals(problem: Problem):
    return eqx.filter_eval_shape(lambda p: kernels.LayeredJacobian(p.net, p.x).passing, problem)
