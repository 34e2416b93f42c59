"""The hyperparameters of a dense network that matter in its infinite-width limit."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .... import nets


class NormalForm(eqx.Module):
    """The part of m, sigma, eta, gamma and width N that remains in the limit: variance and rate per weight array.

    With g^l = N df/dh^l, every quantity of one neuron stays of order 1 as N grows if these numbers do:

        variance = (m_0^2 sigma_0^2, m_l^2 N sigma_l^2, (gamma m_L N sigma_L)^2)
        rate     = (m_0^2 eta_0 / N, m_l^2 eta_l,       gamma^2 m_L^2 N eta_L)

    This is the form of Bordelon & Pehlevan (2022) at richness 1; the abc symmetry maps it to any other richness.

    Attributes:
        variance: variances of the sources of preactivations, layer by layer, and of gradients at the last one.
        rate: rates of the updates.
    """

    variance: Float[Array, " layers"]
    rate: Float[Array, " layers"]

    @property
    def hidden(self) -> int:
        """The number of hidden layers."""
        return self.rate.shape[0] - 1

    @property
    def richness(self) -> Float[Array, ""]:
        """1 / (gamma m_L N sigma_L), gamma_0 in Bordelon & Pehlevan: 0 is lazy; infinite for a read-out of 0."""
        return self.variance[-1] ** -0.5


def normal_form(net: nets.AbstractDense) -> NormalForm:
    """The normal form of a dense network, from its hyperparameters and its width, not its weights."""
    scaling = net.scaling
    width = scaling.sigma.dtype.type(net.widths[-1]) if net.units is None else net.units.astype(scaling.sigma.dtype)
    layers = len(net.weights)
    squared = scaling.multiplier**2
    last, first = jnp.arange(layers) == layers - 1, jnp.arange(layers) == 0
    size = jnp.where(last, (scaling.gamma * width) ** 2, jnp.where(first, 1.0, width))
    speed = jnp.where(last, scaling.gamma**2 * width, jnp.where(first, 1 / width, 1.0))
    return NormalForm(squared * size * scaling.sigma**2, squared * speed * scaling.eta)


def initial_kernel(form: NormalForm) -> Float[Array, ""]:
    """The initial NTK of a linear network, per inner product of inputs, for equal outputs."""
    # Sizes of signals, propagated upward, and of gradients, propagated downward: each layer adds rate h g.
    h = jnp.concatenate([jnp.ones_like(form.variance[:1]), jnp.cumprod(form.variance[:-1])])
    g = jnp.concatenate([jnp.cumprod(form.variance[:0:-1])[::-1], jnp.ones_like(form.variance[:1])])
    return jnp.sum(form.rate * h * g)
