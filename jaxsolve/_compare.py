"""Solves one problem with several dynamics and compares the results."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._checks import describe
from ._core import AbstractDynamics, Problem, read_times, require_end, require_problem, resolve, Trajectory, View
from ._solve import solve
from .observe import loss, Observable, outputs


SAME = 1e-6  # relative tolerance on a time, which is a multiple of a step in float32


class Comparison(eqx.Module):
    """Trajectories of one problem under several dynamics, at the same times.

    Attributes:
        trajectories: the trajectory of each dynamics, by name, the reference first.
        errors: the error of every other dynamics, by name and observable: the largest difference from the reference
            over time, relative to the reference's largest value over time. A conserved quantity is a difference and may
            be 0, so its error is relative to the size of its terms if that is larger.
    """

    trajectories: dict[str, Trajectory]
    errors: dict[str, dict[str, Array]]

    @property
    def reference(self) -> str:
        """The name of the dynamics that the others are compared with."""
        # The name without errors: the order of a dictionary is lost when JAX flattens it.
        return next(name for name in self.trajectories if name not in self.errors)

    def __getitem__(self, name: str) -> Trajectory:
        if name not in self.trajectories:
            raise KeyError(f"{name!r} was not compared; compared: {list(self.trajectories)}")
        return self.trajectories[name]

    def distance(self, name: str, observable: str = "parameters") -> Float[np.ndarray, " times"]:
        """The distance from the reference at each time: the Euclidean norm of the difference, shape (times,).

        Arguments:
            name: the name of the dynamics.
            observable: an observable of all of them, such as `observe.parameters()` or `observe.outputs()`.

        Raises:
            KeyError: the dynamics was not compared, or the observable was not observed.
        """
        trajectory, reference = self[name], self[self.reference]
        # The reference also has the times of the other dynamics; equal times agree up to rounding.
        here, all_times = np.asarray(trajectory.ts), np.asarray(reference.ts)
        # The nearer of two neighbors, since equal times may have been rounded to either side.
        after = np.minimum(np.searchsorted(all_times, here), len(all_times) - 1)
        before = np.maximum(after - 1, 0)
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, and infinite times are equal
            rows = np.where(here - all_times[before] < all_times[after] - here, before, after)
        apart = np.asarray(trajectory[observable]) - np.asarray(reference[observable])[rows]
        return np.linalg.norm(apart.reshape(len(apart), -1), axis=1)

    def best(self, observable: str | None = None, *, slack: float = 1.1) -> str:
        """The name of the dynamics that describes the reference best: the nearest, or a cheaper one about as near.

        Of the dynamics whose error is at most `slack` times the smallest, it is the one with the fewest evaluations of
        the gradient. A run that does not count them ranks behind every run that does; closed forms need none.

        Arguments:
            observable: the observable whose errors decide; None takes the largest error of each dynamics.
            slack: a factor >= 1; 1 asks for the nearest, whatever its cost.

        Raises:
            KeyError: the observable was not observed.
            ValueError: slack is below 1, or no dynamics has a finite error.

        Example:
            >>> net = js.nets.TwoLayerLinear(
            ...     in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
            ... )
            >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
            >>> flows = [js.theory.TwoLayerLine(), js.GradientFlow(), js.MomentumFlow(tau=0.1)]
            >>> print(js.compare(problem, flows, [0.0, 1.0]).best())
            GradientFlow(Tsit5)
        """
        if not slack >= 1:
            raise ValueError(f"slack must be a number >= 1, got {slack}")
        sizes = {}
        for name, errors in self.errors.items():
            if observable is not None and observable not in errors:
                raise KeyError(f"{observable!r} was not observed; observed: {list(errors)}")
            judged = errors.values() if observable is None else [errors[observable]]
            sizes[name] = float(np.max([np.asarray(error) for error in judged]))  # NaN if one of them is
        known = {name: size for name, size in sizes.items() if np.isfinite(size)}
        if not known:
            raise ValueError(f"the errors of all dynamics are NaN or infinite: {sizes}")
        near = [name for name, size in known.items() if size <= slack * min(known.values())]

        def price(name: str) -> tuple[bool, int, float]:
            count = int(self[name].stats.gradient_evaluations)
            return count < 0, count, known[name]

        return min(near, key=price)

    def __repr__(self) -> str:
        lines = [f"Comparison with {self.reference}: largest error over time, relative to the largest value"]
        for name, errors in self.errors.items():
            lines.append(f"  {name}: " + ", ".join(f"{key} {float(value):.1e}" for key, value in errors.items()))
        for name, trajectory in self.trajectories.items():
            if trajectory.t_end < trajectory.ts[-1] * (1 - SAME):
                lines.append(f"  {name} ended at t = {float(trajectory.t_end):.4g}: later rows hold its state there")
        return "\n".join(lines)


def compare(
    problem: Problem,
    dynamics_list: Sequence[AbstractDynamics],
    ts: Any,
    *,
    observe: Observable | Sequence[Observable] = (loss(), outputs()),
) -> Comparison:
    """Solves one problem with several dynamics from the same start; the first is the reference.

    A dynamics that rounds times to its steps (`Descent`) is compared at the rounded times; two such dynamics, at times
    that are steps of both. Trajectories have one row per time, even if `ts` is a single time; the reference has a row
    for each time of all the others. After an `until` is met, rows hold the state at that event and are compared with
    the others at the requested times.

    Arguments:
        problem, ts, observe: as for `solve`; nothing may be traced.
        dynamics_list: at least two dynamics.

    Returns:
        A table: `table[name]` is the trajectory of one dynamics, `table.errors[name]` its largest distance from the
        reference by observable, and `table.distance(name)` its distance at each time.

    Raises:
        ValueError: fewer than two dynamics, or two that round the times differently.
        TypeError, NotApplicable, SolveError: as for `solve`.

    Example:
        >>> net = js.nets.TwoLayerLinear(in_size=1, width_size=4, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0))
        >>> problem = js.Problem(net, jnp.ones((1, 1)), jnp.ones((1, 1)))
        >>> print(js.compare(problem, [js.theory.TwoLayerLine(), js.GradientFlow()], [0.0, 1.0]))
        Comparison with TwoLayerLine: largest error over time, relative to the largest value
          GradientFlow(Tsit5): loss ..., outputs ...
    """
    if not isinstance(dynamics_list, Sequence):
        raise TypeError(f"dynamics_list must be a list of two or more dynamics, got {describe(dynamics_list)}")
    dynamics_list = list(dynamics_list)
    if len(dynamics_list) < 2:
        raise ValueError(f"compare needs at least two dynamics, got {len(dynamics_list)}")
    for dynamics in dynamics_list:
        if not isinstance(dynamics, AbstractDynamics):
            raise TypeError(f"dynamics must be such as GradientFlow(), got {describe(dynamics)}")
    require_problem(problem)
    wanted = jnp.atleast_1d(read_times(ts, problem.dtype))
    dynamics_list = [resolve(dynamics, problem, wanted) for dynamics in dynamics_list]
    names = _distinct([dynamics.name for dynamics in dynamics_list])
    first, *others = dynamics_list
    require_end(wanted, first)
    # The reference is observed in one run at the times that all others round to.
    rows = [first.times(dynamics.times(wanted)) for dynamics in others]
    # Sorted, each time once; `where` gives each dynamics its rows.
    union, where = np.unique(np.concatenate([np.asarray(row) for row in rows]), return_inverse=True)
    reference = solve(problem, first, union, observe=observe)
    scales = _scales(problem, observe)
    trajectories, errors = {names[0]: reference}, {}
    for name, dynamics, index in zip(names[1:], others, np.split(where, len(rows)), strict=True):
        trajectory = solve(problem, dynamics, reference.ts[index], observe=observe)
        if not np.allclose(trajectory.ts, reference.ts[index], rtol=SAME, atol=0):
            raise ValueError(
                f"{names[0]} and {name} both round times to their steps, to {_few(reference.ts[index])} and "
                f"{_few(trajectory.ts)}, but a comparison needs the same times: give times that are steps of both, or "
                "a flow first"
            )
        trajectories[name] = trajectory
        errors[name] = {
            key: _error(value, reference[key][index], scales.get(key, 0.0))
            for key, value in trajectory.observed.items()
        }
    return Comparison(trajectories, errors)


def _few(ts: Array) -> str:
    shown = [f"{float(t):.4g}" for t in ts[:4]]
    return ", ".join([*shown, *["..."] * (len(ts) > 4)])


def _scales(problem: Problem, observe: Observable | Sequence[Observable]) -> dict[str, Array]:
    """The initial size of the terms of each observable that is a difference, and may be too near 0 to scale errors."""
    start = View(problem, jnp.zeros((), problem.dtype), problem.params)
    items = (observe,) if isinstance(observe, Observable) else observe
    return {item.name: jnp.asarray(item.scale(start)) for item in items if item.scale is not None}


def _error(value: Array, reference: Array, scale: Array | float) -> Array:
    # NaN on both sides, such as the kernel within a class of one sample, is not an error.
    unknown = jnp.isnan(value) & jnp.isnan(reference)
    value, reference = (jnp.where(unknown, 0, side) for side in (value, reference))
    largest = jnp.maximum(jnp.max(jnp.abs(reference)), scale)
    return jnp.max(jnp.abs(value - reference)) / jnp.where(largest == 0, 1, largest)


def _distinct(names: list[str]) -> list[str]:
    """Numbers the names that appear more than once."""
    counts: dict[str, int] = {}
    distinct = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        distinct.append(name if names.count(name) == 1 else f"{name} #{counts[name]}")
    return distinct
