"""The third verb: one problem per cell of a grid."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .._checks import describe, require_size
from .._dynamics import AbstractDynamics
from .._problem import Problem
from .._solve import read_times
from ..observe import check_observables, loss, Observable
from ._axes import Axis, groups, read_axes, Zip
from ._compile import compiled_ahead
from ._execute import Program, run_group, Timed, trace_group
from ._store import check_store, LANE_VARIABLES, to_dataset, write


if TYPE_CHECKING:
    import xarray


def sweep(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    dynamics: AbstractDynamics,
    ts: Any,
    *,
    observe: Observable | Sequence[Observable] = (loss(),),
    store: str | os.PathLike | None = None,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
    executor: Any = None,
    resume: bool = True,
    retry_failed: bool = False,
    progress: bool = True,
) -> "xarray.Dataset":
    """Solves one problem per cell of a grid of named axes.

    Arguments:
        problem_fn: makes the problem of a cell; its arguments are the names of the axes.
        axes: values by name, all combined; or `Zip(...)`, whose axes advance together; or a list of such dicts and
            Zips. Floats, arrays and ranges are traced and batched; ints, strings, bools and callables in a list are
            static: one compilation per combination of them.
        dynamics, ts, observe: as for `solve`; ts is 1-D.
        store: where to write a Zarr v3 store, readable with `xarray.open_zarr(store)`.
        batch_size: lanes run together; None chooses.
        devices, executor, retry_failed: reserved; this version runs on the default device, in this process.
        resume: reserved; an existing store is refused.
        progress: whether to show a progress bar on standard error.

    Returns:
        An `xarray.Dataset` with the axes in order, then `t`, then the observable's dimensions. Per lane `result`
        (codes, named in its attributes), `steps`, `t_end` and `wall`. A lane never raises: failed lanes hold NaN from
        where they failed.

    Raises:
        ValueError, TypeError: axes, ts, observables or options are not as above; an observable's shape differs between
            static combinations.
        NotApplicable: the dynamics is a closed form for another kind of problem.
        FileExistsError: the store exists.
    """
    if not callable(problem_fn):
        raise TypeError(f"problem_fn must return the problem of a cell, got {describe(problem_fn)}")
    if devices is not None or executor is not None or retry_failed:
        raise ValueError("devices=, executor= and retry_failed= are not supported in this version; leave them out")
    if not isinstance(dynamics, AbstractDynamics):
        raise TypeError(f"dynamics must be such as GradientFlow(), got {describe(dynamics)}")
    del resume
    grid = read_axes(axes)
    observables = check_observables(observe, dynamics)
    _check_names(grid, observables)
    times = jnp.atleast_1d(read_times(ts, dynamics, jnp.result_type(float)))
    if batch_size is not None:
        batch_size = require_size(batch_size, "batch_size")
    path = check_store(store)
    plan = groups(grid)
    batches: list[Timed] = []
    with _Bar(sum(len(group.lanes) for group in plan), shown=progress) as bar:
        trace = lambda group: trace_group(problem_fn, group, dynamics, observables, times, batch_size)
        shapes = _Shapes([m.name for axis in grid for m in axis.members if not m.traced])
        for program, compiled in compiled_ahead(map(trace, plan), shapes.check):
            batches += run_group(program, compiled, bar.advance)
    dataset = to_dataset(grid, observables, dynamics, np.asarray(times), batches)
    if path is not None:
        write(dataset, path)
    return dataset


def _check_names(grid: tuple[Axis, ...], observables: Sequence[Observable]) -> None:
    """Raises ValueError where an axis is called like something else in the dataset."""
    names = {member.name for axis in grid for member in axis.members} | {axis.dim for axis in grid}
    taken = (
        {"t", *LANE_VARIABLES} | {item.name for item in observables} | {d for item in observables for d in item.dims}
    )
    if names & taken:
        raise ValueError(
            f"axes may not be called {sorted(names & taken)}: the dataset has something else of that name; rename the "
            "arguments of problem_fn"
        )


class _Shapes:
    """Refuses, before it is compiled, a program whose observables have other shapes than those of the first."""

    def __init__(self, static: list[str]):
        self._static = static
        self._first: dict[str, tuple[int, ...]] = {}

    def check(self, program: Program) -> None:
        for name, info in program.lowered.out_info.observed.items():
            expected = self._first.setdefault(name, info.shape[1:])
            if info.shape[1:] != expected:
                raise ValueError(
                    f"observable {name!r} has shapes {sorted({expected, info.shape[1:]})} along the axes "
                    f"{self._static}; observe something whose shape does not depend on them, or sweep them one at a "
                    "time"
                )


class _Bar:
    """A progress bar in lanes done, or nothing."""

    def __init__(self, total: int, *, shown: bool):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(file=sys.stderr), disable=not shown)
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def advance(self, lanes: int) -> None:
        self._progress.advance(self._task, lanes)
