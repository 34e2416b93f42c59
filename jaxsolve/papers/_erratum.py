"""Errata: what was printed, what is right, and a measurement that tells them apart."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float


class Row(NamedTuple):
    """One number, three times.

    Attributes:
        label: of what: a time, a seed, a size.
        truth: integrated from the weights, or computed directly from the definition.
        printed: what the paper's equation gives; NaN where it gives nothing.
        corrected: what the corrected equation gives.
    """

    label: str
    truth: float
    printed: float
    corrected: float


class Measurement(NamedTuple):
    """The numbers behind an erratum, and the largest error of each equation over them."""

    printed_error: float
    corrected_error: float
    table: tuple[Row, ...]


class Erratum(NamedTuple):
    """An error in a paper.

    Attributes:
        paper: authors and title.
        equation: number of the equation, or where the statement stands.
        printed, corrected: the equation as printed and as it must be, in plain text, formulas between backticks.
        why: one sentence.
        quantity: what the measurement compares, and how its error is defined.
        measure: recomputes the numbers; takes no argument, needs float64.
    """

    paper: str
    equation: str
    printed: str
    corrected: str
    why: str
    quantity: str
    measure: Callable[[], Measurement]

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
        return Checked(self, *self.measure())


class Checked(NamedTuple):
    """An erratum with its measurement: see `Erratum` and `Measurement`."""

    erratum: Erratum
    printed_error: float
    corrected_error: float
    table: tuple[Row, ...]


def relative_error(values: Any, truth: Any) -> float:
    """Largest difference relative to the largest true value; infinite where a value is not a number."""
    values, truth = np.asarray(values, float), np.asarray(truth, float)
    error = np.max(np.abs(values - truth)) / np.max(np.abs(truth))
    return float(error) if np.isfinite(error) else float("inf")


def compared(labels: Sequence[str], truth: Any, printed: Any, corrected: Any) -> Measurement:
    """A row per label; errors are `relative_error`."""
    arrays = [np.asarray(values, float) for values in (truth, printed, corrected)]
    rows = tuple(Row(label, *map(float, values)) for label, *values in zip(labels, *arrays, strict=True))
    return Measurement(relative_error(arrays[1], arrays[0]), relative_error(arrays[2], arrays[0]), rows)


def counted(labels: Sequence[str], truth: Any, printed: Any, corrected: Any) -> Measurement:
    """For statements that are true or false: errors are the share of rows in which a statement is wrong."""
    arrays = [np.asarray(values, bool) for values in (truth, printed, corrected)]
    rows = tuple(Row(label, *map(float, values)) for label, *values in zip(labels, *arrays, strict=True))
    return Measurement(float(np.mean(arrays[1] != arrays[0])), float(np.mean(arrays[2] != arrays[0])), rows)


def deviating(labels: Sequence[str], printed: Sequence[float], corrected: Sequence[float]) -> Measurement:
    """For matrices: a row holds the relative errors of the two equations, and 0 for the truth."""
    rows = tuple(Row(label, 0.0, float(a), float(b)) for label, a, b in zip(labels, printed, corrected, strict=True))
    return Measurement(float(np.max(printed)), float(np.max(corrected)), rows)


def matrix_error(value: Float[np.ndarray, "*shape"], truth: Float[np.ndarray, "*shape"]) -> float:
    """|value - truth|/|truth| in the Frobenius norm."""
    return float(np.linalg.norm(value - truth) / np.linalg.norm(truth))
