"""Functions with their scans unrolled, for readers without rules for loops."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._equations import called, rebound
from ._read import read, Rules
from ._scans import write_out


LONGEST = 64  # the longest scan to unroll, in steps: each step enlarges the program


def unrolled(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, with scans of up to 64 steps unrolled."""

    def call(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), read(closed, jax.tree.leaves(arguments), rules))

    def apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        if eqn.primitive.name == "scan" and eqn.params["length"] <= LONGEST:
            return write_out(eqn, inputs, rules, _row, _stack)
        return rebound(eqn)(*inputs)

    # Entering a call drops its custom derivative rule, which is not needed here.
    rules = Rules[Any](constant=lambda value: value, apply=apply, enters=lambda eqn, _: called(eqn) is not None)
    return call


def _row(values: Array, index: int) -> Array:
    return jax.lax.index_in_dim(values, index, keepdims=False)


def _stack(values: list[Array], aval: Any) -> Array:
    return jnp.stack(values) if values else jnp.zeros(aval.shape, aval.dtype)
