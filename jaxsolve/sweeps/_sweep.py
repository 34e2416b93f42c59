"""The third verb: one problem per cell of a grid."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .._dynamics import AbstractDynamics
from .._problem import Problem
from ..observe import loss, Observable
from ._axes import Group, Zip
from ._compile import compiled_ahead
from ._execute import Program, run_group, trace_group
from ._interrupt import Deferred
from ._manifest import plan_facts
from ._on_disk import OnDisk
from ._plan import read_plan
from ._progress import show_progress
from ._sink import AbstractSink, Memory
from ._variables import FINE


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
        store: folder of a Zarr v3 store that is filled while the sweep runs. `xarray.open_zarr(store)` opens it at any
            time; lanes that have not run are NaN, and -1 in `result` and `steps`. Ctrl-C and SIGTERM finish the running
            batch first.
        batch_size: lanes run together; None chooses, or takes that of the store.
        devices, executor: reserved; this version runs on the default device, in this process.
        resume: whether to carry on a store that an earlier run of the same plan left: only lanes that are missing run,
            with the bits that they would have had. A store that is complete is returned without running anything.
        retry_failed: whether lanes of the store that failed run again, too.
        progress: whether to show a progress bar on standard error.

    Returns:
        An `xarray.Dataset` with the axes in order, then `t`, then the observable's dimensions. Per lane `result`
        (codes, named in its attributes), `steps`, `t_end` and `wall`. A lane never raises: failed lanes hold NaN from
        where they failed.

    Raises:
        ValueError, TypeError: axes, ts, observables or options are not as above; an observable's shape differs between
            static combinations.
        NotApplicable: the dynamics is a closed form for another kind of problem.
        ValueError: the store was made by another plan; the message shows where they differ.
        FileExistsError: the store is a file, or a folder of something else, or exists and `resume` is false.
        BlockingIOError: another process is writing to the store; the message says which.
        OSError: the store cannot be written to, or the disk is full. What has run is kept.
        KeyboardInterrupt: after the batch that was running is in the store.

    Warns:
        UserWarning: the store was begun with another batch size, on another device, or by other versions.
    """
    if devices is not None or executor is not None:
        raise ValueError("devices= and executor= are not supported in this version; leave them out")
    if retry_failed and (store is None or not resume):
        raise ValueError("retry_failed=True runs failed lanes of a store again: give store=, and leave resume=True")
    chosen = read_plan(problem_fn, axes, dynamics, ts, observe=observe, batch_size=batch_size)
    frame = chosen.frame
    sink: AbstractSink = Memory(frame)
    if store is not None:
        plan = plan_facts(problem_fn, frame)
        sink = OnDisk(store, frame, plan, resume=resume, retry_failed=retry_failed)
    # What is only in memory is lost with the process, so an interruption need not wait.
    with Deferred(active=store is not None) as signals, sink:
        waiting = [group for group in chosen.groups if sink.missing[group.lanes].any()]
        chosen.check(waiting)
        trace = lambda group: trace_group(
            problem_fn, group, dynamics, tuple(frame.observables), chosen.times, sink.batch_size(group)
        )
        _run(map(trace, waiting), sink, signals, progress)
        return sink.dataset()


def _run(programs: Iterable[Program], sink: AbstractSink, signals: Deferred, progress: bool) -> None:
    """Runs the lanes that a sink misses."""

    def check(program: Program) -> None:
        signals.stop_here(sink)
        sink.expect(program)

    with show_progress(sink.missing.size, shown=progress) as bar:
        bar.skip(int(np.sum(~sink.missing)))
        for program, compiled in compiled_ahead(programs, check):
            for batch in _batches(program, sink.missing):
                signals.stop_here(sink)
                for done in run_group(batch, signals.listening(compiled), bar.advance):
                    sink.add(done)
                    bar.fail(int(np.sum(np.asarray(done.rows.result) >= FINE)))
        signals.stop_here(sink)


def _batches(program: Program, missing: np.ndarray) -> Iterator[Program]:
    """A program cut into one for each batch of the lanes that are missing, all of the same size."""
    group = program.group
    cells = {name: np.asarray(values) for name, values in group.cells.items()}  # cheap to take rows of
    left = np.flatnonzero(missing[group.lanes])
    for start in range(0, len(left), program.size):
        chosen = left[start : start + program.size]
        rows = {name: jnp.asarray(values[chosen]) for name, values in cells.items()}
        yield program._replace(group=Group(group.static, group.lanes[chosen], rows))
