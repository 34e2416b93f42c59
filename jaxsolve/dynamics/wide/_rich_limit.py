"""Training of an infinitely wide network whose features move."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int

from ... import nets
from ..._checks import concrete, one_number, require_flag, require_power_of_two, require_size
from ..._core import Assumption, Problem, Quantity, Validity
from .._approximation import AbstractApproximation
from .._marching import nearest_step
from ..descent._descent import Descent
from ..flow._choice import in_shapes, is_endless
from ..flow._gradient_flow import GradientFlow
from . import dmft
from ._rich_march import RichMarch
from ._rich_sampled import RichSampled


class RichLimit(AbstractApproximation):
    """An infinitely wide network that learns features: the mean-field, muP or feature-learning limit.

    `InfiniteWidth` is the lazy limit, whose kernel is constant. Here the width N grows while the network's normal form
    is fixed: variances m_0^2 sigma_0^2, m_l^2 N sigma_l^2, (gamma m_L N sigma_L)^2 and rates m_0^2 eta_0/N, m_l^2
    eta_l, gamma^2 m_L^2 N eta_L, as in `Scaling.mean_field` and `Scaling.mup`. The start is Gaussian with these sigmas,
    whatever `init` drew, and f = 0 there.

    - Deep networks: one causal pass through time nodes, without a fixed-point iteration over time. A hidden matrix is
      known only in the directions that signals have probed, and smooth training needs few of them. Linear networks are
      solved exactly, others by samples of their neurons, whose linear averages have no error. Exact in time for
      gradient descent (`rate=`); second order in the node spacing for gradient flow, and stable at any spacing. Time
      grows like T L P k S and memory like L k S: T nodes, P outputs on the training set, k directions, S samples (2 k
      for linear networks).
    - Two layers with any activation: neurons start at mirrored, scrambled Sobol points, and move in their mean field by
      `GradientFlow()` or `Descent`.

    The certificate reports the sampling error, and the residual of the nodes' implicit equations.

    Provides outputs, test outputs, the kernel, `observe.feature_kernel` and `gradient_kernel` of all hidden layers, and
    `layer_alignment` of two-layer networks.

    Arguments:
        rate: rate of full-batch gradient descent, in gradient-flow time per step; None for gradient flow.
        nodes: for a deep network, number of times besides the requested ones, or the maximum number of descent steps.
        samples: number of neurons for networks with activations; a power of two, at least 32.
        seed: random seed of the samples.
        memory: maximum bytes of its samples, matrices or kernels. None takes half of the free device memory.
        at_any_richness: whether to solve even if the limit is lazy, at the richness 1/(gamma m_L N sigma_L) of the
            network's width. Otherwise the richness must be at least N^(-1/4); `InfiniteWidth` requires the opposite.

    Raises:
        NotApplicable: when used, if the network has biases or is not dense, or if its limit is lazy (in a sweep the
            lane ends as not_applicable).
        MemoryError: when used, if the samples do not fit, or a deep network's kernels at all times do not.
        ValueError: when used, if the training set needs more samples; the message says how many.
        ValueError, TypeError: an argument is not as described above.

    Example:
        >>> net = js.nets.TwoLayerLinear(
        ...     in_size=2, width_size=100, scaling=js.nets.Scaling.mean_field(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> watched = [js.observe.loss(), js.observe.kernel_change()]
        >>> run = js.solve(problem, js.RichLimit(), [0.0, 1.0, 30.0], observe=watched)
        >>> print(run["loss"].round(2), run["kernel_change"].round(1))
        [0.5  0.16 0.  ] [0.  0.3 1. ]

    Reference:
        @inproceedings{bordelon2022self, author={B. Bordelon and C. Pehlevan}, booktitle={NeurIPS}, year={2022},
          title={Self-consistent dynamical field theory of kernel evolution in wide neural networks}}
    """

    rate: Float[Array, ""] | None
    nodes: int = eqx.field(static=True)  # a shape
    samples: int = eqx.field(static=True)  # a shape
    seed: int = eqx.field(static=True)  # of constants in the program
    memory: int | None = eqx.field(static=True)  # decides what is rejected
    at_any_richness: bool = eqx.field(static=True)  # decides what is rejected

    def __init__(
        self,
        *,
        rate: Any = None,
        nodes: int = 200,
        samples: int = 4096,
        seed: int = 0,
        memory: int | None = None,
        at_any_richness: bool = False,
    ):
        self.rate = None if rate is None else one_number(rate, "rate")
        self.nodes, self.samples = require_size(nodes, "nodes"), require_size(samples, "samples")
        require_power_of_two(self.samples, "samples", least=4 * dmft.GROUPS)
        self.seed = require_size(seed, "seed", least=0)
        self.memory = None if memory is None else require_size(memory, "memory")
        self.at_any_richness = require_flag(at_any_richness, "at_any_richness")

    @property
    def name(self) -> str:
        return "RichLimit"

    @property
    def provides(self) -> frozenset[Quantity | str]:
        return frozenset({Quantity.OUTPUTS, Quantity.KERNEL, Quantity.LAYER_KERNELS, "layer_alignment"})

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        if self.rate is None:
            return ts
        return nearest_step(ts, self.rate.astype(ts.dtype), self.nodes)[1]

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """The assumptions made about a problem."""
        net, dtype = problem.net, problem.dtype
        dense = isinstance(net, nets.AbstractDense) and len(net.weights) > 1
        kind = Assumption.of_kind("a dense network with hidden layers", dense, type(net).__name__, dtype)
        if not dense:
            return (kind,)
        plain = net.scaling.optimizers is not nets.Optimizers.ADAM
        return (
            kind,
            Assumption.of_kind("no biases", not net.biases, "biases", dtype),
            Assumption.of_kind("a scaling for gradient descent", plain, "one for Adam", dtype),
            *((_rich(net),) if self._asks_for_numbers(problem) else ()),
        )

    def _asks_for_numbers(self, problem: Problem) -> bool:
        """True if the richness is to be checked, which needs numbers and not shapes alone."""
        return not self.at_any_richness and eqx.is_array(problem.x)

    def ways(self, problem: Problem) -> tuple[RichMarch] | tuple[RichSampled, ...]:
        """The dynamics that can solve the limit of a problem.

        Raises:
            NotApplicable: an assumption is known to fail.
        """
        for assumption in self.assumptions(problem):
            known = concrete(assumption.holds)
            if known is not None and not known.all():
                raise Validity((assumption,)).refusal("RichLimit")
        if problem.net.activation.linear or len(problem.net.weights) > 2:
            return (RichMarch(self, self.rate, self.nodes, self.samples, self.seed, self.memory),)
        flows = GradientFlow().ways(problem) if self.rate is None else (Descent(optax.sgd(self.rate)),)
        return tuple(RichSampled(self, flow, self.samples, self.seed, self.memory) for flow in flows)

    def possible(self, problem: Problem) -> tuple[int, ...]:
        if len(ways := self.ways(problem)) == 1:
            return (0,)
        return in_shapes(lambda problem: GradientFlow().possible(ways[0].of_samples(problem)), problem)

    def way(self, problem: Problem, ts: Float[Array, "..."] | None = None) -> Int[ArrayLike, ""]:
        if len(ways := self.ways(problem)) == 1:
            return 0
        if ts is None or is_endless(ts):
            return in_shapes(lambda problem: GradientFlow().way(ways[0].of_samples(problem)), problem)
        ways[0].require_memory(problem, jnp.size(ts))
        return _way_of_samples(ways[0], problem, ts)


def _rich(net: nets.AbstractDense) -> Assumption:
    missing, richness, width = _richness(net)
    known, units = concrete(richness), concrete(width)
    number = ""
    if known is not None and units is not None and units > 1 and known > 0:
        number = f"it is {known:.3g} = N^{np.log(known) / np.log(units):.2f} at width {units:.0f}; "
    detail = (
        f"{number}the read-out is larger than the other layers by a power of the width, so features stop moving as "
        "the width grows: use InfiniteWidth, or at_any_richness=True for the limit at the richness of this width"
    )
    return Assumption("richness 1/(gamma m_L N sigma_L) at least N^(-1/4)", missing, 0.0, detail)


@eqx.filter_jit
def _way_of_samples(sampled: RichSampled, problem: Problem, ts: Float[Array, "..."]) -> Int[Array, ""]:
    """The index of the integrator for a flow of samples."""
    return jnp.asarray(GradientFlow().way(sampled.of_samples(problem), ts))


@eqx.filter_jit
def _richness(net: nets.AbstractDense) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """The relative deficit of a network's richness, the richness itself, and the width."""
    form = dmft.normal_form(net)
    width = jnp.asarray(net.widths[-1] if net.units is None else net.units, form.rate.dtype)
    # An infinite richness, from a read-out that starts at 0, is fine.
    return jnp.maximum(1 - form.richness / width**-0.25, 0), form.richness, width
