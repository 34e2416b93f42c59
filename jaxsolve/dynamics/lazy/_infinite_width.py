"""The flow of an infinitely wide network from the initial outputs of a finite one."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from ... import kernels, nets
from ..._core import AbstractMarching, Assumption, Problem, View
from ..._numerics import Inputs, nonzero
from ..wide import dmft
from ._fixed_kernel import AbstractFixedKernel, check_flow


class InfiniteWidth(AbstractFixedKernel):
    """df(x)/dt = -sum_i K(x, x_i) dL/df_i under the NTK of the network at infinite width.

    It starts from the problem's initial outputs (0 if centered). The kernel is eta-weighted, includes gamma, and is the
    same for every output. MSE has a closed form at any t in [0, inf]; other losses are solved by `GradientFlow()` in
    function space, which reaches t = inf only with a condition: `flow=GradientFlow(until=...)`. For mean and covariance
    over initializations see `kernels.linearized_ensemble`.

    The kernel is not fixed where features move at any width (`Scaling.mean_field`, `Scaling.mup`). A single network has
    one width and no limit, so its numbers decide. The factor m sigma sqrt(fan_in), by which a layer multiplies the size
    of its input, has the same order in all layers in a kernel limit; in other limits it is smaller by 1/sqrt(n) in the
    read-out, n its fan_in. So the read-out's factor must be at least n^(-1/4), halfway between, times the smallest of
    the other layers. sigma of all layers and gamma may be arbitrarily small: the limit is still this kernel, with the
    network far from it.

    The kernel of an activation from outside `js.nets` may have an error (`kernels.infinite` reports it, and warns
    outside of a trace). Above 10 %, estimated from the first 16 inputs, the kernel is not used.

    Provides outputs, test outputs, and the kernel, which is constant.

    Arguments:
        flow: a marching dynamics for function space, as for `FrozenKernel`.

    Raises:
        NotApplicable: when used, if the read-out is too small or the kernel too inaccurate (in a sweep the lane ends as
            not_applicable).
        TypeError: `flow` is not a marching dynamics, or (when used) the network does not name its layers.
        ValueError: when used, if a layer has no known limit, or an activation jumps (see `kernels.infinite`).
        NeuralTangentsUnavailable: when used, if neural-tangents is missing or broken.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]), centered=True)
        >>> print(js.solve(problem, js.InfiniteWidth(), [0.0, jnp.inf])["loss"].round(2))
        [0.5 0. ]

    Reference:
        @inproceedings{jacot2018neural, author={A. Jacot and F. Gabriel and C. Hongler}, year={2018}, booktitle={NIPS},
          title={Neural tangent kernel: Convergence and generalization in neural networks}}
    """

    flow: AbstractMarching | None

    def __init__(self, *, flow: AbstractMarching | None = None):
        self.flow = check_flow(flow)

    def settled(self, problem: Problem) -> "InfiniteWidth":
        """Returns itself: it does not depend on the parameters."""
        return self

    def ntk(self, problem: Problem, x1: Inputs, x2: Inputs | None = None) -> Float[Array, "n m"]:
        """The eta-weighted NTK at infinite width."""
        eta = problem.eta if isinstance(problem.net, nets.AbstractLayered) else None
        return kernels.infinite(problem.net, x1, x2, eta=eta).ntk  # without layers eta is 1, as in neural-tangents

    def doubt(self, problem: Problem, final: View) -> str:
        del problem, final  # gradients cannot check it; `kernels.infinite` estimates its own error
        return ""

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """A width without padding; a known kernel; a read-out not smaller than other layers by a power of the width."""
        if getattr(problem.net, "units", None) is not None:
            detail = "padding; make it with an integer as its width"
            return (Assumption.of_kind("a width without padding", False, detail, problem.dtype),)
        if not isinstance(problem.net, nets.AbstractLayered) or len(problem.net.weights) < 2:
            return ()
        known: tuple[Assumption, ...] = ()
        if not all(activation.known for activation in _activations(problem.net.layers)):
            error = kernels.infinite(problem.net, problem.x[:16]).error
            known = (Assumption("a kernel known to 10 %", error, 0.1, "the estimated error of the series"),)
        values = problem.net.scaling
        fan_in = jnp.asarray([math.prod(w.shape[1:]) for w in problem.net.weights], values.sigma.dtype)
        growth = jnp.abs(values.multiplier) * values.sigma * jnp.sqrt(fan_in)
        share = growth[-1] / nonzero(jnp.min(growth[:-1]))
        least = math.prod(problem.net.weights[-1].shape[1:]) ** -0.25
        missing = jnp.maximum(1 - share / least, 0)
        name = f"m sigma sqrt(fan_in) of the last layer at least fan_in^(-1/4) = {least:.2g} of that of the others"
        if isinstance(problem.net, nets.AbstractDense):  # gamma may compensate
            # Either suffices: a read-out that is not small, or a richness below N^(-1/4); `RichLimit` requires more.
            missing = jnp.minimum(missing, jnp.maximum(1 - least / nonzero(dmft.normal_form(problem.net).richness), 0))
        detail = (
            "below that, and where gamma does not make the richness that small, the limit of infinite width is not a "
            "kernel (mean field, mup): features move at any width"
        )
        return (*known, Assumption(name, missing, 0.0, detail))


def _activations(layers: nets.Layers) -> list[nets.Activation]:
    found: list[nets.Activation] = []
    for layer in layers:
        if isinstance(layer, nets.Apply):
            found.append(layer.activation)
        if isinstance(layer, nets.Residual):
            found += [*_activations(layer.branch), *_activations(layer.shortcut)]
    return found
