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
        accepted: the interval of values that agree with the paper, with its ends. If one end is infinite, the other is
            excluded: "> 0" is not 0.
        ours: the number measured.
        uncertainty: half-width of its 95 % interval; 0 if it has none.
        corrected: the interval of values that agree with an erratum, if there is one.
    """

    statement: str
    paper: str
    accepted: tuple[float, float]
    ours: float
    uncertainty: float = 0.0
    corrected: tuple[float, float] | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict from the whole interval of the measurement, first on the paper, then on its correction."""
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
        """The claim as a dict for JSON; infinite ends and numbers that are not finite are None."""
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
    """Two flags: whether an interval lies within the accepted one, and whether it lies outside."""
    start, end = accepted
    if math.isinf(start) or math.isinf(end):  # a sign: only the infinite end is included
        start = start if math.isinf(start) else math.nextafter(start, math.inf)
        end = end if math.isinf(end) else math.nextafter(end, -math.inf)
    return start <= low and high <= end, high < start or low > end


Claims: TypeAlias = Iterator[Claim]

# The paper's value for a sign or a ratio, and the accepted interval.
POSITIVE = "> 0", (0.0, math.inf)
NEGATIVE = "< 0", (-math.inf, 0.0)
ABOVE_ONE = "> 1", (1.0, math.inf)


class Measured(NamedTuple):
    """A number and the half-width of its 95 % interval."""

    value: float
    uncertainty: float


def bars(cells: Any, over: str = "seed") -> "tuple[np.ndarray, np.ndarray]":
    """Means over seeds and half-widths of their 95 % intervals, for an array with one other dimension."""
    mean, bar = zip(*map(mean_over, cells.transpose(..., over).values), strict=True)
    return np.array(mean), np.array(bar)


def mean_over(samples: Any) -> Measured:
    """The mean of independent samples, with its Student interval; NaN is left out."""
    from scipy.stats import t

    known = np.asarray(samples, float).ravel()
    known = known[np.isfinite(known)]
    if known.size < 2:
        return Measured(float(known.mean()) if known.size else math.nan, math.inf if known.size else math.nan)
    return Measured(float(known.mean()), float(t.ppf(0.975, known.size - 1) * known.std(ddof=1) / known.size**0.5))


def exponent(x: Any, y: Any) -> Measured:
    """b in y ~ x^b, fitted to each row of samples separately.

    Arguments:
        x: positive numbers, shape (points,).
        y: positive numbers, shape (samples, points).
    """
    logs = np.log(np.asarray(x, float))
    centered = logs - logs.mean()
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.log(np.asarray(y, float)) @ centered / (centered @ centered)
    return mean_over(slopes)
