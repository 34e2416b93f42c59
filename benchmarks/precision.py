"""What single precision gives: the largest error of each number against double precision, and what is said of it.

Both take the same numbers as inputs, those that single precision holds. An error is relative to the largest number
of its kind, or where that is said, to each. The goal is what the library says: 10^-trust where a run has a certificate,
what the documentation says otherwise, and where it says nothing 1e-3 for flows with default tolerances and 1e-4 for
kernels and closed forms. A number without a goal came with a warning, which stands beside it.
"""

import math
from collections.abc import Iterator

import jax.numpy as jnp

from ._said import rounding, Row
from .accuracy import _kernels, _observables, _runs, _theory
from .accuracy._case import compared
from ._timing import forget_programs

PARTS = (_theory.cases, _kernels.cases, _runs.cases, _observables.cases)


def main(*, quick: bool) -> Iterator[Row]:
    """All numbers; in the quick part of smaller problems."""
    for cases in PARTS:
        for case in cases(small=quick):
            for what, error, said, words, warned in compared(case):
                goal = math.nan if warned else said
                yield Row(what, error, "<=", goal, beside=(rounding(jnp.float32),), note=words)
        forget_programs()
