"""The inside of a network, in one compiled program: the weights of paired layers, and the activation patterns."""

from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, PyTree

from .._core import Problem
from ._layer_pairs import layer_pairs, LayerPair
from ._layers import layers_of, values
from ._patterns import Patterns, patterns
from ._units import kinked_units


MOST_PAIRS = 64  # the pairs, and so the products, grow as the square of the depth of a residual stream


class Insides(NamedTuple):
    """The inside of a network.

    Attributes:
        pairs: pairs of layers in which one reads the output of the other; empty if there are more than `MOST_PAIRS`.
        weights: the weights of the pairs, by slot.
        patterns: the activation patterns of units with kinks; None if there are no such units.
    """

    pairs: list[LayerPair]
    weights: dict[int, Array]
    patterns: Patterns | None


@eqx.filter_jit
def insides(problem: Problem, params: PyTree) -> Insides:
    """The inside of a network at these parameters; empty for a network without layers."""
    try:
        program = layers_of(problem)
    except ValueError:
        return Insides([], {}, None)
    pairs, units = layer_pairs(program), kinked_units(program, problem)
    pairs = pairs if len(pairs) <= MOST_PAIRS else []
    slots = {slot for pair in pairs for slot in (pair.below, pair.above)}
    held = values(program, params, problem.x, slots)
    found = patterns(problem, params, program, units) if units else None
    return Insides(pairs, {slot: held[slot] for slot in slots}, found)
