"""Slopes over widths, with confidence intervals."""

from typing import NamedTuple

import numpy as np


# Half the distance between exponents of parametrizations, which are multiples of 1/2 (Yang and Hu 2021).
TOLERANCE = 0.25


class Slope(NamedTuple):
    """A power of the width.

    Attributes:
        value: the exponent.
        error: half-width of its 95 % confidence interval, from the scatter of seeds and widths.
    """

    value: float
    error: float

    def shown(self, form: str = ".2f") -> str:
        """The exponent and its error as text; a line through two points has no error."""
        error = f" +- {self.error:.2f}" if np.isfinite(self.error) else ", error unknown"
        return f"{self.value:{form}}{error}"


def slope(widths: np.ndarray, values: np.ndarray) -> Slope:
    """The exponent of values ~ width^p, by least squares of the logarithms.

    Arguments:
        widths: shape (widths,).
        values: shape (widths, seeds); values that are not positive or not finite are left out.
    """
    x = np.repeat(np.log(widths.astype(float)), values.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(values.astype(float)).ravel()
    fine = np.isfinite(y)
    return fit_line(x[fine], y[fine])


def fit_line(x: np.ndarray, y: np.ndarray) -> Slope:
    """The slope of a line and the half-width of its 95 % interval; NaN if the points define no line."""
    if len(x) < 2 or np.ptp(x) == 0:
        return Slope(float("nan"), float("nan"))
    centered = x - x.mean()
    value = float(centered @ y / (centered @ centered))
    rest = y - y.mean() - value * centered
    if len(x) < 3:
        return Slope(value, float("inf"))
    from scipy.stats import t

    # The standard error of a least-squares slope, with n - 2 degrees of freedom.
    spread = float(np.sqrt(rest @ rest / (len(x) - 2) / (centered @ centered)))
    return Slope(value, float(t.ppf(0.975, len(x) - 2)) * spread)


def have_logarithms(losses: np.ndarray) -> bool:
    """True if all losses are above 0, so that they have logarithms; the infinite losses of diverged runs count."""
    return bool(np.all(losses > 0))


def mean_losses(losses: np.ndarray) -> np.ndarray:
    """Means over seeds of the log losses, or of the losses if one is not positive; inf where a seed diverged."""
    return np.mean(np.log(losses) if have_logarithms(losses) else losses, axis=-1)
