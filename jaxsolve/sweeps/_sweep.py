"""`sweep`: one problem per cell of a grid. It plans, compiles, runs batches and fills a store, in this order."""

import contextlib
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TYPE_CHECKING

import jax
import numpy as np

from .._checks import require_flag, see
from .._core import AbstractDynamics, Problem
from .._results import FIRST_FAILURE
from ..observe import loss, Observable
from ._progress import Progress, Signals
from .cluster._dask import require_client, run_on
from .grid._axes import Zip
from .grid._blocks import GridBlocks
from .planning._differences import require_same_plan
from .planning._plan import Plan, read_plan
from .running._builder import read_devices
from .running._execute import compiled_ahead, ShrinkingProgram, TracedGroup
from .store._files import MANIFEST, OURS
from .store._layout import read_manifest
from .store._memory import MemoryStore
from .store._zarr import HeldStore, JoinedStore


if TYPE_CHECKING:
    import xarray

LOW_TRUST = 2  # digits; with fewer, the error would be visible in a figure


class Hosts:
    """The processes of `jax.distributed.initialize` as the executor of a sweep: `sweep(..., executor=Hosts())`.

    Each process calls the sweep with the same arguments and a store that all of them see, and runs its share of the
    lanes on its own devices. Chunks are dealt out in turn, starting at another process for each static combination.
    Process 0 holds the store and keeps other writers out. Every process returns the whole dataset once it is complete.
    Without `jax.distributed`, one process runs all lanes.

    Example:
        >>> data = js.sweep(problem, axes, flow, ts, store="run.zarr", executor=js.sweeps.Hosts())  # doctest: +SKIP
    """


def sweep(
    problem_fn: Callable[..., Problem],
    axes: Mapping[str, Any] | Zip | Sequence[Mapping[str, Any] | Zip],
    dynamics: AbstractDynamics | Callable[..., AbstractDynamics],
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
        problem_fn: returns the problem of a cell; its arguments are the names of the axes, except those that only the
            dynamics depends on.
        axes: values by name, all combined; or `Zip(...)`, whose axes advance together; or a list of such dicts and
            Zips. Floats, arrays and ranges are traced and batched; ints, strings, bools and callables in a list are
            static: one compilation per combination of them.
        dynamics: as for `solve`, or a function of axes that returns it, such as
            `lambda rate: js.Descent(optax.sgd(rate))`. With an axis of strings, it can choose among several.
        ts, observe: as for `solve`; ts is 1-D.
        store: folder of a Zarr v3 store that is filled while the sweep runs. `xarray.open_zarr(store)` opens it at any
            time; lanes that have not run are NaN, and -1 in `result` and `steps`. After Ctrl-C or SIGTERM, the running
            batch is finished first.

    Other Arguments:
        batch_size: number of lanes that run together, over all devices; None chooses it, or takes the store's. It is
            halved whenever a batch does not fit into memory; the log says so.
        devices: devices of this process to run on, such as `jax.local_devices()[:2]`; None takes all. Results on
            different numbers of devices agree to the integrator's tolerance.
        executor: where lanes run. None: in this process. A `dask.distributed.Client`: on the workers of its cluster.
            They write their chunks of the store themselves, so it must be a folder that all of them see; without a
            store, they send their rows back. `js.sweeps.Hosts()`: in all processes of `jax.distributed`; this needs a
            store.
        resume: whether to continue a store that an earlier run of the same plan left. Only missing lanes run, and they
            get the bits that they would have had then. A complete store is returned without running anything.
        retry_failed: whether to run failed lanes of the store again as well.
        progress: whether to show lanes done, their rate, the time left and failures on standard error: as a bar in a
            terminal, as a line now and then elsewhere.

    Returns:
        An `xarray.Dataset` with the axes in order, then `t`, then the observable's dimensions. Each lane also has
        `result` (codes, named in its attributes), `steps`, `t_end`, `wall`, and `trust` if the dynamics gives
        certificates. A lane never raises: a failed lane holds NaN from the time at which it failed.

    Raises:
        ValueError, TypeError: axes, ts, observables or options are not as above; the shape or dtype of an observable
            differs between static combinations.
        NotApplicable: the dynamics is a closed form for another kind of problem.
        ValueError: the store was made by another plan (the message shows the differences) or in an earlier format; or
            it was begun with other versions of libraries, and one of its lanes, run again, differs.
        FileExistsError: the store is a file or another kind of folder, or it exists and `resume` is false.
        BlockingIOError: another process is writing to the store; the message says which.
        OSError: the store cannot be written to, or the disk is full. What has run is kept.
        RuntimeError: the cluster is gone, or one batch killed several workers in a row. What has run is kept.
        KeyboardInterrupt: the sweep was interrupted; it raises after the running batch is in the store.

    Warns:
        UserWarning: the store was begun with another batch size, on another device, or with other versions; or the
            certificates of some lanes vouch for fewer than two digits.

    Example:
        >>> def problem(gamma, seed):
        ...     scaling = js.nets.Scaling.ntk(gamma)
        ...     net = js.nets.TwoLayerLinear(in_size=2, width_size=8, scaling=scaling, key=jax.random.key(seed))
        ...     return js.Problem(net, jnp.eye(2), jnp.ones((2, 1)))
        >>> axes = dict(gamma=[0.1, 1.0, 10.0], seed=range(2))
        >>> data = js.sweep(problem, axes, js.GradientFlow(), [0.0, 1.0], progress=False)
        >>> dict(data["loss"].sizes)
        {'gamma': 3, 'seed': 2, 't': 2}
    """
    for name, flag in (("resume", resume), ("retry_failed", retry_failed), ("progress", progress)):
        require_flag(flag, name)
    hosts = isinstance(executor, Hosts)
    if hosts and store is None:
        raise ValueError("the processes of Hosts() share a store: give store=, a folder that all of them can access")
    elsewhere = not (executor is None or hosts)
    if elsewhere:
        require_client(executor)
        if devices is not None:
            raise ValueError("devices= are those of this process; the workers of a cluster run on all of theirs")
    where = read_devices(devices)
    if retry_failed and (store is None or not resume):
        raise ValueError("retry_failed=True runs failed lanes of a store again: give store=, and leave resume=True")
    plan = read_plan(problem_fn, axes, dynamics, ts, observe=observe, batch_size=batch_size)
    # Without a store, the results are lost with the process anyway, so an interrupt need not wait.
    signals = Signals(active=store is not None)

    @functools.lru_cache(maxsize=1)  # a new store needs the first program before it runs
    def trace(number: int, way: int | None, size: int | None) -> TracedGroup:
        return plan.trace(plan.groups[number]._replace(way=way), where, size)

    place: Any = contextlib.nullcontext(MemoryStore(plan))
    if store is not None:
        first = lambda: trace(0, None, plan.batch_size)
        count = 0 if elsewhere else len(where)
        place = HeldStore(store, plan, first, resume=resume, retry_failed=retry_failed, devices=count)
    with signals, shared(place) if hosts else place as lanes:
        missing = lanes.missing
        left = lambda: lanes.chunks.missing if hosts else lanes.missing  # for all processes together
        waiting = [number for number, group in enumerate(plan.groups) if missing[group.lanes].any()]
        if store is None:
            # A new store makes this check itself; a resumed one was checked when it was new.
            plan.check()

        def traced(number: int) -> Iterator[TracedGroup]:
            size = lanes.plan.size_of(plan.groups[number])
            if elsewhere:  # workers measure which way each lane goes
                yield trace(number, None, size)
                return
            for group, mine in plan.ways(plan.groups[number], where).parts(lanes.missing):
                yield trace(number, group.way, size).of(np.flatnonzero(mine[group.lanes]))

        programs = itertools.chain.from_iterable(map(traced, waiting))
        with Progress(left(), shown=progress) as bar:
            if executor is None or hosts:
                for program in compiled_ahead(programs):
                    for batch in ShrinkingProgram(program).run(lanes.missing, signals.noted):
                        lanes.write(batch)
                        bar.add(len(batch.lanes), batch.failed)
                    signals.check(left())
            else:
                run_on(executor, programs, lanes, signals, bar.add)
        if hosts:
            lanes.chunks.wait(np.flatnonzero(left()), lambda: signals.check(left()))
            if isinstance(lanes, HeldStore):
                lanes.record_hosts()
        data = lanes.dataset()
    if "trust" in data:
        # Lanes that have not run (-1) or have failed are left out: their result says so.
        trust = data["trust"].values[(data["result"].values >= 0) & (data["result"].values < FIRST_FAILURE)]
        low = trust[trust < LOW_TRUST]
        if low.size:
            warnings.warn(
                f"{low.size} of {data['trust'].size} lanes can be trusted to fewer than {LOW_TRUST} digits, the worst "
                f"to {low.min():.1f} (the variable 'trust' says which): lower rtol, or choose another "
                f"integrator{see('low-trust')}",
                stacklevel=2,
            )
    return data


@contextlib.contextmanager
def shared(held: HeldStore) -> Iterator[HeldStore | JoinedStore]:
    """This process's share of a store that only process 0 opens; the others wait until it has done so or failed."""
    index, path, every = jax.process_index(), held.path, np.arange(held.plan.lanes)
    with contextlib.ExitStack() as stack:
        try:
            store = JoinedStore(path, held.plan, every, index=index) if index else stack.enter_context(held)
        except BaseException:
            # The other processes wait for this call: without it, they would hang when this one raises.
            _announced(False)
            raise
        if not _announced(True):
            raise RuntimeError(f"process 0 did not begin to fill {path}; see the error of that process")
        if index:
            stack.enter_context(store)
            require_same_plan(path, path / OURS / MANIFEST, read_manifest(path)["plan"], held.plan)
        store.mine = dealt(store.plan, store.chunks.blocks, index, jax.process_count())
        yield store


def dealt(plan: Plan, blocks: GridBlocks, index: int, count: int) -> np.ndarray:
    """A flag for each cell of the grid: whether process `index` of `count` runs this lane."""
    owner = np.zeros(len(blocks), int)
    for turn, group in enumerate(plan.groups):
        numbers = np.unique(blocks.of(group.lanes))
        owner[numbers] = (turn + np.arange(len(numbers))) % count
    return owner[blocks.of(np.arange(plan.lanes))] == index


def _announced(begun: bool) -> bool:
    """True if process 0 has begun. All processes call this once and wait for each other here."""
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.int32(begun)))
