"""One causal pass through the nodes of an infinitely wide network's training.

Bordelon & Pehlevan (2022), whose equations are fixed points over all times. They are causal: what happens at one time
depends on earlier times only, in an implicit rule on itself too.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...._numerics import nonzero
from ._network import Fields, Network, propagate, pushed, tangent_kernel
from ._normal_form import NormalForm


class Nodes(eqx.Module):
    """Times t_k, and weights w_ks with which W(t_k) = W(0) + sum_{s <= k} w_ks dW/dt(t_s).

    Attributes:
        times: sorted, the first one 0.
        passed: w_ks for k > s: what node s weighs in all later ones.
        own: w_kk, 0 where the sum is explicit, as that of gradient descent is.
    """

    times: Float[Array, " nodes"]
    passed: Float[Array, " nodes"]
    own: Float[Array, " nodes"]

    @property
    def weights(self) -> Float[Array, "nodes nodes"]:
        """All of them, in a matrix."""
        return jnp.tril(jnp.broadcast_to(self.passed, (self.passed.size,) * 2), -1) + jnp.diag(self.own)


def descent_nodes(count: int, rate: Float[Array, ""]) -> Nodes:
    """The nodes of gradient descent at this rate: its equations hold exactly."""
    ones = jnp.ones(count, rate.dtype)
    return Nodes(rate * jnp.arange(count, dtype=rate.dtype), rate * ones, 0 * ones)


def flow_nodes(times: Float[Array, " nodes"]) -> Nodes:
    """The trapezoidal rule on given times: of second order in their distance, and stable at any."""
    # A node weighs half of the interval before it in itself, and half of that after it as well in later nodes.
    steps = jnp.diff(times)
    left, right = jnp.append(steps, 0.0), jnp.insert(steps, 0, 0.0)
    return Nodes(times, (left + right) / 2, right / 2)


# Iterations of a node's implicit equations. The stiff part is Newton's, and features move little within a step: each
# leaves about a tenth of what is missing. Derivatives come one iteration later than values.
LEAST, MOST = 3, 40

Push = Callable[[Float[Array, "n a"]], Float[Array, "n a"]]


class TrainingLaw(eqx.Module):
    """The law by which an infinitely wide network is trained.

    Attributes:
        form: hyperparameters.
        activation: of the hidden layers.
        x: inputs, in a basis.
        push: -dL/df, given the outputs.
        least: the smallest part of a signal, as a share of its size, that makes a direction of its own.
        implicit: whether a node weighs itself, as in `flow_nodes`.
    """

    form: NormalForm
    activation: Callable[[Array], Array] = eqx.field(static=True)
    x: Float[Array, "n i"]
    push: Push
    least: float = eqx.field(static=True)
    implicit: bool = eqx.field(static=True)


class Pass(eqx.Module):
    """The state of the pass at its last node.

    Attributes:
        network: with what all nodes before the last one have pushed.
        fields: at the last node.
        push: there.
        residual: the most by which the last iteration of a node moved its outputs or the kernels of a layer, relative
            to the largest of them; 0 where nodes weigh nothing themselves.
    """

    network: Network
    fields: Fields
    push: Float[Array, "n a"]
    residual: Float[Array, ""]


def start(law: TrainingLaw, network: Network) -> Pass:
    """Before the first node."""
    fields, _ = eqx.filter_eval_shape(lambda: propagate(law.form, law.activation, network, law.x, law.least))
    fields = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), fields)
    return Pass(network, fields, jnp.zeros_like(fields.outputs), jnp.zeros((), fields.outputs.dtype))


def step(law: TrainingLaw, state: Pass, nodes: Nodes, k: Int[Array, ""] | int) -> Pass:
    """Adds node k. Where nodes weigh themselves it has derivatives in forward mode only.

    Arguments:
        law: of the training.
        state: at the node before.
        nodes: all of them.
        k: the node.
    """
    # For k = 0 the index wraps around, but nothing has been pushed yet.
    network = pushed(law.form, state.network, law.x, state.fields, nodes.passed[k - 1] * state.push)
    if not law.implicit:
        fields, network = propagate(law.form, law.activation, network, law.x, law.least)
        return Pass(network, fields, law.push(fields.outputs), state.residual)

    # What is left after an iteration is a tenth of what it moved. Samples have larger errors of their own than 1e-5.
    enough = max(min(0.1 * law.least, 1e-5), 100 * float(jnp.finfo(state.push.dtype).eps))

    def unsettled(carry: tuple[Pass, Array, Array, Array]) -> Array:
        found, before, since, rounds = carry
        # A step too long may drive it away. A new direction moves what is looked at with it, and what it changes, next.
        settling = (found.residual < 2 * before) | (since < 2)
        return (rounds < LEAST) | (found.residual > enough) & settling & (rounds < MOST)

    def improved(carry: tuple[Pass, Array, Array, Array]) -> tuple[Pass, Array, Array, Array]:
        found, _, since, rounds = carry
        here = moved(law, found, nodes.own[k])
        fields, here = propagate(law.form, law.activation, here, law.x, law.least)
        f, q = fields.outputs, found.push
        # Newton's method for the push, whose effect on the outputs is the kernel's.
        slope = jax.jacfwd(law.push)(f).reshape(q.size, q.size)
        kernel = nodes.own[k] * tangent_kernel(law.form, fields.features, fields.gradients).reshape(q.size, q.size)
        # q + c = push(f + K c), to first order: (1 - slope K) c = push(f) - q.
        change = jnp.linalg.solve(jnp.eye(q.size, dtype=q.dtype) - slope @ kernel, (law.push(f) - q).ravel())
        q = q + change.reshape(q.shape)
        # When to stop is a choice, and has no derivative.
        apart = jax.lax.stop_gradient(_apart(fields, found.fields, kernel @ q.ravel()))
        since = jnp.where(here.directions > found.network.directions, 0, since + 1)
        return Pass(_directions_of(here, found.network), fields, q, apart), found.residual, since, rounds + 1

    # The predictor: what the node itself weighs is given to the one before.
    far = jnp.full_like(state.residual, jnp.inf)
    begin = Pass(network, state.fields, state.push, far), far, jnp.full((), 2), jnp.zeros((), int)
    found, *_ = jax.lax.while_loop(unsettled, improved, begin)
    return eqx.tree_at(lambda one: one.residual, found, jnp.maximum(found.residual, state.residual))


def _apart(fields: Fields, before: Fields, step: Float[Array, " na"]) -> Float[Array, ""]:
    """By how much outputs, or the kernels of a layer, differ: relative to the largest, or to a step of the outputs."""
    size = lambda one: jnp.max(jnp.abs(one))
    layers = jax.vmap(lambda one, other: size(one - other) / nonzero(size(one)))
    outputs = size(fields.outputs - before.outputs) / nonzero(jnp.maximum(size(fields.outputs), size(step)))
    kernels = layers(fields.features, before.features), layers(fields.gradients, before.gradients)
    return jnp.max(jnp.concatenate([outputs[None], *kernels]))


def moved(law: TrainingLaw, state: Pass, own: Float[Array, ""]) -> Network:
    """The network at the last node, which weighs itself by `own`."""
    return pushed(law.form, state.network, law.x, state.fields, own * state.push)


def _directions_of(met: Network, network: Network) -> Network:
    where = lambda one: (one.features, one.gradients)
    pairs = zip(network.hidden, met.hidden, strict=True)
    hidden = tuple(eqx.tree_at(where, matrix, where(other)) for matrix, other in pairs)
    return Network(network.first, hidden, network.last, network.spare)
