"""Functions whose scans are written out, for readers that know no loops."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._equations import called, rebound, scan_counts
from ._read import read, Rules


LONGEST = 64  # steps of a scan that are written out: programs grow with them


def unrolled(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, its scans of up to 64 steps written out one step after the other."""

    def call(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), read(closed, jax.tree.leaves(arguments), rules))

    def apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
        if eqn.primitive.name == "scan" and eqn.params["length"] <= LONGEST:
            return _steps(eqn, inputs, rules)
        return rebound(eqn)(*inputs)

    # JAX has a derivative for what calls hold as well: nobody asks for it here.
    rules = Rules[Any](constant=lambda value: value, apply=apply, enters=lambda eqn, _: called(eqn) is not None)
    return call


def _steps(eqn: Any, inputs: list[Any], rules: Rules[Any]) -> list[Any]:
    length, (fixed, carried) = eqn.params["length"], scan_counts(eqn)
    constants, carry, rows = inputs[:fixed], inputs[fixed : fixed + carried], inputs[fixed + carried :]
    found: list[list[Any]] = [[] for _ in eqn.outvars[carried:]]
    order = range(length)
    for index in reversed(order) if eqn.params["reverse"] else order:
        outputs = read(
            eqn.params["jaxpr"],
            [*constants, *carry, *(jax.lax.index_in_dim(row, index, keepdims=False) for row in rows)],
            rules,
        )
        carry = outputs[:carried]
        for values, output in zip(found, outputs[carried:], strict=True):
            values.append(output)
    in_order = [values[::-1] if eqn.params["reverse"] else values for values in found]
    empty = [jnp.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars[carried:]]
    return [*carry, *(jnp.stack(values) if values else none for values, none in zip(in_order, empty, strict=True))]
