"""Programs that run for a moment: called, or compiled, in less time for it."""

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


def split(tree: Any) -> tuple[Any, list[Any]]:
    """What of a tree cannot be traced, hashable, and its arrays: for programs called with them again and again.

    `eqx.filter_jit` makes this anew in every call.
    """
    leaves, structure = jax.tree.flatten(tree)
    fixed = tuple(None if eqx.is_array(leaf) else (leaf,) for leaf in leaves)
    return (structure, fixed), [leaf for leaf in leaves if eqx.is_array(leaf)]


def whole(rest: Any, arrays: list[Any]) -> Any:
    """The tree that was split."""
    (structure, fixed), given = rest, iter(arrays)
    return jax.tree.unflatten(structure, [next(given) if leaf is None else leaf[0] for leaf in fixed])


def raised_in_equinox(error: Exception) -> bool:
    """Whether this is `eqx.error_if`, in XLA's words; called by `eqx.filter_jit`, the program says its own."""
    return "_EquinoxRuntimeError" in str(error)


def brief_options(*, optimise: bool) -> dict[str, Any]:
    """The arguments of `jax.jit` for a program that is compiled for one call or a few, and stands alone.

    XLA's older code for fused loops compiles in 0.6 of the time; jaxlib 0.11 has none. Without optimising it is a
    third, in one part, and the program as fast where it is products of matrices.
    """
    options: dict[str, Any] = {} if optimise else {"xla_backend_optimization_level": 0}
    if jaxlib.version.__version_info__ < (0, 11):
        options |= {"xla_cpu_use_fusion_emitters": False}
        options |= {} if optimise else {"xla_cpu_parallel_codegen_split_count": "1"}
    return {"compiler_options": options} if options and jax.default_backend() == "cpu" else {}


@functools.cache
def brief_jit(function: Callable[..., Any], *, optimise: bool = True) -> Callable[..., Any]:
    """`eqx.filter_jit` for one call or a few, and called in less time where all that is given is arrays.

    The program must stand alone, not within another one: see `traced`.
    """
    options = brief_options(optimise=optimise)
    of_arrays, of_others = jax.jit(function, **options), eqx.filter_jit(function, **options)

    def call(*arguments: Any) -> Any:
        # To tell arrays from the rest, in Python, takes as long as a small program.
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(arguments)):
            return of_others(*arguments)
        try:
            return jax.block_until_ready(of_arrays(*arguments))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if not raised_in_equinox(error):
                raise
        return of_others(*arguments)

    return call
