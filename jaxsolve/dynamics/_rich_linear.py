"""Deep linear networks in the rich limit, node by node."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .. import dmft
from .._clock import step_at, time_at
from .._dynamics import (
    AbstractChoice,
    AbstractMarching,
    AbstractStandIn,
    AbstractState,
    Certificate,
    FunctionValues,
    March,
    Quantity,
)
from .._memory import free_memory
from .._problem import Problem
from .._results import RESULTS


class LimitState(AbstractState):
    """Where the pass stands.

    Attributes:
        inputs: in the basis of the pass.
        known: all nodes before the present one.
        nodes: all times.
        wanted: the nodes that are saved.
        lost: the energy that each node says is lost per time.
    """

    inputs: dmft.Basis
    known: dmft.LinearPass
    nodes: dmft.Nodes
    wanted: Int[Array, " times"]
    lost: Float[Array, " nodes"]
    done: Bool[Array, ""]
    steps: Int[Array, ""]
    result: RESULTS


class RichLinear(AbstractStandIn, AbstractMarching):
    """The limit of a deep linear network.

    Arguments:
        source: the choice, with `rate` None for the flow.
        rate: that of gradient descent, None for gradient flow.
        count: nodes besides the requested times.
    """

    source: AbstractChoice
    rate: Float[Array, ""] | None
    count: int = eqx.field(static=True)  # the size of arrays

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def provides(self) -> frozenset[Quantity]:
        return self.source.provides

    @property
    def chunk(self) -> int:
        return 8

    def times(self, ts: Float[Array, " times"]) -> Float[Array, " times"]:
        return self.source.times(ts)

    def init(self, problem: Problem, ts: Float[Array, " times"]) -> LimitState:
        form, inputs = dmft.normal_form(problem.net), dmft.basis(problem.x, problem.x_test)
        dtype, hidden, size = problem.x.dtype, form.hidden, inputs.train.shape[1]
        result = RESULTS.where(problem.valid, RESULTS.successful, RESULTS.invalid)
        if self.rate is None:
            nodes = dmft.flow_nodes(_spread(problem, form, inputs.train, ts, self.count))
            wanted = jnp.searchsorted(nodes.times, ts).astype(int)
        else:
            rate = self.rate.astype(dtype)
            nodes = dmft.descent_nodes(self.count + 1, rate)
            wanted = step_at(ts, rate)
            too_late = wanted[-1] > self.count
            result = RESULTS.where((result == RESULTS.successful) & too_late, RESULTS.max_steps, result)
        count, outputs = nodes.times.size, problem.y.shape[1]
        _require_room(hidden, count, size, outputs, dtype.itemsize)
        known = dmft.start(hidden, count, size, outputs, dtype)
        done = result == RESULTS.invalid
        return LimitState(
            inputs=inputs,
            known=known,
            nodes=nodes,
            wanted=wanted,
            lost=jnp.zeros(count, dtype),
            done=done,
            steps=jnp.zeros((), int),
            result=result,
        )

    def advance(self, problem: Problem, state: LimitState, n: Int[Array, ""]) -> LimitState:
        form, train = dmft.normal_form(problem.net), state.inputs.train
        push = lambda f: -train.T @ problem.loss.gradient(train @ f, problem.y)
        last = jnp.minimum(state.wanted[-1], state.nodes.times.size - 1)

        def one(state: LimitState) -> LimitState:
            k = state.steps
            known = dmft.step(form, push, state.known, state.nodes.weights[k], k, implicit=self.rate is None)
            q = known.push[k]
            lost = jnp.einsum("ia,iajb,jb->", q, dmft.basis_kernel(form, known, k), q)
            fine = jnp.all(jnp.isfinite(known.outputs[k])) & jnp.isfinite(lost)
            result = RESULTS.where(fine, state.result, RESULTS.diverged)
            done = ~fine | (k >= last)
            where = lambda one: (one.known, one.lost, one.done, one.steps, one.result)
            return eqx.tree_at(where, state, (known, state.lost.at[k].set(lost), done, k + 1, result))

        end = state.steps + n
        return jax.lax.while_loop(lambda one: ~one.done & (one.steps < end), one, state)

    def finish(self, problem: Problem, state: LimitState) -> March:
        form, inputs = dmft.normal_form(problem.net), state.inputs
        reached = state.steps - 1

        def values(k: Int[Array, ""]) -> FunctionValues:
            f = state.known.outputs[k]
            kernel = jnp.einsum("ni,iajb,mj->namb", inputs.train, dmft.basis_kernel(form, state.known, k), inputs.train)
            layers = {}
            for number, layer in enumerate(state.known.layers, 1):
                layers[f"feature_kernel_{number}"] = inputs.train @ layer.h[k, :, k] @ inputs.train.T
                everywhere = (inputs.train.shape[0],) * 2
                layers[f"gradient_kernel_{number}"] = jnp.broadcast_to(
                    layer.g[k, :, k][None, :, None, :], (everywhere[0], f.shape[1], everywhere[1], f.shape[1])
                )
            test = None if inputs.test is None else inputs.test @ f
            return FunctionValues(inputs.train @ f, test, kernel, layers)

        def row(k: Int[Array, ""]) -> FunctionValues:
            return jax.tree.map(lambda leaf: jnp.where(k <= reached, leaf, jnp.nan), values(jnp.minimum(k, reached)))

        at = jnp.minimum(state.wanted, state.nodes.times.size - 1)
        times = state.nodes.times[at] if self.rate is None else time_at(state.wanted, self.rate.astype(problem.x.dtype))
        beyond = state.wanted > reached
        saved = jax.lax.map(row, jnp.where(beyond, reached + 1, at))
        failed = state.result == RESULTS.max_steps
        return March(
            times=times,
            saved=saved,
            params=values(reached),
            t_end=state.nodes.times[reached],
            result=RESULTS.where(failed & ~jnp.any(beyond), RESULTS.successful, state.result),
            steps=state.steps,
            rejected=jnp.zeros_like(state.steps),
            evaluations=-jnp.ones_like(state.steps),
            certificate=None if self.rate is not None else _certificate(problem, state, inputs.train, reached),
            kernel=values(jnp.zeros((), int)).kernel,
        )


def _certificate(problem: Problem, state: LimitState, train: Array, reached: Int[Array, ""]) -> Certificate:
    """Energy balance: what the loss has fallen by, and the integral of what each node says is lost."""
    value = lambda k: problem.loss.value(train @ state.known.outputs[k], problem.y)
    dissipated = state.nodes.weights[reached] @ state.lost
    first, final = value(jnp.zeros((), int)), value(reached)
    nothing = jnp.full((), jnp.nan, first.dtype)
    return Certificate(nothing, jnp.abs(first - final - dissipated) / first, nothing, nothing)


def _spread(problem: Problem, form: dmft.NormalForm, train: Array, ts: Float[Array, " times"], count: int) -> Array:
    """The requested times, 0, and others: evenly before the fastest rate has acted, evenly in log t after."""
    zero = jnp.zeros((train.shape[0], problem.y.shape[1]), train.dtype)
    curvature = jnp.trace(problem.loss.hessian(zero, problem.y), axis1=1, axis2=2)
    fastest = dmft.initial_kernel(form) * jnp.sum(curvature * jnp.sum(train**2, axis=1))
    end = ts[-1]
    steps = jnp.log1p(end * fastest) * jnp.arange(count + 1, dtype=end.dtype) / count
    even = end * jnp.arange(count + 1, dtype=end.dtype) / count
    stiff = end * fastest > 1e-3
    grid = jnp.where(stiff, jnp.expm1(steps) / jnp.where(stiff, fastest, 1.0), even)
    return jnp.sort(jnp.concatenate([jnp.minimum(grid, end), ts]))


def _require_room(hidden: int, count: int, inputs: int, outputs: int, item: int) -> None:
    """Raises MemoryError before anything is allocated."""
    side, top = count * inputs, count * outputs
    needed = 2 * item * (hidden * (2 * side**2 + 2 * side * top + 2 * top**2) + count**2)
    free = free_memory()
    if free is not None and needed > free // 2:
        fits = int(count * (free / 2 / needed) ** 0.5)
        raise MemoryError(
            f"the rich limit of {hidden} hidden layers at {count} times and {inputs} directions of the inputs needs "
            f"{needed / 1e9:.3g} GB, and {free / 2e9:.3g} GB may be used; {fits} times would fit: give nodes={fits}, "
            "or fewer requested times, or inputs of fewer dimensions"
        )
