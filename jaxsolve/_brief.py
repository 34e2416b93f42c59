"""Programs that run for a moment, and are compiled in less time for it."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jaxlib.version
from jax.core import Tracer
from jaxtyping import Array


def traced(tree: Any, ts: Array) -> bool:
    """Whether something is traced, or operations are: inside a trace even one on known times is."""
    return any(isinstance(leaf, Tracer) for leaf in (*jax.tree.leaves((tree, ts)), jax.lax.neg(ts)))


@functools.cache
def brief_jit(function: Callable[..., Any], *, optimise: bool = True) -> Callable[..., Any]:
    """Compiles for one call or a few. The program must stand alone, not within another one: see `traced`.

    XLA's older code for fused loops compiles in 0.6 of the time; jaxlib 0.11 has none. Without optimising it is a
    third, and the program as fast where it is products of matrices.
    """
    options: dict[str, Any] = {} if optimise else {"xla_backend_optimization_level": 0}
    if jaxlib.version.__version_info__ < (0, 11):
        options |= {"xla_cpu_parallel_codegen_split_count": "1", "xla_cpu_use_fusion_emitters": False}
    given: dict[str, Any] = {"compiler_options": options} if options and jax.default_backend() == "cpu" else {}
    of_arrays, of_others = jax.jit(function, **given), eqx.filter_jit(function, **given)

    def call(*arguments: Any) -> Any:
        # To tell arrays from the rest, in Python, takes as long as a small program.
        arrays = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arguments))
        return (of_arrays if arrays else of_others)(*arguments)

    return call
