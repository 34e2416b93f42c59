"""The flow under the NTK of a network, held fixed."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ... import kernels
from ..._checks import describe
from ..._core import AbstractMarching, Assumption, Problem, View
from ..._numerics import Inputs
from ...kernels._internal import nonfinite_derivatives
from ._fixed_kernel import AbstractFixedKernel, check_flow
from ._run_end import RunEnd


# Number of samples used to check a kernel: enough to represent all, with cheap gradients.
SAMPLES = 64


class FrozenKernel(AbstractFixedKernel):
    """df(x)/dt = -sum_i K(x, x_i) dL/df_i under a fixed empirical NTK: the network linearized in its parameters.

    It starts from the problem's initial outputs (0 if centered). The NTK is eta-weighted and includes gamma. MSE has a
    closed form at any t in [0, inf]: f(t) = y + exp(-K t/n)(f_0 - y). Other losses are solved by `GradientFlow()` in
    function space, which reaches t = inf only with a condition: `flow=GradientFlow(until=...)`.

    Provides outputs, test outputs, and the kernel, which is constant. Outside of traces and sweeps, `solve` compares
    the kernel with gradients on some samples, like `js.kernels.check`, and warns if they differ by more than rounding.

    Arguments:
        at: the network whose NTK is used; None takes the problem's start. `traj.final.net` of a finished run gives the
            kernel learned by that run. `dynamics.RunEnd(GradientFlow(), t)` runs the problem itself, so in a sweep
            every lane has its own kernel.
        flow: a marching dynamics for function space, such as `GradientFlow(rtol=1e-8)` or `Descent(optax.sgd(0.1))`,
            which is then also used for MSE. Optimizers that act per parameter, such as Adam, act on the weights of a
            linear model with features K^(1/2), not on the network's.

    Raises:
        TypeError: `at` is not a network, or `flow` is not a marching dynamics.
        ValueError: `at` takes or returns shapes or dtypes that differ from the problem's network.
        NotApplicable: when used, the run in `at` failed (in a sweep the lane ends as `not_applicable`).

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> print(js.solve(problem, js.FrozenKernel(), [0.0, jnp.inf])["loss"].round(2))
        [0.5 0. ]

    Reference:
        @article{lee2019wide, author={J. Lee and L. Xiao and S. S. Schoenholz and Y. Bahri and J. Sohl-Dickstein and
          J. Pennington}, title={Wide neural networks of any depth evolve as linear models under gradient descent},
          year={2019}, note={arXiv 1902.06720}}
    """

    source_net: Any
    flow: AbstractMarching | None

    def __init__(self, at: Any = None, *, flow: AbstractMarching | None = None):
        network = callable(at) and any(map(eqx.is_inexact_array, jax.tree.leaves(at)))
        if at is not None and not isinstance(at, RunEnd) and not network:
            raise TypeError(
                "at must be a network such as traj.final.net, a dynamics.RunEnd, or None for the start, "
                f"got {describe(at)}"
            )
        self.source_net = at
        self.flow = check_flow(flow)

    def settled(self, problem: Problem) -> "FrozenKernel":
        """The same, with a run in `at` replaced by its final network."""
        if not isinstance(self.source_net, RunEnd):
            return self
        return FrozenKernel(self.source_net.network(problem), flow=self.flow)

    def ntk(self, problem: Problem, x1: Inputs, x2: Inputs | None = None) -> Float[Array, "n out m out"]:
        """The eta-weighted NTK."""
        net = self.settled(problem).source_net
        if net is None:
            return problem.kernel(problem.params, x1, x2)
        other = eqx.tree_at(lambda p: p.net, problem, net)
        try:
            kernel = other.kernel(other.params, x1, x2)
        except ValueError as error:
            raise ValueError(f"at must be a network like the problem's, and take its inputs (x1): {error}") from error
        outputs, dtype = problem.out_size, problem.dtype
        if (kernel.shape[1], kernel.dtype) != (outputs, dtype):
            raise ValueError(
                f"at must be a network like the problem's, with {outputs} output(s) of dtype {dtype}; it has "
                f"{kernel.shape[1]} of dtype {kernel.dtype}"
            )
        return kernel

    def doubt(self, problem: Problem, final: View) -> str:
        """The doubt from `kernels.check` on some samples; empty if the kernel is right.

        Not for a network with state, whose kernel couples samples, nor for the end of a run.
        """
        if problem.state is not None or isinstance(self.source_net, RunEnd):
            return ""
        net, kernel = self.source_net, final.kernel
        net = problem.net if net is None else net
        if not jnp.all(jnp.isfinite(kernel)):
            return f"its kernel is not finite. {nonfinite_derivatives(net, problem.x).words()}"
        found = kernels.check(net, problem.x, kernel, eta=problem.eta, key=jax.random.key(0), samples=SAMPLES)
        return "" if found.holds else found.doubt

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """The assumption that a run in `at` reaches its end; any other network has a linearization."""
        return (self.source_net.assumption(problem),) if isinstance(self.source_net, RunEnd) else ()
