"""Statistics of ensembles: networks that differ only in their initialization."""

from collections.abc import Callable
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float

from .._checks import describe, real_numbers


if TYPE_CHECKING:
    import xarray

SAMPLE_AXES = ("sample", "test_sample")


class Jackknifed(NamedTuple):
    """A statistic of an ensemble.

    Attributes:
        value: the statistic of all members: a labeled array or one number.
        error: its standard error, of the same kind.
    """

    value: Any
    error: Any


def jackknife(
    statistic: "Callable[[xarray.DataArray], xarray.DataArray | float]", data: "xarray.DataArray", over: str = "seed"
) -> Jackknifed:
    r"""A statistic of an ensemble and its jackknife standard error, from leaving out one member at a time.

    With m members, and $s_i$ the statistic without the i-th, the error is
    $\sqrt{\frac{m - 1}{m} \sum_i (s_i - \bar s)^2}$ (Tukey). For a mean, it is the usual standard error. It is right to
    first order for any smooth function of means, such as a variance, but not for medians and other quantiles. Members
    that are all NaN, such as failed runs, do not count.

    Arguments:
        statistic: maps data to one number, or to a labeled array without the axis of members.
        data: a variable with an axis of two or more members.
        over: the name of that axis.

    Example:
        >>> import xarray
        >>> draws = xarray.DataArray([1.0, 2.0, 3.0, 6.0], dims="seed")
        >>> value, error = js.sweeps.jackknife(lambda members: members.mean("seed"), draws)
        >>> print(f"{float(value):.2f} +- {float(error):.2f}")
        3.00 +- 1.08

    Raises:
        ValueError: there is no such axis, it has fewer than two members, or the statistic does not remove it.
        TypeError: `data` is not a variable of a dataset.
    """
    require_axis(data, over, 2)
    data = data.dropna(over, how="all")
    value, members = statistic(data), data.sizes[over]
    if members < 2:
        raise ValueError(f"an error needs two members or more, and {members} of {over!r} have numbers")
    axes = getattr(value, "dims", ())
    if over in axes:
        raise ValueError(f"statistic must remove the axis {over!r}, but it returned axes {axes}")
    without = [statistic(data.isel({over: np.arange(members) != i})) for i in range(members)]
    mean = sum(without) / members
    squares = sum((one - mean) ** 2 for one in without)
    return Jackknifed(value, (squares * (members - 1) / members) ** 0.5)


class FittedPowerLaw(NamedTuple):
    """A law c x^b fitted to an ensemble.

    Attributes:
        exponent: b.
        uncertainty: half-width of its 95 % interval; infinite for one member.
        prefactor: c.
    """

    exponent: float
    uncertainty: float
    prefactor: float


def power_law(data: "xarray.DataArray", x: str, over: str = "seed") -> FittedPowerLaw:
    """The law c x^b through an ensemble: a line through logarithms, fitted to each member separately.

    b is the mean of the members' slopes, with Student's interval. A member's slope is a mean over all other axes. The
    line of slope b that gives c passes through the mean of the logarithms, where each member counts once. Curves along
    x with a number that is not positive or not finite are left out.

    Arguments:
        data: a variable with axes x and `over`.
        x: the axis of the law, with two or more positive numbers.
        over: the axis of members.

    Example:
        >>> import xarray
        >>> time = xarray.DataArray([[1.0, 2.0, 4.2], [1.1, 2.2, 4.3]], dims=("seed", "width"))
        >>> law = js.sweeps.power_law(time.assign_coords(width=[10, 20, 40]), "width")
        >>> print(f"{law.exponent:.3f} +- {law.uncertainty:.3f}")
        1.009 +- 0.329

    Raises:
        ValueError: there is no such axis, or the numbers on x are fewer than two or not positive.
        TypeError: `data` is not a variable of a dataset.
    """
    require_axis(data, over, 1)
    require_axis(data, x, 2)
    places = np.asarray(data[x].values, float)
    if not np.all(places > 0):
        raise ValueError(f"a power law needs positive numbers on {x!r}, got {places}")
    ordered, along = data.transpose(over, ..., x).values, np.log(places)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(ordered).reshape(len(ordered), -1, len(places))
    fitted = np.all(np.isfinite(logs), axis=2, keepdims=True)
    logs, centered = np.where(fitted, logs, np.nan), along - along.mean()
    known = np.any(fitted, axis=(1, 2))
    # Least-squares slopes. The logarithms of data need no centering, since the centered places sum to 0.
    slopes = np.nanmean(logs[known] @ centered, axis=1) / (centered @ centered)
    if not slopes.size:
        return FittedPowerLaw(np.nan, np.nan, np.nan)
    exponent, width = float(slopes.mean()), float(student(slopes))
    # A least-squares line passes through the means of both axes.
    height = np.nanmean(logs[known], axis=(1, 2)).mean()
    return FittedPowerLaw(exponent, width, float(np.exp(height - exponent * along.mean())))


def student(members: Float[np.ndarray, " members *numbers"]) -> Float[np.ndarray, " *numbers"]:
    """Half-widths of Student's 95 % intervals of the means over members; infinite for one member."""
    from scipy.stats import t

    count = len(members)
    if count < 2:
        return np.full(members.shape[1:], np.inf)
    return np.asarray(t.ppf(0.975, count - 1) * (members.std(axis=0, ddof=1) / count**0.5))


def ensemble_variance(outputs: "xarray.DataArray", over: str = "seed") -> "xarray.DataArray":
    """The variance of the members of an ensemble around their mean, averaged over samples and outputs.

    It is unbiased: the divisor is m - 1 (m in eq. 7 of Geiger et al.). Failed runs (NaN) are left out.

    Arguments:
        outputs: values of `js.observe.outputs` or `test_outputs`, with an axis of members.
        over: the name of that axis.

    Example:
        >>> import xarray
        >>> outputs = xarray.DataArray([[[1.0]], [[3.0]]], dims=("seed", "test_sample", "output"))
        >>> print(float(js.sweeps.ensemble_variance(outputs)))
        2.0

    Raises:
        ValueError: there is no such axis, it has fewer than two members, or there is no axis of samples.
        TypeError: `outputs` is not a variable of a dataset.
    """
    axes = _read(outputs, over)
    return outputs.var(over, ddof=1).mean(axes)


def ensemble_error(outputs: "xarray.DataArray", y: Float[ArrayLike, "n out"], over: str = "seed") -> "xarray.DataArray":
    """The fraction of samples that the mean output of an ensemble misclassifies.

    One output gives the class by its sign (0 is always wrong), several by the largest. Failed runs (NaN) are left out.

    Arguments:
        outputs: values of `js.observe.outputs` or `test_outputs`, with an axis of members.
        y: the targets of these samples, shape (n, c).
        over: the name of the axis of members.

    Example:
        >>> import xarray
        >>> outputs = xarray.DataArray([[[3.0], [1.0]], [[-1.0], [1.0]]], dims=("seed", "test_sample", "output"))
        >>> print(float(js.sweeps.ensemble_error(outputs, jnp.array([[1.0], [-1.0]]))))
        0.5

    Raises:
        ValueError: there is no such axis, it has fewer than two members, or y does not match the samples and outputs.
        TypeError: y is not an array of real numbers, or `outputs` is not a variable of a dataset.
    """
    (samples, output), target = _read(outputs, over), real_numbers(y, "y")
    shape = outputs.sizes[samples], outputs.sizes[output]
    if target.shape != shape:
        raise ValueError(f"y must have one target per sample and output, shape {shape}, got {target.shape}")
    mean = outputs.mean(over)
    # The targets take the axes and labels of one slice of the means.
    one = mean.isel({name: 0 for name in mean.dims if name not in (samples, output)}, drop=True)
    target = one.transpose(samples, output).copy(data=target)
    if shape[1] == 1:
        wrong = (mean * target).isel({output: 0}) <= 0
    else:
        # argmax would take NaN, where all members failed, as the largest.
        wrong = mean.fillna(-np.inf).argmax(output) != target.argmax(output)
    known = mean.notnull().all(output)
    return wrong.astype(float).where(known).mean(samples)


def _read(outputs: Any, over: str) -> tuple[str, str]:
    """The axes of samples and of outputs."""
    require_axis(outputs, over, 2)
    samples = [axis for axis in SAMPLE_AXES if axis in outputs.dims]
    if len(samples) != 1 or "output" not in outputs.dims:
        raise ValueError(
            "outputs must be what observe.outputs() or test_outputs() recorded, with axes 'sample' or 'test_sample', "
            f"and 'output'; got axes {outputs.dims}"
        )
    return samples[0], "output"


def require_axis(data: Any, axis: str, least: int) -> None:
    if not (hasattr(data, "sizes") and hasattr(data, "dtype")):  # a whole dataset has no dtype
        raise TypeError(f"data must be a variable of a dataset, such as ds['test_outputs'], got {describe(data)}")
    if data.sizes.get(axis, 0) < least:
        raise ValueError(f"data must have an axis {axis!r} of {least} or more members, got axes {dict(data.sizes)}")
