"""Scans unrolled for `read`, one step after another."""

from collections.abc import Callable
from typing import Any

from ._equations import scan_counts
from ._read import read, Rules


def write_out[Value](
    eqn: Any,
    inputs: list[Value],
    rules: Rules[Value],
    row: Callable[[Value, int], Value],
    stack: Callable[[list[Value], Any], Value],
) -> list[Value]:
    """The values of a scan's outputs, with each of its steps read separately.

    Arguments:
        eqn: the scan.
        inputs: the values of its inputs.
        rules: the rules for reading a step.
        row: the value of one row of an input that is scanned over.
        stack: the value of a stacked output, from the values of its rows, possibly none, and its shape.
    """
    length, (fixed, carried) = eqn.params["length"], scan_counts(eqn)
    constants, carry, rows = inputs[:fixed], inputs[fixed : fixed + carried], inputs[fixed + carried :]
    order = range(length)
    stacked: list[list[Value]] = [[] for _ in eqn.outvars[carried:]]
    for index in reversed(order) if eqn.params["reverse"] else order:
        outputs = read(eqn.params["jaxpr"], [*constants, *carry, *(row(value, index) for value in rows)], rules)
        carry = outputs[:carried]
        for found, output in zip(stacked, outputs[carried:], strict=True):
            found.append(output)
    in_order = [found[::-1] if eqn.params["reverse"] else found for found in stacked]
    return [*carry, *(stack(found, var.aval) for found, var in zip(in_order, eqn.outvars[carried:], strict=True))]
