"""How far a piecewise linear network has moved: in its activation patterns, and in its parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .. import nets
from .._checks import describe
from .._dynamics import NotApplicable, Quantity, View
from .._problem import Problem
from .._safe import safe_sqrt
from ._observable import Observable


def _require_kinks(problem: Problem) -> None:
    net = problem.net
    if not isinstance(net, nets.AbstractDense) or not net.activation.kinked:
        raise NotApplicable(
            "activation patterns are those of dense networks with a relu or a leaky relu, such as "
            f"nets.MLP(..., 'relu'); got {describe(net)}"
        )


def _pattern(net: nets.AbstractDense, x: Array) -> Bool[Array, " units"]:
    """Which hidden units one sample switches on, layer after layer."""
    signs, z = [], x
    for layer in net.layers:
        if isinstance(layer, nets.Apply):
            signs.append(z > 0)
        z = nets.run(net, (layer,), z)
    return jnp.concatenate(signs)


def _hamming(view: View):
    problem = view.problem
    _require_kinks(problem)
    now, start = (jax.vmap(lambda x, net=net: _pattern(net, x))(problem.x) for net in (view.net, problem.net))
    return jnp.mean(jnp.sum(now != start, axis=1).astype(problem.x.dtype))


def _moved(view: View):
    pairs = zip(jax.tree.leaves(view.params), jax.tree.leaves(view.problem.params), strict=True)
    # The norm has no derivative at 0, where every run starts.
    return safe_sqrt(sum((jnp.sum((now - start) ** 2) for now, start in pairs), jnp.zeros(())))


def hamming_distance() -> Observable:
    """How many hidden units a training sample finds switched the other way than at the start, on average.

    The Hamming distance of activation patterns: the mean over samples of the number of units, of all hidden layers,
    whose preactivation has changed its sign (Kunin et al., figure 1). For relu and leaky relu.

    Example:
        >>> net = js.nets.MLP(2, 4, 1, 1, "relu", scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> turned = jax.tree.map(lambda w: -w, problem.params)
        >>> print(js.observe.hamming_distance()(js.View(problem, jnp.zeros(()), turned)))  # all of them
        4.0

    Raises:
        NotApplicable: when used, the network is not dense, or its activation has no kink.

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}
    """
    return Observable("hamming_distance", _hamming, Quantity.PARAMS, require=_require_kinks)


def parameter_distance() -> Observable:
    """|theta - theta_0|, the Euclidean distance of all trainable parameters from the start. Any network.

    Example:
        >>> net = js.nets.TwoLayerLinear(2, 4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.eye(2), jnp.array([[1.0], [-1.0]]))
        >>> moved = jax.tree.map(lambda w: w + 1.0, problem.params)  # twelve weights
        >>> print(f"{js.observe.parameter_distance()(js.View(problem, jnp.zeros(()), moved)):.3f}")
        3.464
    """
    return Observable("parameter_distance", _moved, Quantity.PARAMS, unit="weight")
