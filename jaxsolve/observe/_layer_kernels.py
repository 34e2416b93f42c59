"""Kernels and preactivations of hidden layers: of order 1 at any width, with a limit at infinite width."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import nets
from .._checks import describe, require_size
from .._core import Quantity, View
from ..dynamics._internal import dmft
from ..nets._internal import Dense, run
from ._observable import Observable


def _dense(net: object, layer: int) -> nets.AbstractDense:
    if not isinstance(net, nets.AbstractDense):
        raise ValueError(f"kernels per neuron are for dense networks such as nets.MLP, got {describe(net)}")
    if layer >= len(net.weights):
        raise ValueError(f"layer must be one of the hidden ones, 1 to {len(net.weights) - 1}, got {layer}")
    return net


def _before(net: nets.AbstractDense, layer: int) -> int:
    """The number of layers before the matrix that reads a hidden layer."""
    return [index for index, one in enumerate(net.layers) if isinstance(one, Dense)][layer]


def _preactivations(net: nets.AbstractDense, layer: int) -> int:
    """The number of layers before the activation of a hidden layer."""
    # The activation, followed by a mask in padded networks, lies between the preactivations and the matrix.
    return _before(net, layer) - 1 - (net.units is not None)


def _width(net: nets.AbstractDense) -> Array:
    return jnp.asarray(net.widths[-1] if net.units is None else net.units, net.weights[0].dtype)


@dataclasses.dataclass(frozen=True)
class _ReadFeatures:
    # A class, not a closure: instances with equal arguments are equal, so a new observable does not recompile.
    layer: int

    def __call__(self, view: View) -> Float[Array, "n n"]:
        known = view.given(f"feature_kernel_{self.layer}")
        if known is not None:
            return known
        net = _dense(view.net, self.layer)
        at = _before(net, self.layer)
        signals = jax.vmap(lambda x: run(net, net.layers[:at], x))(view.problem.x)
        return signals @ signals.T / _width(net)


@dataclasses.dataclass(frozen=True)
class _ReadGradients:
    layer: int

    def __call__(self, view: View) -> Float[Array, "n a n a"]:
        known = view.given(f"gradient_kernel_{self.layer}")
        if known is not None:
            return known
        net = _dense(view.net, self.layer)
        cut = _preactivations(net, self.layer)
        # f includes gamma, which `run` leaves out.
        above = jax.jacrev(lambda h: net.scaling.gamma * run(net, net.layers[cut:], h))
        below = jax.vmap(lambda x: run(net, net.layers[:cut], x))(view.problem.x)
        gradients = jax.vmap(above)(below)
        return _width(net) * jnp.einsum("nak,mbk->namb", gradients, gradients)


@dataclasses.dataclass(frozen=True)
class _ReadQuantiles:
    layer: int

    def __call__(self, view: View) -> Float[Array, "n levels"]:
        known = view.given(f"preactivation_quantiles_{self.layer}")
        if known is not None:
            return known
        net = _dense(view.net, self.layer)
        cut = _preactivations(net, self.layer)
        h = jax.vmap(lambda x: run(net, net.layers[:cut], x))(view.problem.x)
        shown = jnp.arange(h.shape[1])[None, :] < (h.shape[1] if net.units is None else net.units)
        # NaN marks padding, which nanquantile skips. It would also skip genuine NaN, which is restored below.
        found = jnp.nanquantile(jnp.where(shown, h, jnp.nan), jnp.asarray(dmft.LEVELS, h.dtype), axis=1).T
        lost = jnp.any(jnp.isnan(h) & shown, axis=1, keepdims=True)  # the network has diverged
        return jnp.where(lost, jnp.nan, found)


def preactivation_quantiles(layer: int) -> Observable:
    """Percentiles 1 to 99 of the preactivations h_m over the neurons of a hidden layer, shape (n, 99).

    Arguments and errors: as for `feature_kernel`.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.mean_field(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> watched = js.observe.preactivation_quantiles(1)
        >>> run = js.solve(problem, js.RichLimit(samples=64), [0.0], observe=watched)
        >>> run["preactivation_quantiles_1"].shape
        (1, 2, 99)
    """
    require_size(layer, "layer")
    name = f"preactivation_quantiles_{layer}"
    return Observable(name, _ReadQuantiles(int(layer)), Quantity.LAYER_KERNELS, ("sample", "percent"), "signal")


def feature_kernel(layer: int) -> Observable:
    """Phi_mn = z_m . z_n / N, where z are the activations of a hidden layer of width N, shape (n, n).

    Arguments:
        layer: index of the hidden layer, from 1.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.mean_field(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0, 1.0], observe=js.observe.feature_kernel(1))
        >>> print(run.to_xarray()["feature_kernel_1"].dims)
        ('t', 'sample', 'sample_2')

    Raises:
        TypeError, ValueError: layer is not an integer >= 1; when used, if the network is not dense or lacks the layer.

    Reference:
        Bordelon & Pehlevan, 2022 (arXiv 2205.09653).
    """
    require_size(layer, "layer")
    name = f"feature_kernel_{layer}"
    return Observable(name, _ReadFeatures(int(layer)), Quantity.LAYER_KERNELS, ("sample", "sample_2"), "signal^2")


def gradient_kernel(layer: int) -> Observable:
    """G = N df_a/dh_m . df_b/dh_n, where h are the preactivations of a hidden layer of width N, shape (n, c, n, c).

    Arguments, errors and reference: as for `feature_kernel`.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=8, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.mean_field(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> run = js.solve(problem, js.GradientFlow(), [0.0], observe=js.observe.gradient_kernel(1))
        >>> run["gradient_kernel_1"].shape
        (1, 2, 1, 2, 1)
    """
    require_size(layer, "layer")
    dims = ("sample", "output", "sample_2", "output_2")
    return Observable(f"gradient_kernel_{layer}", _ReadGradients(int(layer)), Quantity.LAYER_KERNELS, dims, "output^2")
