"""Errata: a printed equation, its correction, and a measurement that tells them apart."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np


class Row(NamedTuple):
    """One number from three sources.

    Attributes:
        label: the case, such as a time, a seed or a size; formulas as in `Erratum`.
        truth: integrated from the weights, or computed directly from the definition.
        printed: what the paper's equation gives; NaN where it gives nothing.
        corrected: what the corrected equation gives.
    """

    label: str
    truth: float
    printed: float
    corrected: float


Rows: TypeAlias = Iterable[Row]


def relative_error(values: Any, truth: Any) -> float:
    """Largest difference relative to the largest true value; infinite if a value is NaN.

    If all true values are 0, as in a table of errors, the difference itself.
    """
    values, truth = np.asarray(values, float), np.asarray(truth, float)
    error = np.max(np.abs(values - truth)) / (np.max(np.abs(truth)) or 1.0)
    return float(error) if np.isfinite(error) else float("inf")


def compared(table: Sequence[Row]) -> tuple[float, float]:
    """The `relative_error` of the printed and of the corrected equation."""
    _, truth, printed, corrected = zip(*table, strict=True)
    return relative_error(printed, truth), relative_error(corrected, truth)


def counted(table: Sequence[Row]) -> tuple[float, float]:
    """For statements that are true or false: the share of rows in which each version is wrong."""
    wrong = [(row.printed != row.truth, row.corrected != row.truth) for row in table]
    printed, corrected = np.mean(wrong, axis=0)
    return float(printed), float(corrected)


def rows(labels: Sequence[str], truth: Any, printed: Any, corrected: Any) -> Rows:
    """A row per label."""
    return (Row(*values) for values in zip(labels, truth, printed, corrected, strict=True))


def matrix_row(label: str, truth: Any, printed: Any, corrected: Any) -> Row:
    """For matrices: the relative errors of the two equations in the Frobenius norm, and 0 for the truth."""
    printed, corrected = (np.linalg.norm(value - truth) / np.linalg.norm(truth) for value in (printed, corrected))
    return Row(label, 0.0, printed, corrected)


class Erratum(NamedTuple):
    """An error in a paper.

    Attributes:
        paper: authors and title.
        equation: number of the equation, or place of the statement.
        printed, corrected: the equation as printed and as corrected; formulas in LaTeX between dollar signs, code
            between backticks. No vertical bars: they would end a cell of the page's table.
        why: one sentence.
        quantity: what the measurement compares, and how its error is defined.
        measure: recomputes the numbers; takes no argument, needs float64.
        errors: computes the errors of the printed and of the corrected equation over all rows.
    """

    paper: str
    equation: str
    printed: str
    corrected: str
    why: str
    quantity: str
    measure: Callable[[], Rows]
    errors: Callable[[Sequence[Row]], tuple[float, float]] = compared

    def check(self) -> "Checked":
        """Runs the measurement.

        Raises:
            ValueError: JAX is in single precision, which cannot show most of these errors.
        """
        if jnp.result_type(float) != jnp.float64:
            raise ValueError(
                "the errata are measured in double precision, but JAX is set to single: call "
                'jax.config.update("jax_enable_x64", True) before anything else, or run `jaxsolve errata`'
            )
        table = tuple(Row(label, *map(float, values)) for label, *values in self.measure())
        return Checked(self, *self.errors(table), table)


class Checked(NamedTuple):
    """An erratum with its numbers, and the largest error of each equation over them."""

    erratum: Erratum
    printed_error: float
    corrected_error: float
    table: tuple[Row, ...]
