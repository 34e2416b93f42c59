"""The flow of an infinitely wide network from the outputs of a finite one."""

from jaxtyping import Array, Float

from .. import kernels
from .._dynamics import AbstractMarching
from .._problem import Problem
from ._fixed_kernel import AbstractFixedKernel, check_flow


class InfiniteWidth(AbstractFixedKernel):
    """df(x)/dt = -sum_i K(x, x_i) dL/df_i under the NTK that the network would have at infinite width.

    It starts from the outputs of the problem's own start (0 if centered); the kernel is eta-weighted, gamma included,
    and the same for every output. For MSE in closed form at any t in [0, inf], for other losses by `GradientFlow()` in
    function space, which reaches t = inf only with a condition: `flow=GradientFlow(until=...)`. Jacot et al. 2018,
    "Neural tangent kernel: convergence and generalization in neural networks". Mean and covariance over all starts are
    in `kernels.linearized_ensemble`.

    Provides outputs, test outputs, and the kernel, which is constant.

    Arguments:
        flow: a marching dynamics for function space, as for `FrozenKernel`.

    Raises:
        TypeError: `flow` is no marching dynamics, or (when used) the network does not name its layers.
        ValueError: when used, if a layer has no known limit (see `kernels.infinite`).
        NeuralTangentsUnavailable: when used, if neural-tangents is missing or broken.
    """

    flow: AbstractMarching | None

    def __init__(self, *, flow: AbstractMarching | None = None):
        self.flow = check_flow(flow)

    def ntk(
        self, problem: Problem, x1: Float[Array, "n ..."], x2: Float[Array, "m ..."] | None = None
    ) -> Float[Array, "n m"]:
        """The eta-weighted NTK at infinite width."""
        return kernels.infinite(problem.net, x1, x2, eta=problem.eta).ntk
