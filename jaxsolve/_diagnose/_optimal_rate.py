"""The best rate of gradient descent at infinite width."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._checks import real_numbers, require_kind, require_size
from .._core import Problem, require_problem
from .._solve import solve
from ..dynamics import RichLimit


class OptimalRate(NamedTuple):
    """The best rate, and the losses at others. Made by `js.optimal_rate`.

    Attributes:
        rate: the best one, in gradient-flow time per step, as `optax.sgd` takes it.
        loss: the training loss after the steps at this rate.
        rates: all rates tried, ascending.
        losses: losses at these rates; inf where training diverged.
    """

    rate: float
    loss: float
    rates: np.ndarray
    losses: np.ndarray


def optimal_rate(
    problem: Problem,
    steps: int,
    *,
    rates: Sequence[float] | None = None,
    limit: RichLimit | None = None,
) -> OptimalRate:
    """Returns the rate of gradient descent with the lowest training loss after `steps` steps, at infinite width.

    The losses are those of `js.RichLimit(rate=...)`: of full-batch steps, not of gradient flow. They are exact for
    linear networks and have its sampling error for others. The best rate at width N converges to this one, as Hayou
    2025 (arXiv:2511.01734) proves for linear networks in muP; for the mean loss, the difference is seen to fall like
    1/N.

    Brent's method refines the lowest loss on a grid between its neighbors, to the square root of the unit of rounding.
    If the loss has several minima over the rate, those narrower than the grid are missed; if several are lowest, one of
    them is returned.

    Arguments:
        problem: a dense network with scalings whose features move at infinite width, as `js.RichLimit` requires.
        steps: number of steps of gradient descent.

    Other Arguments:
        rates: the grid, three or more, ascending. None takes quarter octaves downward from the first power of 2 that
            does not lower the loss, until the lowest loss lies inside the grid.
        limit: a `js.RichLimit` whose samples, seed, memory and `at_any_richness` are taken. None takes its defaults.

    Raises:
        TypeError, ValueError: an argument is invalid; no rate lowers the loss; the lowest loss is at
            the first or last of `rates`; or all rates up to 2^30 lower it.
        NotApplicable, MemoryError: as `js.RichLimit`.

    Example:
        >>> net = js.nets.DeepLinear(
        ...     in_size=2, width_size=64, depth=3, scaling=js.nets.Scaling.mean_field(), key=jax.random.key(0)
        ... )
        >>> problem = js.Problem(net, jnp.array([[1.0, 0.3], [-0.4, 0.8]]), jnp.array([[1.0], [-0.5]]))
        >>> best = js.optimal_rate(problem, 2)
        >>> print(f"{best.rate:.2f} {best.loss:.2f}")
        0.51 0.00
    """
    require_problem(problem)
    steps = require_size(steps, "steps")
    limit = RichLimit() if limit is None else limit
    require_kind(limit, RichLimit, "limit", "a js.RichLimit, or None")
    limit = dataclasses.replace(limit, nodes=steps)
    tried: dict[float, float] = {}

    def after(rate: float, *, throw: bool) -> float:
        # As an array, so that one program serves all rates.
        given = dataclasses.replace(limit, rate=jnp.asarray(rate, problem.dtype))
        return float(solve(problem, given, steps * rate, throw=throw)["loss"])

    def loss(rate: float) -> float:
        rate = float(problem.dtype.type(rate))
        if rate not in tried:
            found = after(rate, throw=False)
            tried[rate] = found if np.isfinite(found) else np.inf
        return tried[rate]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # from rates that are too large
        _search(loss, float(problem.loss_of_zero), problem.dtype, rates)
    best = min(tried, key=lambda rate: tried[rate])
    ordered = np.array(sorted(tried))
    # This run may warn that its samples are too few.
    return OptimalRate(best, after(best, throw=True), ordered, np.array([tried[rate] for rate in ordered]))


# Largest power of 2, or of 1/2, in the search for rates, and octaves of the grid, each in quarters.
FARTHEST, OCTAVES = 30, 6


def _search(loss: Callable[[float], float], start: float, dtype: Any, rates: Sequence[float] | None) -> None:
    """Evaluates losses until the lowest is found."""
    from scipy.optimize import minimize_scalar

    grid = _grid(lambda rate: loss(rate) < start) if rates is None else _read(rates)
    while True:
        losses = [loss(rate) for rate in grid]
        k = int(np.argmin(losses))
        if not losses[k] < start:
            raise ValueError(f"no rate from {grid[0]:.3g} to {grid[-1]:.3g} lowers the loss, {start:.3g} at the start")
        if 0 < k < len(grid) - 1:
            break
        if rates is not None:
            raise ValueError(
                f"the lowest loss is at the {'last' if k else 'first'} rate, {grid[k]:.3g}: give "
                f"{'larger' if k else 'smaller'} rates as well"
            )
        grid = np.concatenate([grid[:-1] * grid[0] / grid[-1], grid])
    accuracy = float(jnp.finfo(dtype).eps) ** 0.5
    low, high = np.log(grid[k - 1] / grid[k]), np.log(grid[k + 1] / grid[k])
    minimize_scalar(
        lambda shift: loss(grid[k] * np.exp(shift)), bounds=(low, high), method="bounded", options={"xatol": accuracy}
    )


def _grid(lowers: Callable[[float], bool]) -> np.ndarray:
    """Rates up to the first power of 2 that does not lower the loss."""
    power = 0
    while not lowers(2.0**power):
        power -= 1
        if power < -FARTHEST:
            raise ValueError(f"no rate down to 2^-{FARTHEST} lowers the loss: training starts at a minimum")
    while lowers(2.0**power):
        power += 1
        if power > FARTHEST:
            raise ValueError(
                f"the loss stays below its value at the start for all rates up to 2^{FARTHEST}: give rates="
            )
    return 2.0 ** (power - np.arange(4 * OCTAVES, -1, -1) / 4)


def _read(rates: Any) -> np.ndarray:
    """Validates the given rates."""
    grid = real_numbers(rates, "rates")
    fine = grid.ndim == 1 and len(grid) >= 3 and bool(np.all(np.isfinite(grid)))  # NaN passes the checks below
    if not fine or np.any(grid <= 0) or np.any(np.diff(grid) <= 0):
        raise ValueError(f"rates must be three or more finite numbers > 0, ascending; got {grid.tolist()}")
    return grid
