"""Piecewise power laws, with fitted borders between the pieces."""

from itertools import combinations
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from .._checks import require_size
from ._ensemble import require_axis, student


if TYPE_CHECKING:
    import xarray

POINTS = 3  # fewest points in a regime: a line fits any two exactly


class FittedBrokenPowerLaw(NamedTuple):
    """A continuous piecewise power law fitted to an ensemble, with k borders between k + 1 regimes.

    Attributes:
        exponents: the exponent of each regime, shape (k + 1,).
        uncertainties: half-widths of their 95 % intervals, shape (k + 1,); infinite for one member.
        borders: where regimes meet on the x axis, shape (k,).
        border_intervals: the 95 % interval of each border, shape (k, 2).
        prefactor: c of the first regime's law c x^b.
    """

    exponents: Float[np.ndarray, " regimes"]
    uncertainties: Float[np.ndarray, " regimes"]
    borders: Float[np.ndarray, " borders"]
    border_intervals: Float[np.ndarray, "borders 2"]
    prefactor: float

    def __call__(self, x: Any) -> Float[np.ndarray, "..."]:
        """The law at positive numbers x."""
        bends = np.maximum(np.log(np.asarray(x, float)[..., None] / self.borders), 0.0)
        return self.prefactor * np.asarray(x, float) ** self.exponents[0] * np.exp(bends @ np.diff(self.exponents))


def broken_power_law(data: "xarray.DataArray", x: str, borders: int = 1, over: str = "seed") -> FittedBrokenPowerLaw:
    """A continuous piecewise power law through an ensemble, with fitted exponents and borders.

    Each curve along x is fitted in logarithms by a continuous piecewise-linear function (least squares). Exponents and
    logarithms of borders are averaged over members, with Student's intervals, as in `js.sweeps.power_law`; a member
    counts once, with the mean over its curves. Curves with a number that is not positive or not finite are left out. A
    regime has at least three points. If one law crosses over slowly into the next, the border lies in the middle of the
    crossover, which biases the exponents on both sides: check the picture that `js.plot.power_law` draws.

    Arguments:
        data: a variable with axes x and `over`.
        x: the axis of the law, with positive numbers in ascending order.
        borders: number of borders, at least 1. The fit tries all choices of points as starts: fast for 3 among 20.
        over: the axis of members.

    Example:
        >>> import numpy as np, xarray
        >>> x = np.geomspace(1e-2, 1e2, 9)
        >>> change = xarray.DataArray(np.stack([np.minimum(1, 1 / x), np.minimum(2, 2 / x)]), dims=("seed", "x"))
        >>> law = js.sweeps.broken_power_law(change.assign_coords(x=x), "x")
        >>> print(law.exponents.round(6) + 0.0, law.borders.round(6))
        [ 0. -1.] [1.]

    Raises:
        ValueError: there is no such axis, or its numbers are too few for the regimes, not positive, or not in order.
        TypeError: `data` is not a variable of a dataset, or `borders` is not an integer.
    """
    require_size(borders, "borders")
    require_axis(data, over, 1)
    require_axis(data, x, POINTS * (borders + 1))
    along = np.asarray(data[x].values, float)
    if not (np.all(along > 0) and np.all(np.diff(along) > 0)):
        raise ValueError(f"a power law needs positive numbers in rising order on {x!r}, got {along}")
    along = np.log(along)
    rows = data.transpose(over, ..., x).values.reshape(data.sizes[over], -1, len(along))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(rows)
    fits = [[_fit(along, line, borders) for line in lines if np.all(np.isfinite(line))] for lines in logs]
    members = np.array([np.mean(lines, axis=0) for lines in fits if lines])
    if not len(members):
        members = np.full((1, 2 * borders + 2), np.nan)
    mean, half = members.mean(axis=0), student(members)
    exponents, places = slice(1, borders + 2), slice(borders + 2, None)
    ends = np.exp(np.stack([mean[places] - half[places], mean[places] + half[places]], axis=-1))
    return FittedBrokenPowerLaw(mean[exponents], half[exponents], np.exp(mean[places]), ends, float(np.exp(mean[0])))


def _fit(
    x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"], borders: int
) -> Float[np.ndarray, " params"]:
    """Height at x = 0, slopes and borders of the least-squares fit by a continuous piecewise-linear function."""
    from scipy.optimize import minimize

    def lines(places: Any) -> tuple[np.ndarray, float]:
        basis = np.stack([np.ones_like(x), x, *(np.maximum(x - place, 0.0) for place in places)], axis=-1)
        found = np.linalg.lstsq(basis, y, rcond=None)[0]
        return found, float(np.sum((basis @ found - y) ** 2))

    inner, apart = x[POINTS - 1 : len(x) - POINTS + 1], POINTS - 1
    choices = (c for c in combinations(range(len(inner)), borders) if np.all(np.diff(c) >= apart))
    start = inner[list(min(choices, key=lambda c: lines(inner[list(c)])[1]))]
    limits = [(inner[0], inner[-1])] * borders
    options = {"xatol": 1e-7, "fatol": np.inf, "maxiter": 2000}  # stop by places: the sum of squares is flat there
    places = np.sort(minimize(lambda p: lines(p)[1], start, method="Nelder-Mead", bounds=limits, options=options).x)
    (height, *bends), _ = lines(places)
    return np.array([height, *np.cumsum(bends), *places])
