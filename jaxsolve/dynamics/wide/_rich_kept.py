"""What a rich march keeps of a node, and what is known from it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from ..._core import FunctionValues, Problem
from ..._numerics import safe_sqrt
from . import dmft


def outputs_of(problem: Problem, inputs: dmft.Basis, known: dmft.Pass, network: dmft.Network):
    """Of one set of samples, on training and test inputs."""
    f, net = known.seen.outputs, problem.net
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
    """Of a linear network, what all that is saved of a node follows from: as in `Seen`, in the basis.

    Attributes:
        outputs, features, gradients: as there.
        alignment: of two layers; None of more.
    """

    outputs: Float[Array, "i a"]
    features: Float[Array, "layers i i"]
    gradients: Float[Array, "layers i a i a"]
    alignment: Float[Array, ""] | None


def kept_of(problem: Problem, inputs: dmft.Basis, known: dmft.Pass, network: dmft.Network) -> Kept | FunctionValues:
    """What is saved while the march goes on: of samples, whose signals are not kept, the mean over their sets."""
    form, train = dmft.normal_form(problem.net), inputs.train

    if problem.net.activation.linear:
        zeta = None
        if form.hidden == 1:
            outside = (problem.x.shape[1] - train.shape[1]) * jnp.sum(network.spare**2)
            longest = jnp.argmax(jnp.sum(problem.x**2, axis=1))  # in another basis equal ones differ by rounding
            zeta = dmft.two_layer_alignment(network.first.T, network.last, train, outside=outside, longest=longest)
        return Kept(known.seen.outputs, known.seen.features, known.seen.gradients, zeta)

    def values(known: dmft.Pass, network: dmft.Network) -> FunctionValues:
        seen, levels = known.seen, jnp.asarray(dmft.LEVELS, train.dtype)
        spread = [jnp.quantile(h, levels, axis=1).T for h in seen.preactivations]
        kernel = dmft.tangent_kernel(form, seen.features, seen.gradients)
        layers = _layers(seen.features, seen.gradients, spread)
        return FunctionValues(*outputs_of(problem, inputs, known, network), kernel, layers)

    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(values)(known, network))


def values_of(problem: Problem, inputs: dmft.Basis, kept: Kept | FunctionValues) -> FunctionValues:
    """All that is saved of a node."""
    if isinstance(kept, FunctionValues):
        return kept
    form, train = dmft.normal_form(problem.net), inputs.train
    kernel = dmft.tangent_kernel(form, kept.features, kept.gradients)
    features = jnp.einsum("ni,lij,mj->lnm", train, kept.features, train)
    # All neurons together are Gaussian.
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
    """What is known of layers, by the names of observables."""
    layers = {f"feature_kernel_{l}": phi for l, phi in enumerate(features) if l > 0}
    layers |= {f"gradient_kernel_{l}": g for l, g in enumerate(gradients[:-1], 1)}
    return layers | {f"preactivation_quantiles_{l}": one for l, one in enumerate(spread, 1)}
