"""Infinitely wide deep linear networks that learn features: their equations close, and one causal pass solves them.

Bordelon & Pehlevan (2022), whose equations are fixed points over all times. They are strictly causal for gradient
descent, so that row after row is known from those before; an implicit rule has the row itself on both sides.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._normal_form import NormalForm


# Iterations of a node's implicit equations. The stiff part is Newton's, and features move little within a step.
CORRECTIONS = 4


class _Layer(NamedTuple):
    """One hidden layer at all pairs of nodes; what is still to come is 0.

    Attributes:
        h: <h_i(t) h_j(s)> of preactivations at inputs i and j.
        g: <g_a(t) g_b(s)> of gradients of outputs a and b.
        h_u, h_r: responses of h(t) to the sources u(s) from below and r(s) from above.
        g_u, g_r: those of g(t).
    """

    h: Float[Array, "t i t i"]
    g: Float[Array, "t a t a"]
    h_u: Float[Array, "t i t i"]
    h_r: Float[Array, "t i t a"]
    g_u: Float[Array, "t a t i"]
    g_r: Float[Array, "t a t a"]


class LinearPass(eqx.Module):
    """Where the pass through the nodes stands.

    Attributes:
        layers: from the input on.
        push: sum_n x_ni (-dL/df_na), which drives the weights.
        outputs: at the basis inputs.

    Example:
        >>> js.dmft.start(2, 10, 3, 1, float).outputs.shape
        (10, 3, 1)
    """

    layers: tuple[_Layer, ...]
    push: Float[Array, "t i a"]
    outputs: Float[Array, "t i a"]


Push = Callable[[Float[Array, "i a"]], Float[Array, "i a"]]


def start(hidden: int, nodes: int, inputs: int, outputs: int, dtype: Any) -> LinearPass:
    """Before the first node.

    Arguments:
        hidden: layers.
        nodes, inputs, outputs: sizes of the arrays; inputs are those of a `Basis`.
        dtype: of all arrays.

    Example:
        >>> len(js.dmft.start(2, 10, 3, 1, float).layers)
        2
    """
    zeros = lambda one, two: jnp.zeros((nodes, one, nodes, two), dtype)
    i, a = inputs, outputs
    layer = _Layer(zeros(i, i), zeros(a, a), zeros(i, i), zeros(i, a), zeros(a, i), zeros(a, a))
    nothing = jnp.zeros((nodes, i, a), dtype)
    return LinearPass((layer,) * hidden, nothing, nothing)


def step(
    form: NormalForm,
    push: Push,
    state: LinearPass,
    weights: Float[Array, " t"],
    k: Int[Array, ""] | int,
    *,
    implicit: bool,
) -> LinearPass:
    """Adds node k.

    Arguments:
        form: hyperparameters.
        push: what drives the weights, given the outputs at the basis inputs.
        state: all nodes before k.
        weights: row k of `Nodes.weights`.
        k: the node.
        implicit: whether the node weighs itself, as in `flow_nodes`.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([1.0, 1.0]), jnp.array([1.0, 1.0]))
        >>> nodes, known = js.dmft.descent_nodes(3, jnp.asarray(0.1)), js.dmft.start(1, 3, 1, 1, float)
        >>> for k in range(3):
        ...     known = js.dmft.step(form, lambda f: 1 - f, known, nodes.weights[k], k, implicit=False)
        >>> print(known.outputs[:, 0, 0].round(3))
        [0.    0.2   0.363]
    """
    if not implicit:
        found = _row(form, state, weights, k)
        return eqx.tree_at(lambda one: one.push, found, _with_row(found.push, push(found.outputs[k]), k))
    # The predictor is explicit: what the node itself weighs is given to the one before.
    before = weights.at[k].set(0.0).at[k - 1].add(weights[k])

    def improved(turn: Int[Array, ""], state: LinearPass) -> LinearPass:
        row = jnp.where(turn == 0, before, weights)
        found = _row(form, state, row, k)
        f, q = found.outputs[k], found.push[k]
        # Newton's method for the push, whose effect on the outputs is the kernel's.
        slope = jax.jacfwd(push)(f).reshape(q.size, q.size)
        kernel = row[k] * basis_kernel(form, found, k).reshape(q.size, q.size)
        change = jnp.linalg.solve(jnp.eye(q.size, dtype=q.dtype) - slope @ kernel, (push(f) - q).ravel())
        return eqx.tree_at(lambda one: one.push, found, _with_row(found.push, q + change.reshape(q.shape), k))

    return jax.lax.fori_loop(0, 1 + CORRECTIONS, improved, state)


def basis_kernel(form: NormalForm, state: LinearPass, k: Int[Array, ""] | int) -> Float[Array, "i a i a"]:
    """The NTK between basis inputs at node k, eta-weighted.

    Example:
        >>> form = js.dmft.NormalForm(jnp.array([0.5, 2.0]), jnp.array([1.0, 3.0]))
        >>> known = js.dmft.start(1, 1, 1, 1, float)
        >>> known = js.dmft.step(form, lambda f: 1 - f, known, jnp.zeros(1), 0, implicit=False)
        >>> print(js.dmft.basis_kernel(form, known, 0)[0, 0, 0, 0])
        3.5
    """
    rate = form.rate
    h = [jnp.eye(state.push.shape[1], dtype=rate.dtype)] + [layer.h[k, :, k] for layer in state.layers]
    g = [layer.g[k, :, k] for layer in state.layers] + [jnp.eye(state.push.shape[2], dtype=rate.dtype)]
    size = state.push[k].shape
    none = jnp.zeros((*size, *size), rate.dtype)
    return sum((r * jnp.einsum("ij,ab->iajb", *pair) for r, *pair in zip(rate, h, g, strict=True)), none)


def _row(form: NormalForm, state: LinearPass, w: Float[Array, " t"], k: Int[Array, ""] | int) -> LinearPass:
    """Row k of all quantities, from the rows that the weights w reach."""
    variance, rate, layers = form.variance, form.rate, list(state.layers)
    driven = w[:, None, None] * state.push  # (s, i, a)
    last = len(layers) - 1
    for l, layer in enumerate(layers):
        if l == 0:
            c = rate[0] * jnp.moveaxis(driven, 1, 0)
        else:
            below = layers[l - 1]
            c = variance[l] * below.h_r[k] + rate[l] * jnp.einsum("isj,sja->isa", below.h[k], driven)
        h_u = _with_row(layer.h_u, _apply(c, layer.g_u).at[:, k].add(jnp.eye(c.shape[0], dtype=c.dtype)), k)
        h_r = _with_row(layer.h_r, _apply(c, layer.g_r), k)
        layers[l] = layer._replace(h_u=h_u, h_r=h_r)
        sources = _Sources(variance, layers, l)
        row = sources.below(h_u[k], h_u) + sources.above(h_r[k], h_r)
        layers[l] = layers[l]._replace(h=_symmetric(layer.h, row, k))
    for l in reversed(range(len(layers))):
        layer = layers[l]
        if l == last:
            d = rate[-1] * jnp.moveaxis(driven, 2, 0)
        else:
            above = layers[l + 1]
            d = variance[l + 1] * above.g_u[k] + rate[l + 1] * jnp.einsum("asb,sjb->asj", above.g[k], driven)
        g_u = _with_row(layer.g_u, _apply(d, layer.h_u), k)
        g_r = _with_row(layer.g_r, _apply(d, layer.h_r).at[:, k].add(jnp.eye(d.shape[0], dtype=d.dtype)), k)
        layers[l] = layer._replace(g_u=g_u, g_r=g_r)
        sources = _Sources(variance, layers, l)
        row = sources.below(g_u[k], g_u) + sources.above(g_r[k], g_r)
        layers[l] = layers[l]._replace(g=_symmetric(layer.g, row, k))
    top, sources = layers[-1], _Sources(variance, layers, last)
    f = sources.below(top.h_u[k], top.g_u[k][None])[:, 0] + sources.above(top.h_r[k], top.g_r[k][None])[:, 0]
    return LinearPass(tuple(layers), state.push, state.outputs.at[k].set(f))


class _Sources(NamedTuple):
    """The Gaussian sources of one layer: u from below, r from above."""

    variance: Float[Array, " layers"]
    layers: list[_Layer]
    l: int

    def below(self, one: Float[Array, "x t i"], two: Float[Array, "s y t i"]) -> Float[Array, "x s y"]:
        """The covariance of what responds to u."""
        if self.l == 0:  # weights on the inputs: the same at all times, and apart for each basis input
            return self.variance[0] * jnp.einsum("xi,syi->xsy", one.sum(1), two.sum(2))
        return _between(self.variance[self.l] * one, self.layers[self.l - 1].h, two)

    def above(self, one: Float[Array, "x t a"], two: Float[Array, "s y t a"]) -> Float[Array, "x s y"]:
        """The covariance of what responds to r."""
        if self.l == len(self.layers) - 1:
            return self.variance[-1] * jnp.einsum("xa,sya->xsy", one.sum(1), two.sum(2))
        return _between(self.variance[self.l + 1] * one, self.layers[self.l + 1].g, two)


def _apply(one: Float[Array, "x s y"], two: Float[Array, "s y t z"]) -> Float[Array, "x t z"]:
    size = two.shape[0] * two.shape[1]
    return (one.reshape(-1, size) @ two.reshape(size, -1)).reshape(one.shape[0], *two.shape[2:])


def _between(one: Float[Array, "x t z"], middle: Float[Array, "t z t z"], two: Float[Array, "s y t z"]) -> Array:
    size = middle.shape[0] * middle.shape[1]
    left = one.reshape(-1, size) @ middle.reshape(size, size)
    return (left @ two.reshape(-1, size).T).reshape(one.shape[0], *two.shape[:2])


def _symmetric(kernel: Float[Array, "t x t x"], row: Float[Array, "x s x"], k: Int[Array, ""] | int) -> Array:
    """A kernel with row k and, its mirror image, column k; later entries of the row are not known yet."""
    known = jnp.where(jnp.arange(kernel.shape[0])[None, :, None] <= k, row, 0)
    return jax.lax.dynamic_update_index_in_dim(_with_row(kernel, known, k), jnp.moveaxis(known, 0, 2), k, 2)


def _with_row(array: Float[Array, "t ..."], row: Float[Array, "..."], k: Int[Array, ""] | int) -> Array:
    # As a slice: a scatter, which indexed updates become, copies the whole array.
    return jax.lax.dynamic_update_index_in_dim(array, row, k, 0)
