"""What a network is like inside, in one compiled program: how its layers meet, and which of its units are on."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._core import Problem
from ._layer_pairs import layer_pairs
from ._layers import layers_of
from ._patterns import Patterns, patterns
from ._units import kinked_units
from ._weights import alignments


class Insides(NamedTuple):
    """The inside of a network.

    Attributes:
        pairs: the names of layers of which one reads what the other writes.
        alignment: their zeta, as `layer_alignment` has it.
        patterns: of units with kinks; None if there are none.
    """

    pairs: tuple[str, ...]
    alignment: Float[Array, " pairs"]
    patterns: Patterns | None


@eqx.filter_jit
def insides(problem: Problem, params: PyTree) -> Insides:
    """The inside of a network at these parameters; nothing of one without layers."""
    try:
        program = layers_of(problem)
    except ValueError:
        return Insides((), jnp.zeros(0), None)
    pairs, units = layer_pairs(program), kinked_units(program, problem)
    found = jnp.stack(alignments(problem, params, program, pairs)) if pairs else jnp.zeros(0)
    names = tuple(pair.name for pair in pairs)
    return Insides(names, found, patterns(problem, params, program, units) if units else None)
