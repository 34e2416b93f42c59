"""Networks that are sums of neurons of one kind, each homogeneous in its own weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._checks import describe, require_number
from ._dense import AbstractDense
from ._linear_attention import LinearAttention
from ._network import Fixed


class Neurons(eqx.Module):
    r"""f(x) = sum_i g(theta_i, x): a sum of neurons of one kind, whose weights all train at eta = 1.

    With degree of homogeneity $\kappa$, that is $g(c\,\theta, x) = c^\kappa g(\theta, x)$ for $c > 0$, it is a network
    for `js.AlternatingFlow`.

    Arguments:
        g: maps the weights of one neuron and one sample to outputs of shape (c,); with constants it is called as
            g(theta, constant, x).
        params: the weights of all neurons, a pytree of arrays whose first axis indexes the neurons.
        degree: kappa.
        constants: per-neuron values that do not train, arrays with the same first axis; None if there are none.

    Example:
        A diagonal linear network, f(x) = sum_i u_i v_i x_i:

        >>> weights = {"u": jnp.array([0.1, 0.2]), "v": jnp.array([0.3, 0.4])}
        >>> net = js.nets.Neurons(
        ...     lambda theta, place, x: (theta["u"] * theta["v"] * (place @ x))[None], weights, degree=2,
        ...     constants=jnp.eye(2),
        ... )
        >>> net(jnp.array([1.0, 10.0])).round(2).tolist()
        [0.8...]

    Raises:
        TypeError: g is not callable.
        ValueError: the arrays do not share their first axis, or the degree is not positive.
    """

    g: Callable[..., Array] = eqx.field(static=True)  # a function
    params: PyTree
    constants: Fixed
    degree: float = eqx.field(static=True)  # a property of the function

    def __init__(self, g: Any, params: PyTree, *, degree: float | int, constants: PyTree = None):
        if not callable(g):
            raise TypeError(f"g must be a function of one neuron's weights and one sample, got {describe(g)}")
        leaves = jax.tree.leaves((params, constants))
        if not leaves or any(jnp.ndim(leaf) == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
            raise ValueError(
                "params and constants must be arrays whose first axis is that of the neurons, got "
                f"{describe(params)} and {describe(constants)}"
            )
        function: Any = g
        self.g, self.params, self.constants = function, jax.tree.map(jnp.asarray, params), Fixed(constants)
        self.degree = require_number(degree, "degree")

    def __call__(self, x: Any) -> Array:
        """The output for one sample."""
        return jnp.sum(jax.vmap(self.neuron, in_axes=(0, 0, None))(self.params, self.constants.arrays, x), axis=0)

    def neuron(self, theta: PyTree, constant: PyTree, x: Any) -> Array:
        """The contribution of one neuron to the output."""
        return self.g(theta, x) if constant is None else self.g(theta, constant, x)


class Split(NamedTuple):
    """A network decomposed into neurons.

    Attributes:
        neuron: g(theta, constant, x).
        thetas: the weights of all neurons; the first axis indexes the neurons.
        constants: the per-neuron values that do not train, likewise.
        eta: the rates of one neuron's weights.
        degree: kappa.
        join: maps the weights of all neurons to parameters of the network.
    """

    neuron: Callable[[PyTree, PyTree, Any], Array]
    thetas: PyTree
    constants: PyTree
    eta: PyTree
    degree: float
    join: Callable[[PyTree], PyTree]


def split(net: Any, params: PyTree) -> Split | None:
    """The neurons of a network; None if it is not a sum of homogeneous neurons."""
    if isinstance(net, Neurons):
        eta = jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), net.params)
        join = lambda thetas: eqx.tree_at(lambda params: params.params, params, thetas)
        return Split(net.neuron, net.params, net.constants.arrays, eta, net.degree, join)
    if isinstance(net, LinearAttention) and net.rank is not None:
        return _heads(net, params)
    if not isinstance(net, AbstractDense) or not net.activation.homogeneous:
        return None
    two_layers = len(net.weights) == 2 and not net.biases and net.units is None
    return _hidden(net, params) if two_layers else None


def _hidden(net: AbstractDense, params: PyTree) -> Split:
    first, last = net.scaling.multiplier[0], net.scaling.gamma * net.scaling.multiplier[1]
    neuron = lambda theta, _, x: last * theta[1] * net.activation(first * (theta[0] @ x))
    join = lambda thetas: eqx.tree_at(lambda params: params.weights, params, (thetas[0], thetas[1].T))
    return Split(neuron, (net.weights[0], net.weights[1].T), None, net.rates().weights, 2.0, join)


def _heads(net: LinearAttention, params: PyTree) -> Split:
    outer = net.scaling.gamma * jnp.prod(net.scaling.multiplier)

    def neuron(theta: PyTree, _: None, x: Any) -> Array:
        keys, queries, value = theta
        mean, query = net.context(x)
        return outer * value * jnp.sum((keys @ mean) * (queries @ query))

    by_head = lambda w: w.reshape(net.heads, -1, net.in_size)
    flat = lambda w: w.reshape(-1, net.in_size)
    join = lambda thetas: eqx.tree_at(
        lambda params: params.weights, params, (flat(thetas[0]), flat(thetas[1]), thetas[2].T)
    )
    keys, queries, values = net.weights
    return Split(neuron, (by_head(keys), by_head(queries), values.T), None, net.rates().weights, 3.0, join)
