"""Dense networks: the one forward pass, the rates and the conserved quantities that they share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from .._checks import describe, require_size
from ._activations import Activation
from ._init import AbstractInit, Matrices, Shapes, Vectors
from ._network import AbstractNetwork, Conserved
from ._scaling import Scaling, ScalingRule


class AbstractDense(AbstractNetwork):
    """z_1 = x, z_{l+1} = m_l W_l phi(z_l) + b_l with phi(z_1) = x; the output is gamma z_{L+1}."""

    weights: eqx.AbstractVar[Matrices]
    biases: eqx.AbstractVar[Vectors]
    activation: eqx.AbstractVar[Activation]

    @property
    def in_shape(self) -> tuple[int, ...]:
        return (self.weights[0].shape[1],)

    @property
    def out_size(self) -> int:
        return self.weights[-1].shape[0]

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes of the hidden layers."""
        return tuple(w.shape[0] for w in self.weights[:-1])

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        z = x
        for index, w in enumerate(self.weights):
            z = self.scaling.multiplier[index] * (w @ (self.activation(z) if index else z))
            if self.biases:
                z = z + self.biases[index]
        return self.scaling.gamma * z

    def rates(self) -> PyTree:
        # Indexing, not unpacking: iterating over a traced array would unroll it into one slice per layer twice.
        eta = tuple(self.scaling.eta[index] for index in range(len(self.weights)))
        empty = jax.tree.map(lambda _: None, self)
        bias_eta = tuple(self.scaling.bias_eta for _ in self.biases)
        return eqx.tree_at(
            lambda net: (net.weights, net.biases), empty, (eta, bias_eta), is_leaf=lambda leaf: leaf is None
        )

    def conserved(self, params: PyTree, eta: PyTree) -> tuple[Conserved, ...]:
        """One quantity per hidden layer; the multipliers cancel out of it.

        Linear: W_{l+1}^T W_{l+1}/eta_{l+1} - (W_l W_l^T/eta_l + b_l b_l^T/eta_b), a matrix. Homogeneous: its diagonal,
        one number per neuron. Other activations conserve nothing.
        """
        if not self.activation.homogeneous:
            return ()
        outer = (lambda a: a @ a.T) if self.activation.linear else (lambda a: jnp.sum(a**2, axis=1))
        quantities = []
        for index in range(len(self.weights) - 1):
            outgoing = outer(params.weights[index + 1].T) / eta.weights[index + 1]
            incoming = outer(params.weights[index]) / eta.weights[index]
            if self.biases:
                incoming = incoming + outer(params.biases[index][:, None]) / eta.biases[index]
            quantities.append(Conserved(outgoing, incoming))
        return tuple(quantities)


class DenseParts(NamedTuple):
    """The fields of a dense network, ready to be set."""

    weights: Matrices
    biases: Vectors
    scaling: Scaling


def build(
    sizes: Sequence[Any],
    activation: Activation,
    *,
    bias: bool,
    scaling: Scaling | ScalingRule,
    init: AbstractInit,
    key: Key[Array, ""],
    dtype: Any,
) -> DenseParts:
    """Checks the arguments and draws the start of a dense network with layers of these sizes, input first."""
    names = ("in_size", *("width",) * (len(sizes) - 2), "out_size")
    checked = [require_size(size, name) for size, name in zip(sizes, names, strict=True)]
    if not isinstance(bias, bool):
        raise TypeError(f"bias must be True or False, got {describe(bias)}")
    if not isinstance(init, AbstractInit):
        raise TypeError(f"init must be an initialisation such as nets.Gaussian(), got {describe(init)}")
    if not isinstance(scaling, Scaling | ScalingRule):
        raise TypeError(
            "scaling must be a Scaling or one of the rules Scaling.ntk(), mean_field(), standard(), xavier(), "
            f"kaiming(), mup(), lazy(alpha), from_exponents(...); got {describe(scaling)}"
        )
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    fans = tuple(zip(checked[:-1], checked[1:], strict=True))
    made = scaling(fans, activation.gain) if isinstance(scaling, ScalingRule) else scaling
    if len(made) != len(fans):
        raise ValueError(f"this network has {len(fans)} weight matrices, the Scaling is for {len(made)}")
    made = jax.tree.map(lambda leaf: leaf.astype(dtype), made)
    shapes = Shapes(tuple((out, into) for into, out in fans), bias, dtype)
    weights, biases = init(shapes, made, key)
    return DenseParts(weights, biases, made)
