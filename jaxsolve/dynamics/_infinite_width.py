"""The flow of an infinitely wide network from the outputs of a finite one."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import kernels, nets
from .._dynamics import AbstractMarching, Assumption
from .._problem import Problem
from ._fixed_kernel import AbstractFixedKernel, check_flow


class InfiniteWidth(AbstractFixedKernel):
    """df(x)/dt = -sum_i K(x, x_i) dL/df_i under the NTK that the network would have at infinite width.

    It starts from the outputs of the problem's own start (0 if centered); the kernel is eta-weighted, gamma included,
    and the same for every output. For MSE in closed form at any t in [0, inf], for other losses by `GradientFlow()` in
    function space, which reaches t = inf only with a condition: `flow=GradientFlow(until=...)`. Jacot et al. 2018,
    "Neural tangent kernel: convergence and generalization in neural networks". Mean and covariance over all starts are
    in `kernels.linearized_ensemble`.

    Where features move however wide the network is (`Scaling.mean_field`, `Scaling.mup`), the kernel does not stand
    still. A network has one width and tells no limit, so the numbers decide. With n = fan_in of the read-out,
    m sigma sqrt(n) is of order 1 in a kernel limit and of order 1/sqrt(n) in the others; it must be at least n^(-1/4),
    the middle of the two. gamma is left out: at a small one the limit is still this kernel, and the network far from
    it.

    Provides outputs, test outputs, and the kernel, which is constant.

    Arguments:
        flow: a marching dynamics for function space, as for `FrozenKernel`.

    Raises:
        NotApplicable: when used, if the read-out is that small (in a sweep the lane ends as not_applicable).
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

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """A read-out whose outputs are of order 1 at the start."""
        if not isinstance(problem.net, nets.AbstractLayered):
            return ()
        values, fan_in = problem.net.scaling, math.prod(problem.net.weights[-1].shape[1:])
        deviation = jnp.abs(values.multiplier[-1]) * values.sigma[-1] * fan_in**0.5
        name = f"m sigma sqrt(fan_in) >= fan_in^(-1/4) = {fan_in**-0.25:.2g} in the last layer"
        detail = "below that the limit of infinite width is not a kernel (mean field, mup): features move at any width"
        return (Assumption(name, jnp.maximum(1 - deviation * fan_in**0.25, 0), 0.0, detail),)
