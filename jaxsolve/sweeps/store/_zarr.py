"""A sweep's store on disk, for the process that holds it and for others that write to it."""

import abc
import contextlib
import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from ..._checks import require_path
from .._progress import Stopped
from ..planning._differences import ANYTHING, require_same_plan
from ..planning._identity import plan_facts
from ..planning._plan import Plan
from ..running._execute import TracedGroup
from ..running._runner import Batch, Origin
from . import _layout
from ._again import require_same_lane
from ._chunks import Chunks
from ._files import (
    explained,
    ID,
    LOCK,
    Lock,
    MANIFEST,
    OURS,
    READ_ONLY,
    remove_partial,
    require_own,
    write_json,
    write_whole,
    WRITER,
)
from ._load import load
from ._memory import changes, credited, joined, run_facts, trimmed


if TYPE_CHECKING:
    import xarray

log = logging.getLogger("jaxsolve")

HOSTS = "hosts"  # the folder where processes that do not hold the store record where and how they run lanes


class AbstractOnDisk(abc.ABC):
    """A Zarr store, for a process that writes chunks of it. It is a context; `chunks` is set on entering."""

    path: Path
    plan: Plan  # with the batch sizes recorded in the store
    chunks: Chunks
    mine: Any = True  # or flags of the lanes that this process runs, if others run the rest

    @property
    def writes(self) -> bool:
        """True if this process may write; False for a complete store that it can only read."""
        return True

    @property
    def missing(self) -> np.ndarray:
        """A flag for each cell of the grid: whether this process has yet to run this lane."""
        return self.chunks.missing & self.mine

    @abc.abstractmethod
    def write(self, batch: Batch) -> None:
        """Takes some lanes, in any order."""

    def dataset(self) -> "xarray.Dataset":
        if self.writes:
            require_own(self.path, self.chunks.id)
        return trimmed(load(self.path))

    def take_up(self, layout: _layout.Layout) -> None:
        """Checks the names in a layout, and adopts its batch sizes."""
        _layout.require_names(self.plan, layout)
        known = layout.manifest["batch_size"]
        sizes = {group.name: known["used"].get(group.name, known["asked"]) for group in self.plan.groups}
        self.plan = dataclasses.replace(self.plan, sizes=sizes)

    def flush_after(self, error: Any) -> None:
        """Writes unfinished chunks, except after a second signal, when there is no time, or an error of writing."""
        if not isinstance(error, OSError | KeyboardInterrupt) or isinstance(error, Stopped):
            self.chunks.flush()


class HeldStore(AbstractOnDisk):
    """Keeps the lanes in a Zarr store, chunk by chunk as they finish, and continues where another process stopped.

    It is a context that locks the store against other processes. Beside the Zarr arrays, the folder `_jaxsolve` has the
    manifest and the lock. A new store learns its variables from `first`, which traces the program of a group. `devices`
    is the number of devices that share a batch, 0 if lanes run in other processes.

    Raises and warns on entering, as `sweep` documents; an invalid path raises immediately.
    """

    def __init__(
        self,
        path: Any,
        plan: Plan,
        first: Callable[[], TracedGroup],
        *,
        resume: bool = True,
        retry_failed: bool = False,
        devices: int = 1,
    ):
        require_path(path, "store", "the path of a folder such as 'run.zarr'")
        if "://" in os.fspath(path):
            raise ValueError(f"store must be a folder of this machine, got {path}; mount it, or copy the store later")
        _layout.require_storable(plan)
        self.path = Path(path).expanduser().absolute()
        self.plan = plan
        self._first, self._resume, self._retry_failed, self._devices = first, resume, retry_failed, devices
        self._lock = Lock(self.path)
        self._file = self.path / OURS / MANIFEST
        self._manifest: dict[str, Any] = {}

    def __enter__(self) -> "HeldStore":
        with explained(self.path, "nothing has run"):
            _layout.require_ours(self.path, resume=self._resume)
            self._made = not self.path.exists()  # whether this process created the folder
            try:
                (self.path / OURS).mkdir(parents=True, exist_ok=True)
                self._lock.acquire()
            except OSError as error:
                # A complete store can be read without the lock.
                if error.errno not in READ_ONLY or not _layout.has_manifest(self.path):
                    raise
        try:
            if _layout.has_manifest(self.path):
                self._open()
            else:
                self._begin()
        except BaseException:
            self._undo()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.flush_after(error)
        finally:
            self._lock.release()

    @property
    def writes(self) -> bool:
        return self._lock.held

    def write(self, batch: Batch) -> None:
        if batch.origin is not None:
            self._note(batch.origin, batch.origin.size)
        self.chunks.write(batch)

    def record(self, origin: Origin, lanes: int) -> None:
        """Records where and how another process reports having written some lanes; 0 if it does not say how many."""
        used, run = self._manifest["batch_size"]["used"], self._manifest["runs"][-1]
        workers = run.setdefault("workers", {})
        workers[origin.where] = workers.get(origin.where, 0) + lanes
        run["device"] = joined(run.get("device"), origin.device)
        self._note(origin, min(origin.size, used.get(origin.group, origin.size)))

    def record_hosts(self) -> None:
        """Records the reports that the processes of `Hosts` have left; their lanes are on disk."""
        files = sorted((self.path / OURS / HOSTS).glob("*.json"))
        for file in files:
            for facts in json.loads(file.read_text()):
                self.record(Origin(**facts), 0)
        if files:
            self._save()
        for file in files:
            file.unlink()

    def confirm(self, promised: np.ndarray, check: Callable[[], None]) -> None:
        """Waits for the lanes that other processes, which have stopped, report as written.

        `promised` has a flag for each cell of the grid; `check` is called now and then. Raises OSError if some do not
        arrive.
        """
        if promised.any():
            self._save()
        self.chunks.wait(np.flatnonzero(promised), check, _layout.PATIENCE)
        lost = int(np.sum(promised & self.missing))
        if lost:
            raise OSError(
                f"{lost} lanes that other processes wrote to {self.path} are missing: a store that several processes "
                "fill must be a folder that all of them can access"
            )
        # Also take lanes of tasks whose end was not awaited.
        self.chunks.wait(np.flatnonzero(self.missing), check, patience=0.0)

    def _begin(self) -> None:
        """Makes a store in which nothing has run. Readers see no store until its last file is there."""
        self.plan.check()
        program = self._first()
        facts = plan_facts(self.plan)
        labels = credited({}, program.origin) if self._devices else {}
        with explained(self.path, "nothing has run"):
            run = run_facts(elsewhere=not self._devices)
            layout = _layout.new_layout(self.plan, facts, program, labels, run)
            remove_partial(self.path)
            write_whole(self.path / OURS / ID, layout.manifest["id"].encode())
            write_json(self._file, layout.manifest)
            self._restore(layout)
        self.chunks = Chunks(self.path, layout)

    def _open(self) -> None:
        """Opens an existing store: checks it, and finds the lanes that have run."""
        layout = _layout.read_layout(self.path)
        _layout.require_format(self.path, layout)
        known = layout.manifest["plan"]
        facts = require_same_plan(self.path, self._file, known, self.plan)
        self.take_up(layout)
        with explained(self.path):
            self._restore(layout)
        chunks = self.chunks = Chunks(self.path, layout)
        if self._lock.held:
            self.record_hosts()
        absent = chunks.look(range(len(chunks.blocks)))
        if known["versions"] != facts["versions"]:  # their programs cannot be compared
            require_same_lane(chunks, self.plan, known["versions"], facts["versions"])
            known |= {key: facts[key] for key in ("programs", "versions") if known[key] != ANYTHING}
            if self._lock.held:
                self._save()
        again = self._retry_failed and chunks.failed
        if again or np.any(chunks.missing):
            with explained(self.path):
                if not self._lock.held:
                    self._lock.acquire()  # raises the same error as on entering
                if again:
                    chunks.look(sorted(again), forget_failed=True)
                self._carry_on(absent)

    def _carry_on(self, absent: list[int]) -> None:
        remove_partial(self.path)
        self.chunks.drop(absent)
        run = run_facts(elsewhere=not self._devices)
        different = changes(self._manifest["runs"][-1], run)
        size, used = self.plan.batch_size, set(self._manifest["batch_size"]["used"].values())
        if size is not None:
            each = self._devices or 1
            size = -(-min(size, len(self.plan.groups[0].lanes)) // each) * each
            if used - {size}:
                different.append(f"batch size: {sorted(used)} before, {size} now")
        if different:
            warnings.warn(
                f"{self.path} was begun under other conditions, so results agree to the integrator's tolerance, but "
                f"not to the last bit: {'; '.join(different)}",
                stacklevel=5,
            )
        self._manifest["runs"].append(run)
        self._save()
        log.info("%s: %d of %d lanes are left to run", self.path, int(self.missing.sum()), self.missing.size)

    def _restore(self, layout: _layout.Layout) -> None:
        self._manifest = layout.manifest
        if self._lock.held:
            if not (self.path / OURS / ID).exists():
                write_whole(self.path / OURS / ID, layout.manifest["id"].encode())
            _layout.restore(self.path, _layout.skeleton(self.plan, layout))

    def _note(self, origin: Origin, size: int) -> None:
        """Adds to the manifest and the attributes where and how lanes ran."""
        attributes, used = self._manifest["attributes"], self._manifest["batch_size"]["used"]
        sizes = sorted({*({**used, origin.group: size}.values())})
        said = credited(attributes, origin) | {"batch_size": sizes if len(sizes) > 1 else sizes[0]}
        relabelled = not said.items() <= attributes.items()
        if used.get(origin.group) == size and not relabelled:
            return
        used[origin.group] = size
        attributes |= said
        with explained(self.path):
            self._save()
            if relabelled:
                _layout.relabel(self.path, attributes)

    def _save(self) -> None:
        """Writes the manifest."""
        require_own(self.path, self._manifest["id"])
        write_json(self._file, self._manifest)

    def _undo(self) -> None:
        """Removes the files of a store that has not begun, and releases the lock."""
        if self._lock.held and not _layout.has_manifest(self.path):
            with contextlib.suppress(OSError):
                remove_partial(self.path)
                for name in (ID, WRITER, LOCK):  # the lock last: without its file, another process may take it
                    (self.path / OURS / name).unlink(missing_ok=True)
                (self.path / OURS).rmdir()
                if self._made:
                    self.path.rmdir()
        self._lock.release()


class JoinedStore(AbstractOnDisk):
    """A store that another process holds, to which this one writes whole chunks.

    `lanes` are the flat indices that it may be asked for. `index` is the number of this process among those of `Hosts`,
    which leave reports for the holder; None if the caller reports. `identity` is the store's; None accepts any.
    """

    def __init__(
        self, path: Path, plan: Plan, lanes: np.ndarray, *, index: int | None = None, identity: str | None = None
    ):
        self.path, self.plan, self._lanes, self._index, self._identity = path, plan, lanes, index, identity
        self._origins: list[Origin] = []

    def __enter__(self) -> "JoinedStore":
        layout = _layout.await_layout(self.path)
        if self._identity is not None:
            require_own(self.path, self._identity)
        self.take_up(layout)
        self.chunks = Chunks(self.path, layout)
        # A lost process may have written some of these lanes.
        self.chunks.look(map(int, np.unique(self.chunks.blocks.of(self._lanes))))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.flush_after(error)

    def write(self, batch: Batch) -> None:
        # Report before the chunk is written: the holder may close the store after the last chunk.
        if self._index is not None and batch.origin is not None and batch.origin not in self._origins:
            self._origins.append(batch.origin)
            require_own(self.path, self.chunks.id)
            write_json(self.path / OURS / HOSTS / f"{self._index}.json", [o._asdict() for o in self._origins])
        self.chunks.write(batch)
