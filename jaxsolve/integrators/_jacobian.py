"""The Jacobian of a problem's outputs at one point, by its products."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from .._core import Problem
from .._numerics import HeldModule
from ..kernels._internal import LayeredJacobian


class FunctionJacobian(eqx.Module):
    """The Jacobian of a batch that shares statistics, by automatic differentiation: what `LayeredJacobian` offers."""

    held: HeldModule
    params: PyTree

    def push(self, v: PyTree[Float[Array, "..."]]) -> Float[Array, "n out"]:
        """J v for v shaped like the parameters."""
        return jax.jvp(self.held.module.outputs, (self.params,), (v,))[1]

    def pull(self, q: Float[Array, "n out"]) -> PyTree[Float[Array, "..."]]:
        """J^T q, shaped like the parameters."""
        return jax.vjp(self.held.module.outputs, self.params)[1](q)[0]

    def ntk(self, eta: PyTree) -> Float[Array, "n out n out"]:
        """The NTK on the training set; `eta` are the problem's own rates."""
        del eta
        return self.held.module.kernel(self.params, self.held.module.x)


def jacobian(problem: Problem, params: PyTree) -> LayeredJacobian | FunctionJacobian:
    """The Jacobian at some parameters, held as the signals of each sample where samples do not see each other."""
    if problem.state is None:
        return LayeredJacobian(problem.network(params), problem.x)
    return FunctionJacobian(HeldModule(problem), params)
