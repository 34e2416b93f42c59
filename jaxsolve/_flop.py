"""What a function costs, before it is compiled."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from ._equations import inside
from ._problem import Problem


def flop(function: Callable[[Problem], Any], problem: Problem) -> float:
    """The floating-point operations that XLA counts in a function of a problem; NaN if it does not say.

    Shapes are enough: the problem may be traced, or hold nothing else.
    """
    sized = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    arrays, static = eqx.partition(problem, sized)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
    program = jax.jit(lambda leaves: function(eqx.combine(leaves, static)))
    try:
        with _on_cpu():
            cost: Any = program.lower(shapes).cost_analysis()
    except Exception:  # no CPU, or a kernel that is written for the accelerator; what is wrong anywhere fails once more
        cost = program.lower(shapes).cost_analysis()
    return float(cost["flops"]) if isinstance(cost, dict) and "flops" in cost else np.nan


def looped(program: ClosedJaxpr) -> int:
    """The numbers that a program computes in loops of its own: all but products of matrices, which a library makes.

    They are what it takes longer for where XLA has not optimised it. Of a loop without a known end, one round counts.
    """
    total = 0
    for equation in program.jaxpr.eqns:
        parts = [looped(part) for part in inside(equation)]
        total += equation.params.get("length", 1) * sum(parts) if parts else _numbers(equation)
    return total


def _numbers(equation: Any) -> int:
    sizes = [getattr(variable.aval, "size", 0) for variable in (*equation.invars, *equation.outvars)]
    name, params = equation.primitive.name, equation.params
    if name == "conv_general_dilated":
        window = equation.invars[1].aval.shape
        return sizes[-1] * math.prod(window) // window[params["dimension_numbers"].rhs_spec[0]]
    if name == "dot_general":
        (summed, _), (batch, _) = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return sizes[-1] * math.prod(shape[axis] for axis in summed) if batch else sizes[-1]
    return max(sizes, default=0)


def _on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Lowers for the CPU: accelerators do not count what they compute."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    return jax.default_device(jax.local_devices(backend="cpu")[0])
