"""Functions whose convolutions are written with channels last, as loops on CPUs need them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

from ._equations import called, equations, rebound
from ._read import read, Rules


_CONVOLUTION = "conv_general_dilated"
_ENTERED = ("jit", "pjit", "closed_call", "core_call")  # calls that hold no rule of their own


def channels_last(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, to be called in a loop: its convolutions have channels last on a CPU.

    XLA has fast code for this layout alone. It brings all convolutions into it, but not those inside a loop: there the
    gradient of a small network with two convolutions took 20 times as long. Apply it to derivatives, not before them,
    as the derivative of a convolution has another layout.
    """

    def call(*arguments: Any) -> Any:
        if jax.default_backend() != "cpu":
            return f(*arguments)
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        leaves = jax.tree.leaves(arguments)
        convolves = any(eqn.primitive.name == _CONVOLUTION for eqn in equations(closed))
        found = read(closed, leaves, _RULES) if convolves else jaxpr_as_fun(closed)(*leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return call


def _apply(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    return [_convolved(eqn, *inputs)] if eqn.primitive.name == _CONVOLUTION else rebound(eqn)(*inputs)


_RULES = Rules[Any](constant=lambda value: value, apply=_apply, enters=lambda eqn, _: called(eqn, _ENTERED) is not None)


def _convolved(eqn: Any, images: Array | np.ndarray, kernel: Array | np.ndarray) -> Array:
    """The convolution of transposed arrays, transposed back."""
    layout = eqn.params["dimension_numbers"]
    # Each specification names the axes of batch or outputs, of channels, and of space, in this order.
    batch, channels, *space = layout.lhs_spec
    outputs, inputs, *window = layout.rhs_spec
    last = (0, images.ndim - 1, *range(1, images.ndim - 1))
    canonical = jax.lax.ConvDimensionNumbers(last, (images.ndim - 1, images.ndim - 2, *range(images.ndim - 2)), last)
    found = eqn.primitive.bind(
        images.transpose(batch, *space, channels),
        kernel.transpose(*window, inputs, outputs),
        **{**eqn.params, "dimension_numbers": canonical},
    )
    batch, channels, *space = layout.out_spec
    return found.transpose(np.argsort((batch, *space, channels)))
