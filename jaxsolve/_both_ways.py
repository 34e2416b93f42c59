"""Functions with a backward rule of their own (`jax.custom_vjp`), of which JAX knows no derivative in forward mode."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal


_RULES = ("custom_vjp_call", "custom_vjp_call_jaxpr")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")


def shape_and_rule(f: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What f returns, in shapes, and whether it has a backward rule of its own somewhere."""
    closed, shapes, static = eqx.filter_make_jaxpr(f)(*arguments)
    return eqx.combine(shapes, static), _has_rule(closed.jaxpr)


def both_ways(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f with every backward rule of its own in forward mode as well: what pulls back is transposed.

    A rule that is not linear in what it pulls back, such as one that clips gradients, stays without.
    """

    def whole(x: Any) -> Any:
        closed = jax.make_jaxpr(f)(x)
        (found,) = _evaluate(closed, [x])
        return found

    return whole


def rebound(eqn: Any) -> Callable[..., Sequence[Any]]:
    """What an equation does with its inputs."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair in older versions of JAX

    def call(*values: Any) -> Sequence[Any]:
        found = eqn.primitive.bind(*subfuns, *values, **params)
        return found if eqn.primitive.multiple_results else [found]

    return call


def _inside(eqn: Any) -> Iterator[ClosedJaxpr]:
    """The programs that an equation runs."""
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(part, "eqns"):
                yield part if hasattr(part, "jaxpr") else ClosedJaxpr(part, ())


def _has_rule(jaxpr: Any) -> bool:
    return any(eqn.primitive.name in _RULES or any(_has_rule(p.jaxpr) for p in _inside(eqn)) for eqn in jaxpr.eqns)


def _evaluate(closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *inputs), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else known[atom]
    for eqn in jaxpr.eqns:
        known |= dict(zip(eqn.outvars, _apply(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in _RULES:
        return _with_forward_rule(rebound(eqn), inputs)(*inputs)
    programs = list(_inside(eqn))
    if any(_has_rule(program.jaxpr) for program in programs):
        if name in _CALLS:
            return _evaluate(programs[0], inputs)
        if name == "cond":
            branch = lambda program: lambda *given: _evaluate(program, given)
            return jax.lax.switch(inputs[0], [branch(program) for program in programs], *inputs[1:])
        if name == "scan":
            first, rows = params["num_consts"], params["num_consts"] + params["num_carry"]

            def body(carry: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                found = _evaluate(params["jaxpr"], [*inputs[:first], *carry, *row])
                return found[: rows - first], found[rows - first :]

            options = {key: params[key] for key in ("length", "reverse", "unroll")}
            carry, stacked = jax.lax.scan(body, inputs[first:rows], inputs[rows:], **options)
            return [*carry, *stacked]
    return rebound(eqn)(*inputs)


def _with_forward_rule(call: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The call, with a derivative in forward mode if what it pulls back can be transposed."""
    moving = [i for i, value in enumerate(inputs) if jnp.issubdtype(jnp.result_type(value), jnp.inexact)]

    def forward(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        def of_moving(*values: Any) -> list[Any]:
            given = dict(zip(moving, values, strict=True))
            return list(call(*(given.get(i, value) for i, value in enumerate(primals))))

        found, pull = jax.vjp(of_moving, *(primals[i] for i in moving))
        (change,) = jax.linear_transpose(pull, found)(tuple(tangents[i] for i in moving))
        return found, change

    try:
        jax.eval_shape(forward, inputs, inputs)
    except Exception:  # of many kinds; in forward mode JAX then says that there is no rule
        return call
    both = jax.custom_jvp(lambda *given: list(call(*given)))
    both.defjvp(forward)
    return both
