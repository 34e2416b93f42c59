"""The layers of any network: the products of data with parameters in its program."""

import jax

from .._core import Problem
from ..nets._internal import FREEZE
from ._taps import Product as Product, read_program, TappedProgram, values as values


def layers_of(problem: Problem) -> TappedProgram:
    """The network's program on the training set, whose `products` are its layers.

    Raises:
        ValueError: the network has a state, or no product with parameters is found.
    """
    if problem.state is not None:
        raise ValueError(
            f"layers are looked for in networks without state, whose samples do not see each other; {FREEZE}"
        )
    program = read_program(lambda params, x: jax.vmap(problem.network(params))(x), problem.params, problem.x)
    if not program.products:
        inside = f"; its parameters are inside of {', '.join(program.hidden)}" if program.hidden else ""
        raise ValueError(
            f"no product of data with parameters was found in this network{inside}; for what is of layers, give one "
            "with a matrix or a convolution"
        )
    return program


def layer_names(problem: Problem) -> tuple[str, ...]:
    """The names of the layers."""
    return tuple(item.name for item in layers_of(problem).products)
