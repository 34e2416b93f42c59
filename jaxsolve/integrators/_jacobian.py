"""The Jacobian of a problem's outputs at one point, by its products."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from .. import kernels
from .._problem import Problem


class FunctionJacobian(eqx.Module):
    """The Jacobian of any network's outputs, by automatic differentiation: what `kernels.LayeredJacobian` offers."""

    params: PyTree
    _arrays: Problem
    _rest: Problem = eqx.field(static=True)  # functions and text, which loops cannot carry

    def __init__(self, problem: Problem, params: PyTree):
        self.params = params
        self._arrays, self._rest = eqx.partition(problem, eqx.is_array)

    @property
    def problem(self) -> Problem:
        """The problem whose network it is."""
        return eqx.combine(self._arrays, self._rest)

    def push(self, v: PyTree[Float[Array, "..."]]) -> Float[Array, "n out"]:
        """J v for v shaped like the parameters."""
        return jax.jvp(self.problem.outputs, (self.params,), (v,))[1]

    def pull(self, q: Float[Array, "n out"]) -> PyTree[Float[Array, "..."]]:
        """J^T q, shaped like the parameters."""
        return jax.vjp(self.problem.outputs, self.params)[1](q)[0]

    def ntk(self, eta: PyTree) -> Float[Array, "n out n out"]:
        """The NTK on the training set; `eta` are the problem's own rates."""
        del eta
        return self.problem.kernel(self.params, self.problem.x)


def jacobian(problem: Problem, params: PyTree) -> kernels.LayeredJacobian | FunctionJacobian:
    """The Jacobian at some parameters, layer by layer where the layers are known."""
    network = problem.network(params)
    if problem.state is None and kernels.unknown_layer(network) is None:
        return kernels.LayeredJacobian(network, problem.x)
    return FunctionJacobian(problem, params)
