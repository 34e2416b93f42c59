"""Functions with a backward rule of their own (`jax.custom_vjp`), of which JAX knows no derivative in forward mode."""

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from ._equations import CALLS, inside, rebound, SAVING, scan_counts


_NO_FORWARD = (
    "this needs derivatives in forward mode, which a backward rule of the network's or the loss's own does not have: "
    "call diffrax.diffeqsolve with adjoint=diffrax.DirectAdjoint(), or give a jax.custom_vjp a rule by jax.custom_jvp"
)
_RULES = ("custom_vjp_call", "custom_vjp_call_jaxpr")


def shape_and_rule(f: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    """What f returns, in shapes, and whether it has a backward rule of its own somewhere."""
    closed, shapes, static = eqx.filter_make_jaxpr(f)(*arguments)
    return eqx.combine(shapes, static), _has_rule(closed.jaxpr)


@contextlib.contextmanager
def forward_mode(instead: str = "") -> Iterator[None]:
    """Says of functions without derivatives in forward mode what to do, or to take instead."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" not in str(error):
            raise
        raise TypeError(f"{_NO_FORWARD}{instead}. JAX: {str(error).splitlines()[0]}") from error


def both_ways(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f with its own backward rules in forward mode as well: what pulls back is transposed.

    A rule stays without, and JAX says so in forward mode, if it is not linear in what it pulls back, as one that clips
    gradients, or stands in a `while_loop` or behind another rule for forward mode.
    """

    def whole(x: Any) -> Any:
        closed = jax.make_jaxpr(f)(x)
        if not _has_rule(closed.jaxpr):
            return f(x)
        (found,) = _evaluate(closed, [x])
        return found

    return whole


def _has_rule(jaxpr: Any) -> bool:
    return any(eqn.primitive.name in _RULES or any(_has_rule(p.jaxpr) for p in inside(eqn)) for eqn in jaxpr.eqns)


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
        call = rebound(eqn)
        return (_with_forward_rule(call) if _is_linear(eqn, call) else call)(*inputs)
    programs = list(inside(eqn))
    if any(_has_rule(program.jaxpr) for program in programs):
        if name in SAVING:
            return jax.checkpoint(lambda *given: _evaluate(programs[0], given), policy=params["policy"])(*inputs)
        if name in CALLS:
            return _evaluate(programs[0], inputs)
        if name == "cond" and params.get("branches_platforms") is None:
            branch = lambda program: lambda *given: _evaluate(program, given)
            return jax.lax.switch(inputs[0], [branch(program) for program in programs], *inputs[1:])
        if name == "scan":
            first, carried = scan_counts(eqn)
            rows = first + carried

            def body(carry: Sequence[Any], row: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                found = _evaluate(params["jaxpr"], [*inputs[:first], *carry, *row])
                return found[: rows - first], found[rows - first :]

            options = {key: params[key] for key in ("length", "reverse", "unroll")}
            carry, stacked = jax.lax.scan(body, inputs[first:rows], inputs[rows:], **options)
            return [*carry, *stacked]
    return rebound(eqn)(*inputs)


def _forward(
    call: Callable[..., Sequence[Any]], moving: Sequence[int], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What a call returns, and how that moves with some of its inputs."""
    found, pull = _pulled(call, moving, primals)
    (change,) = jax.linear_transpose(pull, found)(tuple(tangents[i] for i in moving))
    return found, change


def _pulled(call: Callable[..., Sequence[Any]], moving: Sequence[int], primals: Sequence[Any]) -> tuple[list[Any], Any]:
    def of_moving(*values: Any) -> list[Any]:
        given = dict(zip(moving, values, strict=True))
        return list(call(*(given.get(i, value) for i, value in enumerate(primals))))

    return jax.vjp(of_moving, *(primals[i] for i in moving))


def _is_linear(eqn: Any, call: Callable[..., Sequence[Any]]) -> bool:
    """Whether what pulls back is known to be linear, and JAX can transpose it: it transposes some that are not."""
    shaped = lambda atoms: [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]
    given, back = shaped(eqn.invars), shaped(eqn.outvars)
    moving = [i for i, value in enumerate(given) if jnp.issubdtype(value.dtype, jnp.inexact)]
    moving = [i for i in moving if i >= eqn.params.get("num_consts", 0)]
    try:
        jax.eval_shape(lambda given: _forward(call, moving, given, given), given)
        pull = jax.make_jaxpr(lambda given, back: _pulled(call, moving, given)[1](back))(given, back).jaxpr
    except Exception:  # whatever a rule cannot do is left to itself
        return False
    found = _kinds(pull, [_Kind.OTHER] * len(given) + [_Kind.LINEAR] * len(back))
    return all(kind is not _Kind.OTHER for kind in found)


class _Kind(enum.Enum):
    """How a value depends on what is pulled back."""

    ZERO = enum.auto()
    LINEAR = enum.auto()
    OTHER = enum.auto()  # not at all, or not known to be linear


# Operations that are linear in their first operand, in either of two, and in some operands together: which, of these.
_FIRST = {
    *("neg", "reshape", "transpose", "broadcast_in_dim", "reduce_sum", "cumsum", "slice", "dynamic_slice", "squeeze"),
    *("expand_dims", "rev", "copy", "convert_element_type", "gather", "div", "real", "imag", "reduce_precision"),
}
_EITHER = {"mul", "dot_general", "conv_general_dilated"}
_TOGETHER = {
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "pad"), slice(None)),
    "select_n": slice(1, None),
    "dynamic_update_slice": slice(2),
    "scatter": slice(0, 3, 2),
    "scatter-add": slice(0, 3, 2),
}


def _kinds(jaxpr: Any, inputs: Sequence[_Kind]) -> list[_Kind]:
    """How the outputs of a program depend on what is pulled back, where its inputs do so."""
    known = dict.fromkeys(jaxpr.constvars, _Kind.OTHER) | dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> _Kind:
        if isinstance(atom, Literal):
            return _Kind.ZERO if np.all(np.asarray(atom.val) == 0) else _Kind.OTHER
        return known[atom]

    for eqn in jaxpr.eqns:
        kinds = [of(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            found = _kinds(next(inside(eqn)).jaxpr, kinds)
        else:
            found = [_kind(eqn, kinds)] * len(eqn.outvars)
        known |= dict(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _kind(eqn: Any, kinds: list[_Kind]) -> _Kind:
    name, linear = eqn.primitive.name, [i for i, kind in enumerate(kinds) if kind is _Kind.LINEAR]
    if not all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in eqn.outvars):
        return _Kind.OTHER
    if name in _TOGETHER:
        part = kinds[_TOGETHER[name]]
        if _Kind.OTHER in part or part.count(_Kind.LINEAR) < len(linear):
            return _Kind.OTHER
        return _Kind.LINEAR if linear else _Kind.ZERO
    if name in _FIRST and linear in ([], [0]) or name in _EITHER and len(linear) == 1:
        return _Kind.LINEAR if linear else kinds[0]
    return _Kind.OTHER


def _with_forward_rule(call: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    both = jax.custom_jvp(lambda *given: list(call(*given)))

    def forward(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]
        return _forward(call, moving, primals, tangents)

    both.defjvp(forward, symbolic_zeros=True)
    return both
