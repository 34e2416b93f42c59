"""The layers of any network: the products of data with parameters in its program."""

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from .._core import Problem
from .._numerics import Inputs
from ._taps import Product as Product, read_program, TappedProgram, values as values


def layers_of(problem: Problem) -> TappedProgram:
    """The network's program on the training set, whose `products` are its layers.

    A network with state is in training mode, with the whole training set as one batch.

    Raises:
        ValueError: no product with parameters is found.
    """

    def outputs(params: PyTree, x: Inputs) -> Array:
        if problem.state is None:
            return jax.vmap(problem.network(params))(x)
        return eqx.tree_at(lambda problem: problem.x, problem, x).outputs(params)

    program = read_program(outputs, problem.params, problem.x)
    if not program.products:
        inside = f"; its parameters are inside of {', '.join(program.hidden)}" if program.hidden else ""
        raise ValueError(
            f"no product of data with parameters was found in this network{inside}; observables of layers need a "
            "network with a matrix or a convolution"
        )
    return program


def layer_names(problem: Problem) -> tuple[str, ...]:
    """The names of the layers."""
    return tuple(item.name for item in layers_of(problem).products)
