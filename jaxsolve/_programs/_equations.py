"""The equations of programs that JAX traces, across versions of JAX."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]


CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")  # only run a program
OWN_BACKWARD = ("custom_vjp_call", "custom_vjp_call_jaxpr")
OWN_RULES = ("custom_jvp_call", *OWN_BACKWARD)  # run a program with a custom derivative rule


def rebound(eqn: Any) -> Callable[..., Sequence[Any]]:
    """The function that an equation applies to its inputs."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    subfuns, params = bound if isinstance(bound, tuple) else ((), bound)  # a pair in older versions of JAX

    def call(*values: Any) -> Sequence[Any]:
        found = eqn.primitive.bind(*subfuns, *values, **params)
        return found if eqn.primitive.multiple_results else [found]

    return call


def inside(eqn: Any) -> Iterator[ClosedJaxpr]:
    """The programs that an equation holds."""
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(part, "eqns"):
                yield part if hasattr(part, "jaxpr") else ClosedJaxpr(part, ())


def called(eqn: Any, names: Sequence[str] = (*CALLS, *OWN_RULES)) -> ClosedJaxpr | None:
    """The program that an equation of one of these names runs once, on all its inputs; None for others."""
    program = next(inside(eqn), None) if eqn.primitive.name in names else None
    return program if program is not None and len(program.jaxpr.invars) == len(eqn.invars) else None


def equations(program: ClosedJaxpr) -> Iterator[Any]:
    """Every equation of a program, each followed by the equations of the programs that it holds."""
    for eqn in program.jaxpr.eqns:
        yield eqn
        for part in inside(eqn):
            yield from equations(part)


def scan_counts(eqn: Any) -> tuple[int, int]:
    """The numbers of constant and of carried inputs of a scan; the other inputs are scanned over."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    fixed, carried, _ = eqn.params["ft_in"].unpack()  # since JAX 0.12
    return len(fixed), len(carried)
