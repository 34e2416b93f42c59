"""Equations of the programs that JAX traces, as its versions write them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]


CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")  # do no more than run a program
SAVING = CALLS[-3:]  # those that keep less of it for the way back


def rebound(eqn: Any) -> Callable[..., Sequence[Any]]:
    """What an equation does with its inputs."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair in older versions of JAX

    def call(*values: Any) -> Sequence[Any]:
        found = eqn.primitive.bind(*subfuns, *values, **params)
        return found if eqn.primitive.multiple_results else [found]

    return call


def inside(eqn: Any) -> Iterator[ClosedJaxpr]:
    """The programs that an equation runs."""
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(part, "eqns"):
                yield part if hasattr(part, "jaxpr") else ClosedJaxpr(part, ())


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many inputs of a scan stay as they are, and how many it carries; they come first, before its rows."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    fixed, carried, _ = eqn.params["ft_in"].unpack()  # since JAX 0.12
    return len(fixed), len(carried)
