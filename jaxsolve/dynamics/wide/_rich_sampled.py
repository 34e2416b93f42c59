"""Two-layer networks in the rich limit, by the run of a network of quadrature points."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ... import nets
from ..._core import (
    AbstractMarching,
    AbstractSavingState,
    AbstractStandIn,
    AbstractState,
    Certificate,
    FunctionValues,
    March,
    Problem,
    Validity,
    View,
)
from ..._results import RESULTS
from ...nets._internal import run as run_layers
from .._approximation import AbstractApproximation
from .._marching import Saves
from . import dmft
from ._rich_memory import require_memory_of_samples


class SampledState(AbstractSavingState):
    """The state of the run of the sampled network."""

    inner: AbstractState
    done: Bool[Array, ""]
    steps: Int[Array, ""]
    result: RESULTS

    def __init__(self, inner: AbstractState):
        self.inner = inner
        self.done, self.steps, self.result = inner.done, inner.steps, inner.result

    @property
    def saves(self) -> Saves | None:
        """The values that the run has saved so far."""
        return self.inner.saves if isinstance(self.inner, AbstractSavingState) else None


class RichSampled(AbstractStandIn, AbstractMarching):
    """The limit of a two-layer network.

    Arguments:
        source: the approximation that chose this march.
        flow: the dynamics of the sampled network.
        samples, seed: as in `dmft.sampled`.
        memory: maximum bytes, None for half of the free memory.
    """

    source: AbstractApproximation
    flow: AbstractMarching
    samples: int = eqx.field(static=True)  # a shape
    seed: int = eqx.field(static=True)  # of constants in the program
    memory: int | None = eqx.field(static=True)  # decides what is rejected

    @property
    def chunk(self) -> int:
        return self.flow.chunk

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self.flow.times(ts)

    def check(self, problem: Problem) -> Validity:
        return self.source.check(problem)

    def doubt(self, problem: Problem, final: View) -> str:
        del problem, final  # the certificate reports all errors
        return ""

    def of_samples(self, problem: Problem) -> Problem:
        """The problem for a network of samples, which represents the limit."""
        net = dmft.sampled(problem.net, self.samples, self.seed)
        where = lambda one: (one.net, one.initial, one.initial_test)
        nothing = (problem.initial, problem.initial_test)
        still = jax.tree.map(jnp.zeros_like, nothing)  # f = 0 at the start
        return eqx.tree_at(where, problem, (net, *still), is_leaf=lambda leaf: leaf is None)

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> SampledState:
        self.require_memory(problem, ts.size)
        return SampledState(self.flow.init(self.of_samples(problem), ts))

    def require_memory(self, problem: Problem, times: int) -> None:
        """Raises MemoryError if the samples do not fit."""
        inputs, outputs = problem.x.shape[1], problem.y.shape[1]
        # Neurons before and after a step and at all saved times, and their signals and gradients at all samples.
        each = problem.dtype.itemsize * ((2 + times) * (inputs + outputs) + len(problem.x) * (2 + outputs))
        require_memory_of_samples(
            self.memory, self.samples, 4 * dmft.GROUPS, lambda some: some * each, "ask for fewer times"
        )

    def advance(self, problem: Problem, state: SampledState, n: Int[Array, ""]) -> SampledState:
        return SampledState(self.flow.advance(self.of_samples(problem), state.inner, n))

    def finish(self, problem: Problem, state: SampledState) -> March:
        model = self.of_samples(problem)
        run = self.flow.finish(model, state.inner)

        def values(params: PyTree) -> FunctionValues:
            test = None if model.x_test is None else model.test_outputs(params)
            net = model.network(params)
            return FunctionValues(
                model.outputs(params), test, model.kernel(params, model.x), _observations(net, model.x)
            )

        return March(
            times=run.times,
            saved=jax.lax.map(values, run.saved),
            params=values(run.params),
            t_end=run.t_end,
            result=self.source.judged(problem, run.result),
            steps=run.steps,
            rejected=run.rejected,
            evaluations=run.evaluations,
            kernels=run.kernels,
            integrators=run.integrators,
            certificate=_certificate(model, run),
            kernel=model.kernel(model.params, model.x),
            from_zero=True,
        )


def _certificate(model: Problem, run: March) -> Certificate:
    """The certificate of the run, with the standard error of its final outputs over the largest output or target."""
    known = run.certificate
    x, y = model.x, model.y
    if model.x_test is not None and model.y_test is not None:
        x, y = model.x_test, model.y_test
    net = model.network(run.params)
    size = jnp.maximum(jnp.max(jnp.abs(y)), jnp.max(jnp.abs(jax.vmap(net)(x))))
    error = jnp.max(dmft.sampling_error(net, x)) / size
    if known is None:
        nothing = jnp.full_like(error, jnp.nan)
        return Certificate(nothing, nothing, nothing, sampling_error=error)
    return eqx.tree_at(lambda one: one.sampling_error, known, error)


def _observations(net: nets.AbstractDense, x: Float[Array, "n d"]) -> dict[str, Array]:
    """Averages over neurons, by observable name."""
    h = jax.vmap(lambda one: run_layers(net, net.layers[:1], one))(x)  # (n, neurons)
    phi, slope = net.activation(h), jax.vmap(jax.vmap(jax.grad(net.activation)))(h)
    samples = h.shape[1]
    # N df/dphi is of order 1 for any number of samples.
    z = samples * net.scaling.gamma * net.scaling.multiplier[-1] * net.weights[1]  # (out, neurons)
    g = slope[:, None] * z[None]
    return {
        "feature_kernel_1": phi @ phi.T / samples,
        "gradient_kernel_1": jnp.einsum("nak,mbk->namb", g, g) / samples,
        "preactivation_quantiles_1": jnp.quantile(h, jnp.asarray(dmft.LEVELS, h.dtype), axis=1).T,
        "layer_alignment": dmft.two_layer_alignment(net.weights[0], net.weights[1], x)[None],
    }
