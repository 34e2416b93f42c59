"""What float32 gives, which is JAX's default: the error of every kind of number, beside what is said of it.

Each computation is made twice, in float32 and in float64, of the same numbers: those that float32 holds, or, where a
theory assumes of its inputs what rounding loses (that they are whitened, say), the exact ones. A row is the number of
one computation that comes closest to what is said, or exceeds it the most. Its error is relative to the largest number
of its kind; that of outputs and norms of closed forms, to the largest of the same time.

The goal is what the library says of the error. It is 10^-trust where a run has a certificate, to half a digit, or to
what "How to choose" says of kinks and of depth; else the bound of the kind: 1e-4 of kernels, closed forms, predictions
and observables, 1e-3 of flows at their default tolerances. Docstrings add what they say of changes of kernels and
weights, of outputs that are centered, of samples at a kink, and of estimates by random vectors. What came with a
warning, or was refused, has no goal.
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
