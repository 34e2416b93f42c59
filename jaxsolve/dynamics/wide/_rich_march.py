"""Deep networks in the rich limit, solved node by node, and the values kept at each node."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int

from ..._core import (
    AbstractGrowing,
    AbstractSavingState,
    AbstractStandIn,
    Certificate,
    FunctionValues,
    March,
    Problem,
    Validity,
    View,
)
from ..._numerics import safe_sqrt
from ..._results import RESULTS
from .._approximation import AbstractApproximation
from .._marching import empty_saves, nearest_step, Saves
from . import dmft
from ._rich_memory import (
    bytes_of_directions,
    few_directions,
    require_memory,
    require_memory_of_kernels,
    require_memory_of_samples,
    room_of_samples,
)


def outputs_of(problem: Problem, inputs: dmft.Basis, known: dmft.Pass, network: dmft.Network):
    """The outputs of one set of samples, on training and test inputs."""
    f, net = known.fields.outputs, problem.net
    if net.activation.linear:
        return _of_basis(inputs, f)
    if inputs.test is None or inputs.outside is None:
        return f, None
    form = dmft.normal_form(net)
    return f, dmft.outputs_at(form, net.activation, network, inputs.test, inputs.outside)


def _of_basis(inputs: dmft.Basis, f: Float[Array, "i a"]) -> tuple[Float[Array, "n a"], Float[Array, "m a"] | None]:
    """A linear function of the inputs, on training and test inputs."""
    return inputs.train @ f, None if inputs.test is None else inputs.test @ f


class Kept(NamedTuple):
    """The values of a linear network that determine everything saved at a node: as in `Fields`, in the basis.

    Attributes:
        outputs, features, gradients: as in `Fields`.
        alignment: alignment of two layers; None for more layers.
    """

    outputs: Float[Array, "i a"]
    features: Float[Array, "layers i i"]
    gradients: Float[Array, "layers i a i a"]
    alignment: Float[Array, ""] | None


def kept_of(problem: Problem, inputs: dmft.Basis, known: dmft.Pass, network: dmft.Network) -> Kept | FunctionValues:
    """The values saved during the march. For samples, whose signals are not kept, these are means over the sets."""
    form, train = dmft.normal_form(problem.net), inputs.train

    if problem.net.activation.linear:
        zeta = None
        if form.hidden == 1:
            # Outside the span of the training set weights stay at their start, in each coordinate like `spare`.
            outside = (problem.x.shape[1] - train.shape[1]) * jnp.sum(network.spare**2)
            longest = jnp.argmax(jnp.sum(problem.x**2, axis=1))  # in another basis equal lengths differ by rounding
            zeta = dmft.two_layer_alignment(network.first.T, network.last, train, outside=outside, longest=longest)
        return Kept(known.fields.outputs, known.fields.features, known.fields.gradients, zeta)

    def values(known: dmft.Pass, network: dmft.Network) -> FunctionValues:
        fields, levels = known.fields, jnp.asarray(dmft.LEVELS, train.dtype)
        spread = [jnp.quantile(h, levels, axis=1).T for h in fields.preactivations]
        kernel = dmft.tangent_kernel(form, fields.features, fields.gradients)
        layers = _layers(fields.features, fields.gradients, spread)
        return FunctionValues(*outputs_of(problem, inputs, known, network), kernel, layers)

    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(values)(known, network))


def values_of(problem: Problem, inputs: dmft.Basis, kept: Kept | FunctionValues) -> FunctionValues:
    """All values saved at a node."""
    if isinstance(kept, FunctionValues):
        return kept
    form, train = dmft.normal_form(problem.net), inputs.train
    kernel = dmft.tangent_kernel(form, kept.features, kept.gradients)
    # From basis vectors i, j to inputs n, m, which are linear combinations of them.
    features = jnp.einsum("ni,lij,mj->lnm", train, kept.features, train)
    # The distribution over neurons is Gaussian.
    normal = ndtri(jnp.asarray(dmft.LEVELS, train.dtype))
    spread = [safe_sqrt(jnp.diagonal(phi))[:, None] * normal[None] for phi in features[1:]]
    # Gradients of linear networks are the same at all inputs.
    gradients = [jnp.broadcast_to(g[:1, :, :1], (len(train), g.shape[1]) * 2) for g in kept.gradients]
    kernel = jnp.einsum("ni,iajb,mj->namb", train, kernel, train)
    layers = _layers(features, gradients, spread)
    if kept.alignment is not None:
        layers["layer_alignment"] = kept.alignment[None]
    return FunctionValues(*_of_basis(inputs, kept.outputs), kernel, layers)


def _layers(features: Any, gradients: Any, spread: Any) -> dict[str, Array]:
    """The kernels and quantiles of layers, by observable name."""
    layers = {f"feature_kernel_{l}": phi for l, phi in enumerate(features) if l > 0}
    layers |= {f"gradient_kernel_{l}": g for l, g in enumerate(gradients[:-1], 1)}
    return layers | {f"preactivation_quantiles_{l}": one for l, one in enumerate(spread, 1)}


# Independent sets of samples, whose results are averaged; their spread gives the error of the mean.
SETS = 4
# Parts of a signal below this relative size get no direction of their own: smaller than the sampling error.
LEAST_OF_SAMPLES = 1e-2
LEAST_OF_LINEAR = 0.1  # in units of sqrt(machine epsilon): outputs are off by a hundredth of such a part


class LimitState(AbstractSavingState):
    """The state of the march: the pass at its last node, and the saved values.

    Attributes:
        inputs: inputs in the basis of the training set.
        known: the pass at the last node, one per set of samples; a linear network has no sets.
        nodes: all time nodes.
        wanted: the nodes to save.
        reached: number of wanted nodes at or before each wanted node.
        saves: the values saved so far.
        kernel: the initial NTK.
        lost: the energy lost up to the last node, without that node's own weight, and the rate of loss there; per set.
    """

    inputs: dmft.Basis
    known: dmft.Pass
    nodes: dmft.Nodes
    wanted: Int[Array, " times"]
    reached: Int[Array, " times"]
    saves: Saves
    kernel: Float[Array, "n out n out"]
    lost: tuple[Float[Array, "*sets"], Float[Array, "*sets"]]
    done: Bool[Array, ""]
    steps: Int[Array, ""]
    result: RESULTS


class RichMarch(AbstractStandIn, AbstractGrowing):
    """The limit of a deep network: exact if it is linear, by samples of its neurons otherwise.

    Arguments:
        source: the approximation that chose this march.
        rate: rate of gradient descent, None for gradient flow.
        count: number of nodes besides the requested times.
        samples, seed: as in `RichLimit`, for networks with activations.
        memory: maximum bytes, None for half of the free memory.
        ample: for linear networks, whether to make room for the directions of any smooth training.
    """

    source: AbstractApproximation
    rate: Float[Array, ""] | None
    count: int = eqx.field(static=True)  # the size of arrays
    samples: int = eqx.field(static=True)  # the size of arrays
    seed: int = eqx.field(static=True)  # of constants in the program
    memory: int | None = eqx.field(static=True)  # decides what is rejected
    ample: bool = eqx.field(static=True, default=True)  # the size of arrays

    @property
    def chunk(self) -> int:
        return 8

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self.source.times(ts)

    def check(self, problem: Problem) -> Validity:
        return self.source.check(problem)

    def doubt(self, problem: Problem, final: View) -> str:
        del problem, final  # the certificate reports all errors
        return ""

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> LimitState:
        require_memory_of_kernels(self.memory, problem, ts.size)
        form, inputs = dmft.normal_form(problem.net), dmft.basis(problem.x, problem.x_test)
        dtype = problem.dtype
        rate = jnp.ones((), dtype) if self.rate is None else self.rate.astype(dtype)
        fine = jnp.isfinite(rate) & (rate > 0)  # a traced rate may be invalid
        result = RESULTS.where(problem.valid & fine, RESULTS.successful, RESULTS.invalid)
        if self.rate is None:
            nodes = dmft.flow_nodes(_spread(problem, form, inputs.train, ts, self.count))
            # Requested times are among the nodes, so each is found exactly.
            wanted, times = jnp.searchsorted(nodes.times, ts).astype(int), ts
        else:
            rate = jnp.where(fine, rate, 1)
            nodes = dmft.descent_nodes(self.count + 1, rate)
            wanted, times = nearest_step(ts, rate, self.count)
            too_late = wanted[-1] > self.count
            result = RESULTS.where((result == RESULTS.successful) & too_late, RESULTS.max_steps, result)
        law = _law(problem, inputs, implicit=False)  # the first node has no weight of its own
        networks = self._networks(problem, form, law, nodes.times.size)
        known = _each(problem, lambda one: dmft.step(law, dmft.start(law, one), nodes, 0), networks)
        now = kept_of(problem, inputs, known, known.network)
        kernel = values_of(problem, inputs, now).kernel
        assert kernel is not None
        nothing = empty_saves(ts, now)
        saved = jax.tree.map(
            lambda leaf, value: leaf.at[0].set(jnp.where(wanted[0] == 0, value, leaf[0])),
            nothing.saved,
            now,
        )
        lost = _lost(problem, known)
        return LimitState(
            inputs=inputs,
            known=known,
            nodes=nodes,
            wanted=wanted,
            reached=jnp.searchsorted(wanted, wanted, side="right").astype(int),
            saves=Saves(times, saved, jnp.sum(wanted <= 0)),
            kernel=kernel,
            lost=(jnp.zeros_like(lost), lost),
            done=(result == RESULTS.invalid) | (wanted[-1] <= 0),
            steps=jnp.zeros((), int),
            result=result,
        )

    def _networks(self, problem: Problem, form: dmft.NormalForm, law: dmft.TrainingLaw, nodes: int) -> dmft.Network:
        """The initial networks, one per set of samples."""
        (block, inputs), outputs, dtype = law.x.shape, problem.y.shape[1], problem.dtype
        block *= outputs
        if problem.net.activation.linear:
            each = 1 if self.rate is not None else 2  # an implicit node is iterated several times
            few = few_directions(inputs + outputs, law.least, ample=self.ample)
            room = min(each * nodes * max(inputs, outputs), few) + block + 1
            advice = f"the training set has {inputs} dimensions and {outputs} outputs: give fewer dimensions or outputs"
            require_memory(self.memory, bytes_of_directions(form.hidden, 2 * room, room, dtype.itemsize), advice)
            return dmft.linear_network(form, inputs, outputs, room, dtype)
        # Rounded up to a power of two.
        least = 1 << (2 * SETS * (3 * block + 1) - 1).bit_length()
        if self.samples < least:
            raise ValueError(
                f"{problem.y.size} outputs on the training set need samples={least} at least, got {self.samples}"
            )
        each, room_of = self.samples // SETS, lambda samples: room_of_samples(samples, block)
        one = lambda samples: bytes_of_directions(form.hidden, samples, room_of(samples), dtype.itemsize)
        size = lambda samples: SETS * one(samples // SETS)
        require_memory_of_samples(
            self.memory, self.samples, least, size, "fewer samples are too few for this many outputs"
        )
        start = lambda key: dmft.sampled_network(form, inputs, outputs, room_of(each), each, key, dtype)
        return jax.lax.map(start, jr.split(jr.key(self.seed), SETS))

    def smaller(self, problem: Problem) -> "RichMarch | None":
        return dataclasses.replace(self, ample=False) if problem.net.activation.linear else None

    def outgrown(self, state: LimitState) -> bool:
        sides = ((one.features, one.gradients) for one in state.known.network.hidden)
        return not self.ample and any(float(side.missed) > 0 for pair in sides for side in pair)

    def advance(self, problem: Problem, state: LimitState, n: Int[Array, ""]) -> LimitState:
        law = _law(problem, state.inputs, implicit=self.rate is None)
        last = jnp.minimum(state.wanted[-1], state.nodes.times.size - 1)
        size = state.wanted.size

        def one(state: LimitState) -> LimitState:
            k = state.steps + 1
            known = _each(problem, lambda one: dmft.step(law, one, state.nodes, k), state.known)
            fine, slot = jnp.all(jnp.isfinite(known.push)), state.saves.slot
            due = fine & (state.wanted[jnp.minimum(slot, size - 1)] == k) & (slot < size)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), state.saves.saved)
            here = lambda: kept_of(problem, state.inputs, known, _here(problem, law, known, state.nodes.own[k]))
            row, at = jax.lax.cond(due, here, lambda: nothing), jnp.where(due, slot, size)
            saved = jax.tree.map(lambda leaf, value: leaf.at[at].set(value, mode="drop"), state.saves.saved, row)
            slot = jnp.where(due, state.reached[jnp.minimum(slot, size - 1)], slot)
            before, rate = state.lost
            # The previous node gets its full weight, now that another one follows.
            lost = (before + state.nodes.passed[k - 1] * rate, _lost(problem, known))
            where = lambda one: (one.known, one.saves, one.lost, one.done, one.steps, one.result)
            result = RESULTS.where(fine, state.result, RESULTS.diverged)
            found = (known, Saves(state.saves.times, saved, slot), lost, ~fine | (k >= last), k, result)
            return eqx.tree_at(where, state, found)

        end = state.steps + n
        return jax.lax.while_loop(lambda one: ~one.done & (one.steps < end), one, state)

    def finish(self, problem: Problem, state: LimitState) -> March:
        law = _law(problem, state.inputs, implicit=self.rate is None)
        own = state.nodes.own[state.steps]
        network = _here(problem, law, state.known, own)
        # Times that round to the same step share the row saved for the first of them.
        first = jnp.searchsorted(state.wanted, state.wanted)
        saved = jax.tree.map(lambda leaf: leaf[first], state.saves.saved)
        values = lambda kept: values_of(problem, state.inputs, kept)
        return March(
            times=state.saves.times,
            saved=jax.vmap(values)(saved),
            params=values(kept_of(problem, state.inputs, state.known, network)),
            t_end=state.nodes.times[state.steps],
            result=RESULTS.where(
                state.result == RESULTS.invalid, state.result, self.source.judged(problem, state.result)
            ),
            steps=state.steps,
            rejected=jnp.zeros_like(state.steps),
            evaluations=-jnp.ones_like(state.steps),
            certificate=self._certificate(problem, state, network),
            kernel=state.kernel,
            from_zero=True,
        )

    def _certificate(self, problem: Problem, state: LimitState, network: dmft.Network) -> Certificate:
        """Energy balance and residual of the flow, standard error of the outputs, and parts of signals without room."""
        f, test = _each(problem, lambda one, here: outputs_of(problem, state.inputs, one, here), state.known, network)
        value = lambda f: problem.loss.value(f, problem.y)
        start, end = (_each(problem, value, one) for one in (jnp.zeros_like(f), f))  # f = 0
        # The trapezoidal rule, with the last node's own weight.
        lost = start - end - state.lost[0] - state.nodes.own[state.steps] * state.lost[1]
        balance = jnp.max(jnp.where(start == 0, jnp.nan, jnp.abs(lost / start)))  # NaN if there is nothing to learn
        missed = jnp.max(_each(problem, lambda one: one.missed, network)) ** 2
        if not problem.net.activation.linear:
            found = f if test is None else test
            size = jnp.maximum(jnp.max(jnp.abs(problem.y)), jnp.max(jnp.abs(found)))
            # The standard error of the mean over sets.
            error = jnp.max(jnp.std(found, axis=0, ddof=1)) / f.shape[0] ** 0.5 / size
            # Parts below the threshold are dropped without being counted.
            missed = jnp.maximum(jnp.maximum(missed, error), LEAST_OF_SAMPLES**2)
        nothing = jnp.full((), jnp.nan, f.dtype)
        if self.rate is not None:
            return Certificate(nothing, nothing, nothing, sampling_error=missed)
        residual = jnp.max(state.known.residual)
        return Certificate(nothing, balance, nothing, sampling_error=missed, residual=residual)


def _law(problem: Problem, inputs: dmft.Basis, *, implicit: bool) -> dmft.TrainingLaw:
    """The training law: at the basis vectors for a linear network, at the training set for any other."""
    form, train, activation = dmft.normal_form(problem.net), inputs.train, problem.net.activation
    if activation.linear:
        # A linear network is trained at the basis vectors: a push on the outputs f(x) = x F becomes a push on F.
        push = lambda f: -train.T @ problem.loss.gradient(train @ f, problem.y)
        least = LEAST_OF_LINEAR * float(jnp.finfo(train.dtype).eps) ** 0.5
        return dmft.TrainingLaw(form, activation, jnp.eye(train.shape[1], dtype=train.dtype), push, least, implicit)
    push = lambda f: -problem.loss.gradient(f, problem.y)
    return dmft.TrainingLaw(form, activation, train, push, LEAST_OF_SAMPLES, implicit)


def _each(problem: Problem, function: Callable[..., Any], *sets: Any) -> Any:
    """A function applied to each set of samples, or to the single linear network."""
    return function(*sets) if problem.net.activation.linear else jax.vmap(function)(*sets)


def _here(problem: Problem, law: dmft.TrainingLaw, known: dmft.Pass, own: Float[Array, ""]) -> dmft.Network:
    return _each(problem, lambda one: dmft.moved(law, one, own), known)


def _lost(problem: Problem, known: dmft.Pass) -> Float[Array, "*sets"]:
    """The energy lost per time."""
    form = dmft.normal_form(problem.net)
    kernel = lambda fields: dmft.tangent_kernel(form, fields.features, fields.gradients)
    # -dL/dt = q K q for the push q = -dL/df under the tangent kernel K.
    return _each(problem, lambda fields, q: jnp.einsum("na,namb,mb->", q, kernel(fields), q), known.fields, known.push)


def _spread(problem: Problem, form: dmft.NormalForm, train: Array, ts: Float[Array, " times"], count: int) -> Array:
    """The requested times, 0, and others: spaced evenly before the fastest rate has acted, evenly in log t after."""
    zero = jnp.zeros((train.shape[0], problem.y.shape[1]), train.dtype)
    curvature = jnp.trace(problem.loss.hessian(zero, problem.y), axis1=1, axis2=2)
    # The trace of kernel times curvature bounds all rates; the kernel is that of a linear network at the start.
    fastest = dmft.initial_kernel(form) * jnp.sum(curvature * jnp.sum(train**2, axis=1))
    end = ts[-1]
    steps = jnp.log1p(end * fastest) * jnp.arange(count + 1, dtype=end.dtype) / count
    even = end * jnp.arange(count + 1, dtype=end.dtype) / count
    # t_k = ((1 + T fastest)^(k/count) - 1)/fastest, up to T. As T fastest -> 0 it becomes even, and the quotient 0/0.
    stiff = end * fastest > 1e-3
    grid = jnp.where(stiff, jnp.expm1(steps) / jnp.where(stiff, fastest, 1.0), even)
    return jnp.sort(jnp.concatenate([jnp.minimum(grid, end), ts]))
