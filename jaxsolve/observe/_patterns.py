"""The change of a network's activation patterns since the start."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, UInt

from .._checks import describe
from .._core import NotApplicable, Problem, Quantity, View
from .._numerics import samples_in
from ._layers import layers_of, TappedProgram, values
from ._observable import Observable
from ._units import kinked_units, KinkedUnits


def _units(problem: Problem) -> tuple[TappedProgram, list[KinkedUnits]]:
    program = layers_of(problem)
    units = kinked_units(program, problem)
    if not units:
        hidden = f", which was not searched inside {', '.join(program.hidden)}" if program.hidden else ""
        raise NotApplicable(
            "activation patterns need a network with relu or another piecewise linear activation, such as "
            f"nets.MLP(..., activation='relu'); none was found in {describe(problem.net)}{hidden}"
        )
    return program, units


def _require_kinks(problem: Problem) -> None:
    _units(problem)


class Patterns(NamedTuple):
    """The activation patterns of a network.

    Attributes:
        of_units: for every unit and sample, samples first, a number that encodes the side of each kink it is on.
        known: False if the network has diverged.
    """

    of_units: list[UInt[Array, "n ..."]]
    known: Bool[Array, ""]


def patterns(problem: Problem, params: PyTree, program: TappedProgram, units: list[KinkedUnits]) -> Patterns:
    """The activation patterns on the training set at these parameters."""
    slots = {slot for one in units for slot in one.inputs}
    held = values(program, params, problem.x, slots)
    # NaN > 0 is false, so all units of a diverged network would seem to be off.
    lost = [jnp.any(jnp.isnan(held[slot])) for slot in slots]
    return Patterns([one.pattern(held) for one in units], ~jnp.any(jnp.stack(lost)))


def _hamming(view: View) -> Float[Array, ""]:
    problem, found = view.problem, _units(view.problem)
    now, start = (patterns(problem, params, *found) for params in (view.params, problem.params))
    changed = jnp.zeros((), problem.dtype)
    for one, other in zip(now.of_units, start.of_units, strict=True):
        # Integers are exact within a sample; the sum over samples is in floats, which do not overflow.
        changed += jnp.sum(jnp.sum(one != other, axis=range(1, one.ndim)).astype(changed.dtype))
    return jnp.where(now.known, changed / samples_in(problem.x), jnp.nan)


def hamming_distance() -> Observable:
    """The mean number of hidden units per training sample that have switched on or off since the start.

    The Hamming distance of activation patterns: the mean over samples of the number of units in all hidden layers whose
    preactivation has changed sign (Kunin et al., figure 1).

    Works for any network: units are the entries that its program compares, as in relu, leaky relu, `jnp.abs` and hard
    tanh, at every channel and pixel of a convolution. A unit with several kinks counts once. Smooth activations,
    softplus and elu included, have no kinks, and the choice of the largest pixel in max pooling does not count.

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
        NotApplicable: when used, if no such units are found in the network.
        ValueError: when used, if no products with parameters are found in it.

    Reference:
        @inproceedings{kunin2024get, booktitle={NeurIPS}, year={2024}, note={arXiv 2406.06158}, title={Get rich quick},
          author={Kunin and Raventos and Domine and Chen and Klindt and Saxe and Ganguli}}
    """
    return Observable("hamming_distance", _hamming, Quantity.PARAMS, require=_require_kinks)
