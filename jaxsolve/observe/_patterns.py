"""The distance that a piecewise linear network has moved in its activation patterns."""

import jax.numpy as jnp

from .. import nets
from .._checks import describe
from .._core import NotApplicable, Problem, Quantity, View
from ._changes import preactivations
from ._observable import Observable


def _require_kinks(problem: Problem) -> None:
    net = problem.net
    if not isinstance(net, nets.AbstractDense) or not net.activation.kinked:
        raise NotApplicable(
            "activation patterns are those of dense networks with a relu or a leaky relu, such as "
            f"nets.MLP(..., activation='relu'); got {describe(net)}"
        )


def _hamming(view: View):
    problem = view.problem
    _require_kinks(problem)
    pairs = list(zip(*(preactivations(net, problem.x) for net in (view.net, problem.net)), strict=True))
    changed = sum(jnp.sum((now > 0) != (start > 0), axis=1) for now, start in pairs)
    # NaN > 0 is false: a network that has diverged would seem to have its units switched off.
    unknown = jnp.any(jnp.stack([jnp.any(jnp.isnan(now)) for now, _ in pairs]))
    return jnp.where(unknown, jnp.nan, jnp.mean(jnp.asarray(changed).astype(problem.dtype)))


def hamming_distance() -> Observable:
    """The number of hidden units that a training sample finds switched the other way than at the start, on average.

    The Hamming distance of activation patterns: the mean over samples of the number of units, of all hidden layers,
    whose preactivation has changed its sign (Kunin et al., figure 1). For relu and leaky relu.

    Example:
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=4, depth=1, activation="relu",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
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
