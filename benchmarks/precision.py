"""The accuracy of float32, JAX's default: the error of every kind of number, and the bound that the library states.

Each computation is made twice, in float32 and in float64, from the same numbers: those that float32 can represent, or
the exact ones if a theory makes assumptions that rounding violates (such as whitened inputs). A row is the number of
one computation that comes closest to its bound, or exceeds it the most. Its error is relative to the largest number
of its kind; for outputs and norms of closed forms, to the largest at the same time.

The goal is the bound that the library states. It is 10^-trust where a run has a certificate, to half a digit, or to
the accuracy that "How to choose" gives for kinks and for depth; otherwise the bound of the kind: 1e-4 for kernels,
closed forms, predictions and observables, 1e-3 for flows at their default tolerances. Docstrings state further bounds
for changes of kernels and weights, centered outputs, samples at a kink, and estimates with random vectors. Numbers
that came with a warning, or were refused, have no goal.
"""

import math
from collections.abc import Iterator

import jax.numpy as jnp

from ._said import rounding, Row
from ._timing import forget_programs
from .accuracy import _kernels, _observables, _predictions, _runs, _theory
from .accuracy._case import Case, Compared, compared


PARTS = {
    part.__name__.rpartition("_")[2]: part.cases for part in (_theory, _predictions, _kernels, _runs, _observables)
}


def main(*, quick: bool) -> Iterator[Row]:
    """All rows; in the quick part of smaller problems."""
    for cases in PARTS.values():
        for case in cases(small=quick):
            yield row(case)
        forget_programs()


def row(case: Case) -> Row:
    """The number of a computation that comes closest to what is said of it, or exceeds it the most."""
    worst = max(compared(case), key=_excess)
    note = "; ".join(filter(None, (worst.name, worst.words)))
    goal = math.nan if worst.warned else worst.said
    return Row(case.what, worst.error, "<=", goal, beside=(rounding(jnp.float32),), note=note)


def _excess(found: Compared) -> float:
    excess = found.error / found.said
    return math.inf if math.isnan(excess) else excess
