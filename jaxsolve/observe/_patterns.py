"""The distance that a network has moved in its activation patterns."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import describe
from .._core import NotApplicable, Problem, Quantity, View
from .._numerics import samples_in
from ._layers import layers_of, TappedProgram, values
from ._observable import Observable
from ._units import kinked_units, KinkedUnits


def _units(problem: Problem) -> tuple[TappedProgram, list[KinkedUnits]]:
    program = layers_of(problem)
    units = kinked_units(program, len(jax.tree.leaves(problem.params)), len(jax.tree.leaves(problem.x)))
    if not units:
        hidden = f", and {', '.join(program.hidden)} is not looked into" if program.hidden else ""
        raise NotApplicable(
            "activation patterns are those of networks with a relu or another piecewise linear activation, such as "
            f"nets.MLP(..., activation='relu'); none was found in {describe(problem.net)}{hidden}"
        )
    return program, units


def _require_kinks(problem: Problem) -> None:
    _units(problem)


def _hamming(view: View) -> Float[Array, ""]:
    problem = view.problem
    program, units = _units(problem)
    slots = {slot for one in units for slot in one.inputs}
    now, start = (values(program, params, problem.x, slots) for params in (view.params, problem.params))
    changed, dtype = jnp.zeros((), problem.dtype), problem.dtype
    for one in units:
        sides = zip(one.patterns(now), one.patterns(start), strict=True)
        turned = jnp.any(jnp.stack([after != before for after, before in sides]), axis=0)
        # Of one sample in integers, for they are exact, and of all in floats, for they do not overflow.
        changed += jnp.sum(jnp.sum(turned, axis=range(1, turned.ndim)).astype(dtype))
    # NaN > 0 is false: a network that has diverged would seem to have its units switched off.
    unknown = jnp.any(jnp.stack([jnp.any(jnp.isnan(now[slot])) for slot in slots]))
    return jnp.where(unknown, jnp.nan, changed / samples_in(problem.x))


def hamming_distance() -> Observable:
    """The number of hidden units that a training sample finds switched the other way than at the start, on average.

    The Hamming distance of activation patterns: the mean over samples of the number of units, of all hidden layers,
    whose preactivation has changed its sign (Kunin et al., figure 1).

    Of any network: units are the entries that its program compares, as relu, leaky relu, `jnp.abs` and hard tanh do, at
    every channel and pixel of a convolution. A unit with several kinks counts once. Smooth activations have none,
    softplus and elu included; nor does the choice of a largest pixel, as in max pooling, count.

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
        NotApplicable: when used, no such units are found in the network.
        ValueError: when used, if no products with parameters are found in it.

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}
    """
    return Observable("hamming_distance", _hamming, Quantity.PARAMS, require=_require_kinks)
