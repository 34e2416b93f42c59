"""Claims: what a paper says, what was measured here, and whether they agree."""

import enum
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np


class Verdict(enum.Enum):
    """The outcome of a claim.

    Example:
        >>> [verdict.value for verdict in js.papers.Verdict]
        ['reproduced', 'corrected', 'differs', 'not decidable at this scale']
    """

    REPRODUCED = "reproduced"
    CORRECTED = "corrected"
    DIFFERS = "differs"
    UNDECIDED = "not decidable at this scale"


class Claim(NamedTuple):
    """A statement of a paper beside a measurement.

    Attributes:
        statement: what is claimed, in a sentence.
        paper: the paper's value or sign, in words.
        accepted: the interval of what counts as the same. Its ends belong to it; if one is infinite, the other does
            not: "> 0" is not 0.
        ours: the number measured.
        uncertainty: half the width of its 95 % interval; 0 for what has none.
        corrected: the interval of what an erratum says in the paper's place, if there is one.
    """

    statement: str
    paper: str
    accepted: tuple[float, float]
    ours: float
    uncertainty: float = 0.0
    corrected: tuple[float, float] | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole interval of the measurement: on the paper first, then on its correction."""
        low, high = self.ours - self.uncertainty, self.ours + self.uncertainty
        if math.isnan(low):
            return Verdict.UNDECIDED
        within, outside = _compare(low, high, self.accepted)
        if within:
            return Verdict.REPRODUCED
        if outside and self.corrected is not None:
            within, outside = _compare(low, high, self.corrected)
            if within:
                return Verdict.CORRECTED
        return Verdict.DIFFERS if outside else Verdict.UNDECIDED

    def facts(self) -> dict[str, Any]:
        """The claim as JSON, which has no infinity or NaN: an open end is null, as is a number that is not finite."""
        finite = lambda value: float(value) if math.isfinite(value) else None
        return {
            "statement": self.statement,
            "paper": self.paper,
            "accepted": [finite(end) for end in self.accepted],
            "ours": finite(self.ours),
            "uncertainty": finite(self.uncertainty),
            "corrected": self.corrected and [finite(end) for end in self.corrected],
            "verdict": self.verdict.value,
        }


def _compare(low: float, high: float, accepted: tuple[float, float]) -> tuple[bool, bool]:
    """Two flags: True if an interval lies within what is accepted, and True if it lies outside of it."""
    start, end = accepted
    if math.isinf(start) or math.isinf(end):  # a sign; the infinite end belongs to it, and the other does not
        start = start if math.isinf(start) else math.nextafter(start, math.inf)
        end = end if math.isinf(end) else math.nextafter(end, -math.inf)
    return start <= low and high <= end, high < start or low > end


Claims: TypeAlias = Iterator[Claim]

# What a paper says of a sign or of a ratio, and what counts as the same.
POSITIVE = "> 0", (0.0, math.inf)
NEGATIVE = "< 0", (-math.inf, 0.0)
ABOVE_ONE = "> 1", (1.0, math.inf)


class Measured(NamedTuple):
    """A number, and half the width of its 95 % interval."""

    value: float
    uncertainty: float


def bars(cells: Any, over: str = "seed") -> "tuple[np.ndarray, np.ndarray]":
    """Means over seeds, and half the widths of their 95 % intervals, of an array with one other dimension."""
    mean, bar = zip(*map(mean_over, cells.transpose(..., over).values), strict=True)
    return np.array(mean), np.array(bar)


def mean_over(samples: Any) -> Measured:
    """The mean of independent samples, and Student's interval for it; NaN counts as no sample."""
    from scipy.stats import t

    known = np.asarray(samples, float).ravel()
    known = known[np.isfinite(known)]
    if known.size < 2:
        return Measured(float(known.mean()) if known.size else math.nan, math.inf if known.size else math.nan)
    return Measured(float(known.mean()), float(t.ppf(0.975, known.size - 1) * known.std(ddof=1) / known.size**0.5))


def exponent(x: Any, y: Any) -> Measured:
    """b in y ~ x^b, fitted to each row of samples by itself.

    Arguments:
        x: positive numbers, shape (points,).
        y: positive numbers, shape (samples, points).
    """
    logs = np.log(np.asarray(x, float))
    centered = logs - logs.mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.log(np.asarray(y, float)) @ centered / (centered @ centered)
    return mean_over(slopes)
