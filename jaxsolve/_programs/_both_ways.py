"""Forward-mode derivatives of networks with a custom backward rule (`jax.custom_vjp`), which JAX does not provide."""

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]

from ._equations import called, equations, OWN_BACKWARD, rebound
from ._read import read, Rules


_NO_FORWARD = (
    "this needs derivatives in forward mode, but the network or the loss has a rule for reverse mode only: call "
    "diffrax.diffeqsolve with adjoint=diffrax.DirectAdjoint(), or give a jax.custom_vjp a rule by jax.custom_jvp"
)


def shape_and_rule(net: Callable[[Any], Any], x: Any) -> tuple[Any, bool]:
    """The shapes of a network's output, and whether the network has a custom backward rule anywhere."""
    closed, shapes, static = eqx.filter_make_jaxpr(_call)(net, x)
    return eqx.combine(shapes, static), bool(_own_rules(closed))


@contextlib.contextmanager
def forward_mode(instead: str = "") -> Iterator[None]:
    """Raises a TypeError that says what to do where a function has no forward-mode derivatives."""
    try:
        yield
    except TypeError as error:
        # JAX raises a plain TypeError: only its text tells it from others.
        if "forward-mode autodiff" not in str(error):
            raise
        raise TypeError(f"{_NO_FORWARD}{instead}. JAX: {str(error).splitlines()[0]}") from error


def both_ways(net: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A network with forward-mode derivatives too, with respect to its arrays and its input.

    It is unchanged if one of its rules is not linear in the cotangent, such as one that clips gradients. Such a rule
    has no forward-mode derivative, and JAX raises when one is requested.
    """

    def call(x: Any) -> Any:
        rules = _own_rules(eqx.filter_make_jaxpr(_call)(net, x)[0])
        return (_transposing if rules and all(map(_is_linear, rules)) else _call)(net, x)

    return call


def _call(net: Callable[[Any], Any], x: Any) -> Any:
    return net(x)


_transposing = eqx.filter_custom_jvp(_call)


@_transposing.def_jvp
def _forward(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The derivative along the tangents: the pull-back is linear, and its transpose pushes forward."""
    moving, fixed = eqx.partition(primals, jax.tree.map(lambda t: t is not None, tangents, is_leaf=lambda t: t is None))
    found, pull = jax.vjp(lambda moving: _call(*eqx.combine(moving, fixed)), moving)
    # J v = (J^T)^T v: forward mode is the transpose of the pull-back, if that is linear.
    (change,) = jax.linear_transpose(pull, found)((tangents,))
    return found, change


# --- which rules are linear: JAX also transposes some that are not, with a wrong result


def _own_rules(program: ClosedJaxpr) -> list[Any]:
    return [eqn for eqn in equations(program) if eqn.primitive.name in OWN_BACKWARD]


class _Dependence(enum.Enum):
    """The ways in which a value may depend on the cotangent."""

    ZERO = enum.auto()
    LINEAR = enum.auto()
    OTHER = enum.auto()  # not at all, or not known to be linear


# Operations that are jointly linear in some operands, with those operands; and operations linear in either of two.
_ONE = ("neg", "reshape", "transpose", "broadcast_in_dim", "reduce_sum", "cumsum", "slice", "dynamic_slice", "squeeze")
_ONE += ("expand_dims", "rev", "copy", "convert_element_type", "gather", "div", "real", "imag", "reduce_precision")
_TOGETHER = {
    **dict.fromkeys(_ONE, slice(1)),
    **dict.fromkeys(("add", "add_any", "sub", "concatenate", "pad"), slice(None)),
    "select_n": slice(1, None),
    "dynamic_update_slice": slice(2),
    # Operand and updates, with the indices between them.
    "scatter": slice(0, 3, 2),
    "scatter-add": slice(0, 3, 2),
}
_EITHER = ("mul", "dot_general", "conv_general_dilated")


def _is_linear(rule: Any) -> bool:
    """True if a rule is known to be linear in the cotangent."""
    shaped = lambda atoms: [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]
    given, back, call = shaped(rule.invars), shaped(rule.outvars), rebound(rule)
    inexact = [i for i, value in enumerate(given) if jnp.issubdtype(value.dtype, jnp.inexact)]
    moving = [i for i in inexact if i >= rule.params.get("num_consts", 0)]  # arrays that it closes over come first

    def pulled(given: list[Any], back: list[Any]) -> Any:
        def of_moving(values: list[Any]) -> list[Any]:
            moved = dict(zip(moving, values, strict=True))
            return list(call(*(moved.get(i, value) for i, value in enumerate(given))))

        return jax.vjp(of_moving, [given[i] for i in moving])[1](back)

    program = jax.make_jaxpr(pulled)(given, back)
    # Only calls are entered. Loops and branches are in no table, so their results count as OTHER.
    rules = Rules(_constant, _dependences, enters=lambda eqn, _: called(eqn) is not None)
    found = read(program, [_Dependence.OTHER] * len(given) + [_Dependence.LINEAR] * len(back), rules)
    return _Dependence.OTHER not in found


def _constant(value: Any) -> _Dependence:
    return _Dependence.ZERO if isinstance(value, np.ndarray) and not value.any() else _Dependence.OTHER


def _dependences(eqn: Any, inputs: list[_Dependence]) -> Sequence[_Dependence]:
    return [_dependence(eqn, inputs)] * len(eqn.outvars)


def _dependence(eqn: Any, inputs: list[_Dependence]) -> _Dependence:
    name, linear = eqn.primitive.name, inputs.count(_Dependence.LINEAR)
    if not all(jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in eqn.outvars):
        return _Dependence.OTHER  # a rounded number or a sign
    if name in _EITHER:
        return _Dependence.LINEAR if linear == 1 else _Dependence.OTHER
    together = inputs[_TOGETHER[name]] if name in _TOGETHER else [_Dependence.OTHER]
    if _Dependence.OTHER in together or together.count(_Dependence.LINEAR) < linear:
        return _Dependence.OTHER
    return _Dependence.LINEAR if linear else _Dependence.ZERO
