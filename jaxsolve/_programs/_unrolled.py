"""Functions whose scans are written out, for readers that know no loops."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._equations import called, rebound
from ._read import read, Rules
from ._scans import write_out


LONGEST = 64  # steps of a scan that are written out: programs grow with them


def unrolled(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, its scans of up to 64 steps written out one step after the other."""

    def call(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), read(closed, jax.tree.leaves(arguments), rules))

    def apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        if eqn.primitive.name == "scan" and eqn.params["length"] <= LONGEST:
            return write_out(eqn, inputs, rules, _row, _stack)
        return rebound(eqn)(*inputs)

    # JAX has a derivative for what calls hold as well: nobody asks for it here.
    rules = Rules[Any](constant=lambda value: value, apply=apply, enters=lambda eqn, _: called(eqn) is not None)
    return call


def _row(values: Array, index: int) -> Array:
    return jax.lax.index_in_dim(values, index, keepdims=False)


def _stack(values: list[Array], aval: Any) -> Array:
    return jnp.stack(values) if values else jnp.zeros(aval.shape, aval.dtype)
