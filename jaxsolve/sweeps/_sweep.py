"""The third verb: one problem per cell of a grid."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import numpy as np

from .._dynamics import AbstractDynamics
from .._problem import Problem
from ..observe import loss, Observable
from ._axes import Zip
from ._cluster import Job, require_client, run_on
from ._compile import compiled_ahead
from ._devices import read_devices
from ._execute import Program, trace_group
from ._fit import Fitting
from ._hosts import Hosts, shared
from ._interrupt import Deferred
from ._manifest import plan_facts
from ._on_disk import OnDisk
from ._plan import read_plan
from ._progress import show_progress
from ._sink import AbstractHub, AbstractSink, Memory
from ._tally import Tally
from ._variables import failures


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
        batch_size: lanes run together, on all devices; None chooses, or takes that of the store. One that was chosen is
            halved, which the log tells, until a batch fits into memory.
        devices: those of this process to run on, such as `jax.local_devices()[:2]`; None takes all. Results agree to
            the integrator's tolerance whatever their number.
        executor: where lanes run. None: in this process. A `dask.distributed.Client`: on the workers of its cluster,
            which write their chunks of the store themselves, so it must be a folder that all of them see; without a
            store they send their rows back. `Hosts()`: in all processes of `jax.distributed`; it needs a store.
        resume: whether to carry on a store that an earlier run of the same plan left: only lanes that are missing run,
            with the bits that they would have had. A store that is complete is returned without running anything.
        retry_failed: whether lanes of the store that failed run again, too.
        progress: whether to show lanes done, their rate, the time left and failures on standard error: a bar, or a line
            now and then where that is no terminal.

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
        RuntimeError: the cluster went away, or lost worker after worker to one batch. What has run is kept.
        KeyboardInterrupt: after the batch that was running is in the store.

    Warns:
        UserWarning: the store was begun with another batch size, on another device, or by other versions.
    """
    if isinstance(executor, Hosts):
        if store is None:
            raise ValueError("the processes of Hosts() meet in a store: give store=, a folder that all of them see")
    elif executor is not None:
        require_client(executor)
        if devices is not None:
            raise ValueError("devices= are those of this process; the workers of a cluster run on all of theirs")
    where = read_devices(devices)
    if retry_failed and (store is None or not resume):
        raise ValueError("retry_failed=True runs failed lanes of a store again: give store=, and leave resume=True")
    chosen = read_plan(problem_fn, axes, dynamics, ts, observe=observe, batch_size=batch_size)
    frame = chosen.frame
    # What is only in memory is lost with the process, so an interruption need not wait.
    signals = Deferred(active=store is not None)
    elsewhere = not (executor is None or isinstance(executor, Hosts))
    hub: AbstractHub = Memory(frame, elsewhere=elsewhere)
    sink: AbstractSink = hub
    if store is not None:
        plan = plan_facts(problem_fn, frame)
        sink = hub = OnDisk(store, frame, plan, resume=resume, retry_failed=retry_failed, elsewhere=elsewhere)
        if isinstance(executor, Hosts):
            sink = shared(hub, frame, signals)
    with signals, sink:
        waiting = [group for group in chosen.groups if sink.missing[group.lanes].any()]
        chosen.check(waiting)
        trace = lambda group: trace_group(
            problem_fn, group, dynamics, tuple(frame.observables), chosen.times, sink.batch_size(group), where
        )
        # Of a store that several processes fill, what this one has to do may be known only once it is there.
        programs = (trace(group) for group in waiting if sink.missing[group.lanes].any())
        if executor is None or isinstance(executor, Hosts):
            _run(programs, sink, signals, progress)
        else:
            with show_progress(hub.missing.size, shown=progress) as bar:
                bar.skip(int(np.sum(~hub.missing)))

                def tell(lanes: int, failed: int) -> None:
                    bar.advance(lanes)
                    bar.fail(failed)

                run_on(executor, Job(problem_fn, frame, hub.outlet), programs, hub, signals, tell)
        return sink.dataset()


def _run(programs: Iterable[Program], sink: AbstractSink, signals: Deferred, progress: bool) -> None:
    """Runs the lanes that a sink misses."""

    def check(program: Program) -> None:
        signals.stop_here(sink)
        sink.expect(program)

    def stop() -> bool:
        signals.tell()
        return signals.asked is not None

    with show_progress(sink.missing.size, shown=progress) as bar:
        bar.skip(int(np.sum(~sink.missing)))
        for program, compiled in compiled_ahead(programs, check):
            fitting, tally = Fitting(program, compiled, sink.expect), Tally(program)
            for done in fitting.run(sink.missing, bar.advance, stop):
                sink.add(done)
                tally.add(done)
                bar.fail(failures(done))
            tally.report()
            signals.stop_here(sink)
        signals.stop_here(sink)
