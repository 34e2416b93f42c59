"""The one reader of programs: follows a value for every variable, through calls, branches and loops."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal  # pyright: ignore[reportPrivateImportUsage]

from ._equations import called, scan_counts


_LOOPS_AND_BRANCHES = ("cond", "scan", "while")


def runs_a_program(eqn: Any, inputs: Sequence[Any]) -> bool:
    """Says of a call, a branch or a loop that it can be entered, whatever the values of its inputs."""
    del inputs
    return eqn.primitive.name in _LOOPS_AND_BRANCHES or called(eqn) is not None


def _not_decided(value: Any, by: Any) -> Any:
    """The value as it is: nothing is said by what chose it."""
    del by
    return value


@dataclasses.dataclass(frozen=True)
class Rules[Value]:
    """A value to follow through a program, by what the operations make of it.

    Attributes:
        constant: the value of a number or an array that the program holds.
        apply: the values of what an operation returns, from the operation and the values of its inputs.
        enters: says, of an operation and the values of its inputs, to read the program that it runs; no `apply` then.
        join: the value of what is one of two: the results of two branches, or what a loop carries before and after a
            step. A loop is read until its values stay the same, so there may be only so many values. None for rules
            that enter calls alone.
        decided: the value of a result, given that of the number which chose its branch or ended its loop.
    """

    constant: Callable[[Any], Value]
    apply: Callable[[Any, list[Value]], Sequence[Value]]
    enters: Callable[[Any, list[Value]], bool] = runs_a_program
    join: Callable[[Value, Value], Value] | None = None
    decided: Callable[[Value, Value], Value] = _not_decided


def read[Value](program: ClosedJaxpr, inputs: Sequence[Value], rules: Rules[Value]) -> list[Value]:
    """The values of a program's outputs, from those of its inputs."""
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= dict(zip(jaxpr.constvars, map(rules.constant, program.consts), strict=True))

    def of(atom: Any) -> Value:
        if not isinstance(atom, Literal):
            return known[atom]
        aval: Any = atom.aval  # that of an array, though its type does not say so
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
    carry, _ = _settled(step, carry, rules)  # it may end before its first step, so that what it carries is returned
    (goes_on,) = read(eqn.params["cond_jaxpr"], [*of_condition, *carry], rules)
    return [rules.decided(value, goes_on) for value in carry]


def _joined[Value](rules: Rules[Value], one: list[Value], two: list[Value]) -> list[Value]:
    assert rules.join is not None  # rules without it enter no branches and loops
    return list(map(rules.join, one, two))


def _settled[Value](
    step: Callable[[list[Value]], list[Value]], carry: list[Value], rules: Rules[Value]
) -> tuple[list[Value], list[Value]]:
    """The values that a loop carries after any number of its steps, and those of what such a step returns."""
    # A fixed point, as in abstract interpretation: each round joins in what one more step may make of the values.
    while True:
        found = step(carry)
        wider = _joined(rules, carry, found)  # what a scan stacks comes after what it carries
        if wider == carry:
            return carry, found
        carry = wider


def depends_on_inputs(program: ClosedJaxpr, inputs: Sequence[bool] | None = None) -> list[bool]:
    """Says of each output whether it depends on one of these inputs, on any if None."""
    given = [True] * len(program.jaxpr.invars) if inputs is None else inputs
    either = lambda one, two: one or two
    rules = Rules[bool](
        constant=lambda value: False,
        apply=lambda eqn, values: [any(values)] * len(eqn.outvars),
        join=either,
        decided=either,
    )
    return read(program, given, rules)
