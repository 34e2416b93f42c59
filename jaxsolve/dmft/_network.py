"""An infinitely wide network, by samples of its neurons."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._matrix import Matrix
from ._normal_form import NormalForm


LEVELS = tuple(percent / 100 for percent in range(1, 100))
"""Those of the quantiles of preactivations that are saved."""

# Layers written out in a program, not looped over: with few samples most of a step is the cost of calls.
UNROLL = 4


class Network(eqx.Module):
    """Neurons, which move independently in the mean field of all.

    Attributes:
        first: weights on the inputs.
        hidden: weight matrices between hidden layers, stacked.
        last: weights of the read-out.
        spare: the weights on a further input, of which training knows nothing.

    Example:
        >>> form = js.dmft.NormalForm(jnp.ones(3), jnp.ones(3))
        >>> js.dmft.linear_network(form, 2, 1, 5, jnp.ones(3).dtype).first.shape
        (2, 10)
    """

    first: Float[Array, "i s"]
    hidden: Matrix
    last: Float[Array, "a s"]
    spare: Float[Array, " s"]

    @property
    def missed(self) -> Float[Array, ""]:
        """The largest part of a signal, as a share of its size, for whose direction there was no room."""
        both = (self.hidden.features.missed, self.hidden.gradients.missed)
        return jnp.max(jnp.stack(both), initial=0.0)


class Seen(NamedTuple):
    """What a network shows of the training inputs.

    Attributes:
        outputs: f.
        preactivations: of the hidden layers.
        last: activations of the last hidden layer.
        first: N df/dh of the first one.
        below, above: for each hidden matrix, coefficients of the activations below and of the gradients above.
        features: <phi phi> per hidden layer, first that of the inputs.
        gradients: <g g> per hidden layer, at last that of the outputs.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 1.0, 3.0]))
        >>> x = jnp.ones((1, 1))
        >>> net = js.dmft.linear_network(form, 1, 1, 2, x.dtype)
        >>> seen, _ = js.dmft.look(form, lambda h: h, net, x, 1e-6)
        >>> print(len(seen.features), seen.outputs)
        3 [[0.]]
    """

    outputs: Float[Array, "n a"]
    preactivations: Float[Array, "hidden n s"]
    last: Float[Array, "n s"]
    first: Float[Array, "n a s"]
    below: Float[Array, "matrices n k"]
    above: Float[Array, "matrices n a k"]
    features: Float[Array, "layers n n"]
    gradients: Float[Array, "layers n a n a"]


def look(
    form: NormalForm, activation: Callable[[Array], Array], network: Network, x: Float[Array, "n i"], least: float
) -> tuple[Seen, Network]:
    """What a network shows, and the network whose matrices have met it.

    Arguments:
        form: hyperparameters.
        activation: of the hidden layers.
        network: before.
        x: inputs.
        least: the smallest part of a signal, as a share of its size, that makes a direction of its own.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 1.0, 3.0]))
        >>> x = jnp.ones((1, 1))
        >>> net = js.dmft.linear_network(form, 1, 1, 2, x.dtype)
        >>> seen, net = js.dmft.look(form, lambda h: h, net, x, 1e-6)
        >>> print(seen.features.round(3).ravel())
        [1.  0.5 0.5]
    """
    size, n, a = network.first.shape[1], x.shape[0], network.last.shape[0]
    slope = lambda h: jax.jvp(activation, (h,), (jnp.ones_like(h),))
    flat = lambda g: g.reshape(n * a, size)

    def forward(phi: Array, layer: tuple[Array, Matrix]) -> tuple[Array, tuple]:
        sigma, matrix = layer
        h, below, features = matrix.forward(sigma, phi, least)
        phi, bend = slope(h)
        return phi, (features, h, phi, bend, below)

    def backward(g: Array, layer: tuple[Array, Matrix, Array]) -> tuple[Array, tuple]:
        sigma, matrix, bend = layer
        z, above, gradients = matrix.backward(sigma, flat(g), least)
        return bend[:, None] * z.reshape(g.shape), (gradients, g, above.reshape(n, a, -1))

    stacked = lambda one, others: jnp.concatenate([one[None], others])
    start, sigma = x @ network.first, jnp.sqrt(form.variance)[1:-1]
    phi, bend = slope(start)
    last, (directions, h, phis, bends, below) = jax.lax.scan(forward, phi, (sigma, network.hidden), unroll=UNROLL)
    hidden = eqx.tree_at(lambda one: one.features, network.hidden, directions)
    phis, bends = stacked(phi, phis), stacked(bend, bends)
    top = bends[-1][:, None] * network.last[None]
    first, (directions, g, above) = jax.lax.scan(
        backward, top, (sigma, hidden, bends[:-1]), reverse=True, unroll=UNROLL
    )
    hidden = eqx.tree_at(lambda one: one.gradients, hidden, directions)
    kernels = jax.vmap(lambda one: one @ one.T / size)
    features = stacked(x @ x.T, kernels(phis))
    gradients = kernels(jax.vmap(flat)(stacked(first, g))).reshape(-1, n, a, n, a)
    ends = jnp.broadcast_to(jnp.eye(a, dtype=x.dtype)[None, :, None, :], (1, n, a, n, a))
    f = last @ network.last.T / size
    seen = Seen(f, stacked(start, h), last, first, below, above, features, jnp.concatenate([gradients, ends]))
    return seen, eqx.tree_at(lambda one: one.hidden, network, hidden)


def tangent_kernel(form: NormalForm, seen: Seen) -> Float[Array, "n a n a"]:
    """The eta-weighted NTK.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 1.0, 3.0]))
        >>> x = jnp.ones((1, 1))
        >>> net = js.dmft.linear_network(form, 1, 1, 2, x.dtype)
        >>> seen, _ = js.dmft.look(form, lambda h: h, net, x, 1e-6)
        >>> print(js.dmft.tangent_kernel(form, seen).round(3))
        [[[[4.5]]]]
        >>> print(js.dmft.initial_kernel(form))
        4.5
    """
    return jnp.einsum("l,lnm,lnamb->namb", form.rate, seen.features, seen.gradients)


def pushed(
    form: NormalForm, network: Network, x: Float[Array, "n i"], seen: Seen, push: Float[Array, "n a"]
) -> Network:
    """The network with all weights moved by rate * sum_na push_na N df_na/dW.

    Arguments:
        push: -dL/df, times a step.
    """
    first = network.first + form.rate[0] * x.T @ jnp.einsum("na,nas->ns", push, seen.first)
    last = network.last + form.rate[-1] * push.T @ seen.last
    steps = jnp.einsum("lnj,na,lnak->ljk", seen.below, push, seen.above)
    moved = network.hidden.moved + form.rate[1:-1, None, None] * steps
    return Network(first, eqx.tree_at(lambda one: one.moved, network.hidden, moved), last, network.spare)


def outputs_at(
    form: NormalForm,
    activation: Callable[[Array], Array],
    network: Network,
    x: Float[Array, "m i"],
    outside: Float[Array, " m"],
) -> Float[Array, "m a"]:
    """Outputs at inputs that take no part in training.

    Arguments:
        form, activation, network: as for `look`.
        x: in the basis of the training set.
        outside: the length of what is left of them.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 1.0, 3.0]))
        >>> x = jnp.ones((1, 1))
        >>> net = js.dmft.linear_network(form, 1, 1, 2, x.dtype)
        >>> print(js.dmft.outputs_at(form, jnp.tanh, net, x, jnp.zeros(1)))
        [[0.]]
    """
    start = activation(x @ network.first + outside[:, None] * network.spare[None])
    one = lambda phi, layer: (activation(layer[1].glance(layer[0], phi)), None)
    last, _ = jax.lax.scan(one, start, (jnp.sqrt(form.variance)[1:-1], network.hidden))
    return last @ network.last.T / last.shape[1]
