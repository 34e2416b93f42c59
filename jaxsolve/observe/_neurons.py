"""Observables of the hidden neurons of two-layer piecewise linear networks (Kunin et al., section 5)."""

import jax.numpy as jnp

from .._core import Quantity, View
from ..theory import neurons
from ..theory._internal import neuron_scales
from ._observable import Observable


def _radius(view: View):
    return neuron_scales(view.net).radius


def _direction(view: View):
    return neurons(view.net).direction


def _delta(view: View):
    return neuron_scales(view.net).delta


def _delta_scale(view: View):
    return jnp.max(neuron_scales(view.net).speed)  # the size of its two terms: eta_w a^2 + eta_a |w|^2


def neuron_radius() -> Observable:
    """mu_k = a_k |w_k| of every hidden neuron, shape (h,): see `js.theory.neurons`.

    For several outputs a_k is a vector, and mu_k = |a_k| |w_k| is the norm of beta_k = w_k a_k^T (Kunin et al., Theorem
    4.1).

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.neuron_radius()(view).shape
        (4,)
    """
    return Observable("neuron_radius", _radius, Quantity.PARAMS, ("neuron",), "weight^2")


def neuron_direction() -> Observable:
    """w_k/|w_k| of every hidden neuron, shape (h, in); 0 where w_k = 0.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.neuron_direction()(view).shape
        (4, 2)
    """
    return Observable("neuron_direction", _direction, Quantity.PARAMS, ("neuron", "input"))


def neuron_delta() -> Observable:
    """delta_k = eta_w |a_k|^2 - eta_a |w_k|^2 of every hidden neuron, shape (h,): conserved by gradient flow.

    Holds for any number of outputs (Kunin et al., Theorem 4.1).

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> view = js.View(problem, jnp.zeros(()), problem.params)
        >>> js.observe.neuron_delta()(view).shape
        (4,)
    """
    return Observable("neuron_delta", _delta, Quantity.PARAMS, ("neuron",), "weight^2 eta", scale=_delta_scale)
