"""The transfer check: whether the best rate depends on the width."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .._checks import describe, real_numbers, require_size
from .._numerics import unwatched
from ._coordinates import read_widths
from ._dataset import dataset
from ._figure import draw_transfer
from ._finite import ending
from ._fit import fit_line, mean_losses, Slope, TOLERANCE
from ._inputs import check_optimizer, read_key, read_problem, require_own
from ._train import objective, train


if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class TransferCheck:
    """Losses against rates and widths. Made by `js.transfer_check`.

    Attributes:
        widths, rates: widths of the networks, and rates tried.
        losses: training losses at the end, (widths, rates, seeds); inf where training diverged.
        best: the best rate of every width, shape (widths,), by a parabola through the means over seeds of the log
            losses, or of the losses if some are not above 0; NaN where no rate lowers the loss.
        at_edge: whether it is the first or last rate, shape (widths,), so that the best rate may lie beyond.
        octaves: octaves by which the best rate moves per doubling of the width.
        passed: whether the interval of `octaves` comes within 1/4 of 0. None if unknown: it does, but is wider than 1/2
            on either side or has no error, or a width has no best rate, or one at an edge.
        text: the verdict in words.
    """

    widths: np.ndarray
    rates: np.ndarray
    losses: np.ndarray
    best: np.ndarray
    at_edge: np.ndarray
    octaves: Slope
    passed: bool | None
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"TransferCheck {self.text}"

    def plot(self) -> "Figure":
        """Losses against the rate, one line per width, as a matplotlib figure."""
        return draw_transfer(self.widths, self.rates, self.losses, self.best)

    def to_xarray(self) -> "xarray.Dataset":
        """The losses, with dimensions `width`, `rate` and `seed`."""
        data = {"loss": (("width", "rate", "seed"), self.losses), "best_rate": ("width", self.best)}
        coords = {"width": self.widths, "rate": self.rates}
        passed = np.nan if self.passed is None else int(self.passed)
        return dataset(data, coords, {"passed": passed, "text": self.text})


# An interval wider than this on either side can contain both muP and the standard scaling; it decides nothing.
SCATTER = 0.5


def _surely_off(octaves: Slope) -> float:
    """The distance of the interval from 0; 0 if it contains 0."""
    return max(0.0, abs(octaves.value) - octaves.error)


def _adam(rate: Any, width: int) -> optax.GradientTransformation:
    return optax.adam(rate)


@unwatched()
def transfer_check(
    make_net: Callable[[int, Any], Any],
    widths: Sequence[int],
    rates: Sequence[float],
    x: Any,
    y: Any,
    *,
    optimizer: Callable[[Any, int], optax.GradientTransformation] = _adam,
    loss: Any = None,
    steps: int = 100,
    seeds: int = 2,
    key: Any = None,
) -> TransferCheck:
    """Trains every width at every rate, to see whether the best rate of a narrow network serves a wide one.

    With muP it does (Yang et al. 2022); with the standard scaling the best rate of Adam falls like 1/width, one octave
    per doubling. The best rate counts as constant if the 95 % interval of its slope comes within 1/4 of an octave of 0,
    and as not known if that interval is wider than +- 1/2.

    Arguments:
        make_net, widths, x, y, loss: as for `js.coordinate_check`.
        rates: three or more, ascending, on both sides of the best one; powers of 2 or 4.
        optimizer: a function of (rate, width) that returns an optax transformation. The default is Adam.

    Other Arguments:
        steps: steps of each training run.
        seeds: networks per width and rate.
        key: random key of the networks; None takes `jax.random.key(0)`.

    Example:
        >>> import optax
        >>> x = jax.random.normal(jax.random.key(0), (16, 4))
        >>> def make(width, key):
        ...     return js.nets.MLP(
        ...         in_size=4, out_size=1, width_size=width, depth=1, activation="tanh",
        ...         scaling=js.nets.Scaling.mup(), key=key
        ...     )
        >>> sgd = lambda rate, width: optax.sgd(rate)
        >>> rates = [0.01, 0.1, 1.0]
        >>> check = js.transfer_check(make, [16, 64], rates, x, x[:, :1], optimizer=sgd, steps=20, seeds=1)
        >>> check.losses.shape
        (2, 3, 1)

    Raises:
        TypeError, ValueError: as `js.coordinate_check`; fewer than three rates, or rates that are not finite or do
            not ascend.
    """
    places, key = read_widths(make_net, widths), read_key(key)
    steps, seeds = require_size(steps, "steps"), require_size(seeds, "seeds")
    tried = real_numbers(rates, "rates")
    fine = tried.ndim == 1 and len(tried) >= 3 and np.all(np.isfinite(tried))  # NaN passes the checks below
    if not fine or np.any(tried <= 0) or np.any(np.diff(tried) <= 0):
        raise ValueError(f"rates must be three or more finite numbers > 0, ascending; got {tried.tolist()}")
    require_own(optimizer)
    if not callable(optimizer):
        raise TypeError(f"optimizer must be a function of (rate, width), got {describe(optimizer)}")
    losses = np.full((len(places), len(tried), seeds), np.inf)
    starts = np.zeros((len(places), 1, seeds))
    for i, width in enumerate(places):
        for seed in range(seeds):
            problem = read_problem(make_net(int(width), jax.random.fold_in(key, seed)), x, y, loss, None, False)
            starts[i, 0, seed] = objective(problem, problem.params)
            made = run = None
            for j, rate in enumerate(tried):
                # As an array, so that one program serves all rates.
                made = optimizer(jnp.asarray(rate, problem.dtype), int(width))
                check_optimizer(made)
                run = train(problem, made, [0, steps], None, None)
                if not run.diverged:
                    losses[i, j, seed] = objective(problem, run.checkpoints[-1].params)
            if not np.any(np.isfinite(losses[i, :, seed])):
                assert made is not None
                assert run is not None
                ending(problem, problem, made, run)  # raises where derivatives are not finite from the start
    # The mean is infinite where a seed diverged, so such a rate does not count as lowering the loss.
    idle = ~np.any(np.mean(losses, axis=-1) < np.mean(starts, axis=-1), axis=1)
    best = np.array([[_best(tried, losses[i, :, seed]) for seed in range(seeds)] for i in range(len(places))])
    means = mean_losses(losses)
    together = np.array([np.nan if no else _best(tried, row) for no, row in zip(idle, means, strict=True)])
    edge = np.isin(np.argmin(means, axis=1), (0, len(tried) - 1))
    x_axis = np.repeat(np.log2(places.astype(float)), seeds)
    octaves = fit_line(x_axis, np.log2(best).ravel())
    # The slope is fitted to the means over seeds, which scatter less; its error comes from the individual seeds.
    octaves = Slope(fit_line(np.log2(places.astype(float)), np.log2(together)).value, octaves.error)
    if np.any(idle):
        octaves = Slope(float("nan"), float("nan"))
        lost = ~np.any(np.isfinite(means), axis=1)
        text = _idle(places[lost], places[idle & ~lost])
        return TransferCheck(places, tried, losses, together, edge, octaves, None, text)
    off = _surely_off(octaves) > TOLERANCE
    known = (off or octaves.error <= SCATTER) and not np.any(edge)
    passed = not off if known else None
    return TransferCheck(
        places, tried, losses, together, edge, octaves, passed, _text(places, together, edge, octaves, passed)
    )


def _best(rates: np.ndarray, losses: np.ndarray) -> float:
    """The rate at the lowest point of a parabola through the lowest loss and its neighbors, over log rate."""
    k = int(np.argmin(losses))
    if k in (0, len(rates) - 1) or not np.all(np.isfinite(losses[k - 1 : k + 2])):
        return float(rates[k])
    x, y = np.log(rates[k - 1 : k + 2]), losses[k - 1 : k + 2]
    bend, tilt, _ = np.polyfit(x - x[1], y, 2)
    # A parabola that opens downward has no lowest point.
    if bend <= 0:
        return float(rates[k])
    # The vertex, kept between the neighbors of the lowest loss.
    return float(np.exp(np.clip(x[1] - tilt / (2 * bend), x[0], x[2])))


def _idle(lost: np.ndarray, idle: np.ndarray) -> str:
    """The verdict where there is no best rate: all rates diverged, or none lowers the loss."""
    at = lambda widths: f"at width {', '.join(map(str, widths))}"
    said = [f"training diverged at every rate {at(lost)}; take smaller rates"] if lost.size else []
    said += [f"no rate lowers the loss {at(idle)}, so none is best"] if idle.size else []
    return f"not known: {'; '.join(said)}."


def _text(widths: np.ndarray, best: np.ndarray, edge: np.ndarray, octaves: Slope, passed: bool | None) -> str:
    shown = ", ".join(f"{rate:.2g} at {width}" for width, rate in zip(widths, best, strict=True))
    moves = f"{octaves.shown('+.2f')} octaves for every doubling of the width"
    if passed is not None:
        serves, depends = "the best rate of a narrow network serves a wide one", "the best rate depends on the width"
        verdict = f"passed: {serves}" if passed else f"failed: {depends}"
    elif np.any(edge):
        verdict = "not known: a best rate is the first or last one tried; widen the range of rates"
    elif not np.isfinite(octaves.error):
        verdict = "not known: two runs give no error estimate; use more seeds, or more widths"
    else:
        verdict = "not known: the seeds scatter too much; use more seeds, or more widths"
    return f"{verdict}. It moves by {moves}: {shown}."
