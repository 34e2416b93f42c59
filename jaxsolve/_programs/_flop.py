"""The cost of a function, before it is compiled."""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._checks import attempt


def flop(function: Callable[[Any], Any], problem: PyTree) -> float:
    """The floating-point operations that XLA counts in a function of a problem; NaN if it does not say.

    Shapes are enough: the problem may be traced, or hold shapes only.
    """
    sized = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    arrays, static = eqx.partition(problem, sized)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arrays)
    program = jax.jit(lambda leaves: function(eqx.combine(leaves, static)))
    counted = lambda: program.lower(shapes).cost_analysis()

    def on_cpu() -> Any:
        with _on_cpu():
            return counted()

    cost, error = attempt(on_cpu)
    if error is not None:  # no CPU, or a kernel written for the accelerator; any other error is raised again here
        cost = counted()
    return float(cost["flops"]) if isinstance(cost, dict) and "flops" in cost else np.nan


def _on_cpu() -> contextlib.AbstractContextManager[Any]:
    """Lowers for the CPU, since accelerators do not count operations."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    return jax.default_device(jax.local_devices(backend="cpu")[0])
