"""One causal pass through the time nodes of an infinitely wide network's training.

The equations of Bordelon & Pehlevan (2022) are fixed points over all times. They are causal: each time depends only on
earlier times, and with an implicit rule also on itself.
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
        passed: w_ks for k > s, the weight of node s in all later ones.
        own: w_kk, 0 if the sum is explicit, as for gradient descent.
    """

    times: Float[Array, " nodes"]
    passed: Float[Array, " nodes"]
    own: Float[Array, " nodes"]

    @property
    def weights(self) -> Float[Array, "nodes nodes"]:
        """All weights as a matrix."""
        return jnp.tril(jnp.broadcast_to(self.passed, (self.passed.size,) * 2), -1) + jnp.diag(self.own)


def descent_nodes(count: int, rate: Float[Array, ""]) -> Nodes:
    """The nodes of gradient descent at this rate: its equations hold exactly."""
    ones = jnp.ones(count, rate.dtype)
    return Nodes(rate * jnp.arange(count, dtype=rate.dtype), rate * ones, 0 * ones)


def flow_nodes(times: Float[Array, " nodes"]) -> Nodes:
    """The trapezoidal rule on given times: second order in their spacing, and stable at any spacing."""
    # A node's weight is half of the interval before it; in later nodes half of the interval after it is added.
    steps = jnp.diff(times)
    left, right = jnp.append(steps, 0.0), jnp.insert(steps, 0, 0.0)
    return Nodes(times, (left + right) / 2, right / 2)


# Iterations of a node's implicit equations. Newton's method handles the stiff part, and features move little within a
# step: each iteration reduces the error about tenfold. Derivatives lag one iteration behind values.
LEAST, MOST = 3, 40

Push = Callable[[Float[Array, "n a"]], Float[Array, "n a"]]


class TrainingLaw(eqx.Module):
    """The training law of an infinitely wide network.

    Attributes:
        form: the normal form.
        activation: activation of the hidden layers.
        x: inputs, in a basis.
        push: -dL/df as a function of the outputs.
        least: the smallest part of a signal, relative to its size, that gets its own direction.
        implicit: whether nodes have a weight in themselves, as in `flow_nodes`.
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
        network: the network after the pushes of all nodes before the last one.
        fields: fields at the last node.
        push: the push at the last node.
        residual: the largest change of outputs or of a layer's kernels in the last iteration of a node so far, relative
            to the largest of them; 0 for explicit nodes.
    """

    network: Network
    fields: Fields
    push: Float[Array, "n a"]
    residual: Float[Array, ""]


def start(law: TrainingLaw, network: Network) -> Pass:
    """The state before the first node."""
    fields, _ = eqx.filter_eval_shape(lambda: propagate(law.form, law.activation, network, law.x, law.least))
    fields = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), fields)
    return Pass(network, fields, jnp.zeros_like(fields.outputs), jnp.zeros((), fields.outputs.dtype))


def step(law: TrainingLaw, state: Pass, nodes: Nodes, k: Int[Array, ""] | int) -> Pass:
    """Adds node k. Implicit nodes are differentiable in forward mode only.

    Arguments:
        law: the training law.
        state: the state at the previous node.
        nodes: all nodes.
        k: the index of the node.
    """
    # For k = 0 the index wraps around, but nothing has been pushed yet.
    network = pushed(law.form, state.network, law.x, state.fields, nodes.passed[k - 1] * state.push)
    if not law.implicit:
        fields, network = propagate(law.form, law.activation, network, law.x, law.least)
        return Pass(network, fields, law.push(fields.outputs), state.residual)

    # The error after an iteration is a tenth of its change. The sampling error is larger than 1e-5.
    enough = max(min(0.1 * law.least, 1e-5), 100 * float(jnp.finfo(state.push.dtype).eps))

    def unsettled(carry: tuple[Pass, Array, Array, Array]) -> Array:
        found, before, since, rounds = carry
        # Too long a step may diverge. A new direction may raise the residual of two iterations.
        settling = (found.residual < 2 * before) | (since < 2)
        return (rounds < LEAST) | (found.residual > enough) & settling & (rounds < MOST)

    def improved(carry: tuple[Pass, Array, Array, Array]) -> tuple[Pass, Array, Array, Array]:
        found, _, since, rounds = carry
        here = moved(law, found, nodes.own[k])
        fields, here = propagate(law.form, law.activation, here, law.x, law.least)
        f, q = fields.outputs, found.push
        # Newton's method for the push, which acts on the outputs through the kernel.
        slope = jax.jacfwd(law.push)(f).reshape(q.size, q.size)
        kernel = nodes.own[k] * tangent_kernel(law.form, fields.features, fields.gradients).reshape(q.size, q.size)
        # q + c = push(f + K c), to first order: (1 - slope K) c = push(f) - q.
        change = jnp.linalg.solve(jnp.eye(q.size, dtype=q.dtype) - slope @ kernel, (law.push(f) - q).ravel())
        q = q + change.reshape(q.shape)
        # The stopping criterion is a choice and is not differentiated.
        apart = jax.lax.stop_gradient(_apart(fields, found.fields, kernel @ q.ravel()))
        since = jnp.where(here.directions > found.network.directions, 0, since + 1)
        return Pass(_directions_of(here, found.network), fields, q, apart), found.residual, since, rounds + 1

    # The predictor gives the node's own weight to the previous node.
    far = jnp.full_like(state.residual, jnp.inf)
    begin = Pass(network, state.fields, state.push, far), far, jnp.full((), 2), jnp.zeros((), int)
    found, *_ = jax.lax.while_loop(unsettled, improved, begin)
    return eqx.tree_at(lambda one: one.residual, found, jnp.maximum(found.residual, state.residual))


def _apart(fields: Fields, before: Fields, step: Float[Array, " na"]) -> Float[Array, ""]:
    """The change of outputs or of a layer's kernels, relative to the largest of them, or to a step of the outputs."""
    size = lambda one: jnp.max(jnp.abs(one))
    layers = jax.vmap(lambda one, other: size(one - other) / nonzero(size(one)))
    outputs = size(fields.outputs - before.outputs) / nonzero(jnp.maximum(size(fields.outputs), size(step)))
    kernels = layers(fields.features, before.features), layers(fields.gradients, before.gradients)
    return jnp.max(jnp.concatenate([outputs[None], *kernels]))


def moved(law: TrainingLaw, state: Pass, own: Float[Array, ""]) -> Network:
    """The network at the last node, whose own weight is `own`."""
    return pushed(law.form, state.network, law.x, state.fields, own * state.push)


def _directions_of(met: Network, network: Network) -> Network:
    where = lambda one: (one.features, one.gradients)
    pairs = zip(network.hidden, met.hidden, strict=True)
    hidden = tuple(eqx.tree_at(where, matrix, where(other)) for matrix, other in pairs)
    return Network(network.first, hidden, network.last, network.spare)
