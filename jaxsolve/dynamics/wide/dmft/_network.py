"""An infinitely wide network, represented by samples of its neurons."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...._numerics import safe_sqrt
from ._matrix import Matrix
from ._normal_form import NormalForm


LEVELS = tuple(percent / 100 for percent in range(1, 100))
"""The levels of the saved quantiles of preactivations."""


class Network(eqx.Module):
    """Neurons that move independently in the mean field of all.

    Attributes:
        first: weights on the inputs.
        hidden: weight matrices between hidden layers, in a tuple: if stacked, a step would copy all of them.
        last: weights of the read-out.
        spare: the weights on an additional input that training does not involve.
    """

    first: Float[Array, "i s"]
    hidden: tuple[Matrix, ...]
    last: Float[Array, "a s"]
    spare: Float[Array, " s"]

    @property
    def directions(self) -> Int[Array, ""]:
        """The number of directions in which its matrices have been probed."""
        return sum((side.count for one in self.hidden for side in (one.features, one.gradients)), jnp.zeros((), int))

    @property
    def missed(self) -> Float[Array, ""]:
        """The largest part of a signal, relative to its size, that found no room for a direction."""
        both = [side.missed for matrix in self.hidden for side in (matrix.features, matrix.gradients)]
        return jnp.max(jnp.array(both, self.spare.dtype), initial=0.0)


class Fields(NamedTuple):
    """The outputs, signals and kernels of a network on the training inputs.

    Attributes:
        outputs: f on the training inputs.
        preactivations: preactivations of the hidden layers.
        last: activations of the last hidden layer.
        first: N df/dh of the first hidden layer.
        below, above: for each hidden matrix, coefficients of the activations below it and of the gradients above it.
        features: <phi phi> of the inputs, followed by each hidden layer.
        gradients: <g g> of each hidden layer, followed by the outputs.
    """

    outputs: Float[Array, "n a"]
    preactivations: Float[Array, "hidden n s"]
    last: Float[Array, "n s"]
    first: Float[Array, "n a s"]
    below: tuple[Float[Array, "n k"], ...]
    above: tuple[Float[Array, "n a k"], ...]
    features: Float[Array, "layers n n"]
    gradients: Float[Array, "layers n a n a"]


def propagate(
    form: NormalForm, activation: Callable[[Array], Array], network: Network, x: Float[Array, "n i"], least: float
) -> tuple[Fields, Network]:
    """The outputs, signals and kernels of a network, and the network with the directions of these signals added.

    Arguments:
        form: the normal form.
        activation: activation of the hidden layers.
        network: the network before.
        x: inputs.
        least: the smallest part of a signal, relative to its size, that gets its own direction.
    """
    size, n, a = network.first.shape[1], x.shape[0], network.last.shape[0]
    slope = lambda h: jax.jvp(activation, (h,), (jnp.ones_like(h),))
    sigma, kernel = safe_sqrt(form.variance)[1:-1], lambda signals: signals @ signals.T / size
    h, hidden, below, above = [x @ network.first], list(network.hidden), [], []
    layers = [slope(h[0])]
    for l, matrix in enumerate(hidden):
        following, coefficients, features = matrix.forward(sigma[l], layers[l][0], least)
        hidden[l] = eqx.tree_at(lambda one: one.features, matrix, features)
        below.append(coefficients)
        h.append(following)
        layers.append(slope(following))
    phi, bend = zip(*layers, strict=True)
    # N df/dh of the last hidden layer; then downward, slope times W^T g.
    g = [bend[-1][:, None] * network.last[None]]
    for l, matrix in reversed([*enumerate(hidden)]):
        z, coefficients, gradients = matrix.backward(sigma[l], g[0].reshape(n * a, size), least)
        hidden[l] = eqx.tree_at(lambda one: one.gradients, matrix, gradients)
        above.insert(0, coefficients.reshape(n, a, -1))
        g.insert(0, bend[l][:, None] * z.reshape(n, a, size))
    gradients = [kernel(one.reshape(n * a, size)).reshape(n, a, n, a) for one in g]
    # Outputs are their own signals: the gradient is 1 for the output itself and 0 for others.
    ends = jnp.broadcast_to(jnp.eye(a, dtype=x.dtype)[None, :, None, :], (n, a, n, a))
    fields = Fields(
        outputs=phi[-1] @ network.last.T / size,
        preactivations=jnp.stack(h),
        last=phi[-1],
        first=g[0],
        below=tuple(below),
        above=tuple(above),
        features=jnp.stack([x @ x.T, *map(kernel, phi)]),
        gradients=jnp.stack([*gradients, ends]),
    )
    return fields, Network(network.first, tuple(hidden), network.last, network.spare)


def tangent_kernel(
    form: NormalForm, features: Float[Array, "layers n n"], gradients: Float[Array, "layers n a n a"]
) -> Float[Array, "n a n a"]:
    """The eta-weighted NTK, from kernels as in `Fields`."""
    return jnp.einsum("l,lnm,lnamb->namb", form.rate, features, gradients)


def pushed(
    form: NormalForm, network: Network, x: Float[Array, "n i"], fields: Fields, push: Float[Array, "n a"]
) -> Network:
    """The network after moving all weights by rate * sum_na push_na N df_na/dW.

    Arguments:
        push: -dL/df, times a step.
    """
    # Axes: n inputs, a outputs, s neurons; j and k directions below and above a matrix.
    first = network.first + form.rate[0] * x.T @ jnp.einsum("na,nas->ns", push, fields.first)
    last = network.last + form.rate[-1] * push.T @ fields.last
    hidden = list(network.hidden)
    for l, (below, above) in enumerate(zip(fields.below, fields.above, strict=True)):
        moved = hidden[l].moved + form.rate[l + 1] * jnp.einsum("nj,na,nak->jk", below, push, above)
        hidden[l] = eqx.tree_at(lambda one: one.moved, hidden[l], moved)
    return Network(first, tuple(hidden), last, network.spare)


def outputs_at(
    form: NormalForm,
    activation: Callable[[Array], Array],
    network: Network,
    x: Float[Array, "m i"],
    outside: Float[Array, " m"],
) -> Float[Array, "m a"]:
    """Outputs at inputs that are not part of training.

    Arguments:
        form, activation, network: as for `propagate`.
        x: inputs in the basis of the training set.
        outside: the length of their components outside the basis.
    """
    phi = activation(x @ network.first + outside[:, None] * network.spare[None])
    for sigma, matrix in zip(safe_sqrt(form.variance)[1:-1], network.hidden, strict=True):
        phi = activation(matrix.glance(sigma, phi))
    return phi @ network.last.T / phi.shape[1]
