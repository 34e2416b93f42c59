"""Two layers in the rich limit: a network whose neurons start at quadrature points instead of random draws."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .... import nets
from ...._checks import require_power_of_two
from ....nets._internal import run


# Independently scrambled sets of points, whose differences give the error of the mean.
GROUPS = 8


def sampled(net: nets.AbstractDense, samples: int, seed: int) -> nets.AbstractDense:
    """A network of `samples` neurons that approximates the infinite-width limit of a two-layer network.

    In the limit each neuron moves independently in the mean field of all, from its draw of (w, a). Here the draws are
    scrambled Sobol points (Owen, 1998), each used twice with opposite a, so that f = 0 at the start as in the limit. m
    and eta change with the width to preserve the normal form.

    Arguments:
        net: a network with one hidden layer and without biases.
        samples: number of neurons, a power of two, at least 4 * GROUPS.
        seed: random seed of the scrambling.

    Raises:
        ValueError: the network or the number of samples is not as described.
    """
    if len(net.weights) != 2 or net.biases:
        raise ValueError(f"sampled needs a network of one hidden layer without biases, got {type(net).__name__}")
    require_power_of_two(samples, "samples", least=4 * GROUPS)
    scaling, dtype = net.scaling, net.weights[0].dtype
    inputs, outputs = net.weights[0].shape[1], net.weights[1].shape[0]
    points = _normal_points(inputs + outputs, samples // 2, seed)
    w, a = points[:, :inputs], points[:, inputs:].T
    weights = (
        scaling.sigma[0] * jnp.asarray(np.concatenate([w, w]), dtype),
        scaling.sigma[1] * jnp.asarray(np.concatenate([a, -a], axis=1), dtype),
    )
    # N/S preserves m_L N, eta_0/N and m_L^2 N eta_L of the normal form with S neurons in place of N.
    ratio = (net.widths[0] if net.units is None else net.units) / jnp.asarray(samples, dtype)
    changed = (scaling.multiplier.at[-1].multiply(ratio), scaling.eta / ratio)
    where = lambda one: (one.weights, one.scaling.multiplier, one.scaling.eta, one.units)
    return eqx.tree_at(where, net, (weights, *changed, None), is_leaf=lambda leaf: leaf is None)


def sampling_error(net: nets.AbstractDense, x: Float[Array, "n d"]) -> Float[Array, "n out"]:
    """The standard error of the outputs, from the spread over groups of neurons of a `sampled` network."""
    signals = jax.vmap(lambda one: run(net, net.layers[:2], one))(x)
    slope = net.scaling.gamma * net.scaling.multiplier[-1]
    half = signals.shape[1] // 2
    parts = slope * signals[:, None] * net.weights[1][None]  # (n, out, neurons)
    both = parts[..., :half] + parts[..., half:]  # a neuron and its mirror image
    # Points of one set are contiguous. A group's sum times the number of groups is its estimate of the output.
    groups = both.reshape(*both.shape[:-1], GROUPS, -1).sum(-1) * GROUPS
    return jnp.std(groups, axis=-1, ddof=1) / GROUPS**0.5


def _normal_points(dimension: int, count: int, seed: int) -> np.ndarray:
    from scipy.special import ndtri
    from scipy.stats import qmc

    rng = np.random.default_rng(seed)
    sets = [qmc.Sobol(dimension, rng=rng).random(count // GROUPS) for _ in range(GROUPS)]
    return ndtri(np.concatenate(sets) + 2.0**-31)  # points are multiples of 2^-30, including 0: shift to the middle
