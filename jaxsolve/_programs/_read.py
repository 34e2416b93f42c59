"""The reader of programs: abstract interpretation through calls, branches and loops."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from ._equations import called, scan_counts


_LOOPS_AND_BRANCHES = ("cond", "scan", "while")


def runs_a_program(eqn: Any, inputs: Sequence[Any]) -> bool:
    """True for a call, a branch or a loop: these can be entered, whatever the values of their inputs."""
    del inputs
    return eqn.primitive.name in _LOOPS_AND_BRANCHES or called(eqn) is not None


def _not_decided(value: Any, by: Any) -> Any:
    """The value itself, ignoring the number that selected it."""
    del by
    return value


@dataclasses.dataclass(frozen=True)
class Rules[Value]:
    """The rules by which the operations of a program map abstract values of their inputs to those of their outputs.

    Attributes:
        constant: the value of a number or an array that the program holds.
        apply: the values of an operation's outputs, from the operation and the values of its inputs.
        enters: whether to read the program of an operation, given the values of its inputs, instead of calling `apply`.
        join: the value that covers two: the results of two branches, or what a loop carries before and after a step. A
            loop is read until its values no longer change, so a value may grow only finitely often. None for rules that
            enter only calls.
        decided: the value of a result, given also the value of the number that chose its branch or ended its loop.
    """

    constant: Callable[[Any], Value]
    apply: Callable[[Any, list[Value]], Sequence[Value]]
    enters: Callable[[Any, list[Value]], bool] = runs_a_program
    join: Callable[[Value, Value], Value] | None = None
    decided: Callable[[Value, Value], Value] = _not_decided


def read[Value](program: ClosedJaxpr, inputs: Sequence[Value], rules: Rules[Value]) -> list[Value]:
    """The values of a program's outputs, from the values of its inputs."""
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= dict(zip(jaxpr.constvars, map(rules.constant, program.consts), strict=True))

    def of(atom: Any) -> Value:
        if not isinstance(atom, Literal):
            return known[atom]
        aval: Any = atom.aval  # has a dtype, though its declared type does not say so
        return rules.constant(np.asarray(atom.val, aval.dtype))

    for eqn in jaxpr.eqns:
        given = [of(atom) for atom in eqn.invars]
        found = _enter(eqn, given, rules) if rules.enters(eqn, given) else rules.apply(eqn, given)
        known |= dict(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _enter[Value](eqn: Any, inputs: list[Value], rules: Rules[Value]) -> list[Value]:
    match eqn.primitive.name:
        case "cond":
            return _branches(eqn, inputs, rules)
        case "scan":
            return _scan(eqn, inputs, rules)
        case "while":
            return _while(eqn, inputs, rules)
    program = called(eqn)
    assert program is not None  # rules enter nothing else
    return read(program, inputs, rules)


def _branches[Value](eqn: Any, inputs: list[Value], rules: Rules[Value]) -> list[Value]:
    index, given = inputs[0], inputs[1:]
    first, *others = (read(branch, given, rules) for branch in eqn.params["branches"])
    for other in others:
        first = _joined(rules, first, other)
    return [rules.decided(value, index) for value in first]


def _scan[Value](eqn: Any, inputs: list[Value], rules: Rules[Value]) -> list[Value]:
    fixed, carried = scan_counts(eqn)
    constants, carry, rows = inputs[:fixed], inputs[fixed : fixed + carried], inputs[fixed + carried :]
    step = lambda carry: read(eqn.params["jaxpr"], [*constants, *carry, *rows], rules)
    return _settled(step, carry, rules)[1]


def _while[Value](eqn: Any, inputs: list[Value], rules: Rules[Value]) -> list[Value]:
    asked, fixed = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_condition, of_body, carry = inputs[:asked], inputs[asked : asked + fixed], inputs[asked + fixed :]
    step = lambda carry: read(eqn.params["body_jaxpr"], [*of_body, *carry], rules)
    carry, _ = _settled(step, carry, rules)  # it may end before its first step, and return the initial carry
    (goes_on,) = read(eqn.params["cond_jaxpr"], [*of_condition, *carry], rules)
    return [rules.decided(value, goes_on) for value in carry]


def _joined[Value](rules: Rules[Value], one: list[Value], two: list[Value]) -> list[Value]:
    assert rules.join is not None  # rules without it enter neither branches nor loops
    return list(map(rules.join, one, two))


def _settled[Value](
    step: Callable[[list[Value]], list[Value]], carry: list[Value], rules: Rules[Value]
) -> tuple[list[Value], list[Value]]:
    """The values that a loop carries after any number of steps, and the values that a step then returns."""
    # A fixed point, as in abstract interpretation: each round joins in the values after one more step.
    while True:
        found = step(carry)
        wider = _joined(rules, carry, found)  # what a scan stacks comes after what it carries
        if wider == carry:
            return carry, found
        carry = wider


def depends_on_inputs(program: ClosedJaxpr, inputs: Sequence[bool] | None = None) -> list[bool]:
    """For each output, whether it depends on one of these inputs, or on any input if None."""
    given = [True] * len(program.jaxpr.invars) if inputs is None else inputs
    either = lambda one, two: one or two
    rules = Rules[bool](
        constant=lambda value: False,
        apply=lambda eqn, values: [any(values)] * len(eqn.outvars),
        join=either,
        decided=either,
    )
    return read(program, given, rules)
