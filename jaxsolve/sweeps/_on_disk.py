"""A sweep's store, while one process writes to it."""

import contextlib
import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any, TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from .._checks import describe
from .._dynamics import AbstractChoice, AbstractMarching
from ._axes import Group
from ._chunks import Chunks, remove_parts
from ._collect import Collector
from ._execute import Program, Timed
from ._files import explained, READ_ONLY
from ._frame import Frame
from ._layout import (
    has_manifest,
    Layout,
    LOCK,
    new_layout,
    read_layout,
    require_ours,
    restore,
    SKELETON,
    write_layout,
    write_manifest,
)
from ._lock import Lock
from ._manifest import changes, OURS, require_same_plan, run_facts
from ._sink import AbstractSink
from ._store import ChunkCodec, read
from ._variables import FINE, rows_of, Variable, variables_of


if TYPE_CHECKING:
    import xarray


log = logging.getLogger("jaxsolve")

AGAIN = "what has run is kept: call the sweep again with the same arguments to run the rest"
FLUSH_SECONDS = 60.0  # between two writings of unfinished chunks
FLUSH_SHARE = 0.05  # of the time, at most, goes into that


class OnDisk(AbstractSink):
    """Keeps the lanes in a Zarr store, chunk by chunk as they finish, and takes up where another process stopped.

    While it is entered no other process can write to the store. Beside the Zarr arrays, the folder `_jaxsolve` holds
    the manifest, the lock, a copy of the arrays' metadata, and a record for each chunk that has been written.

    Arguments:
        path: of the store.
        frame: of the dataset.
        plan: from `plan_facts`.
        resume: whether a store of the same plan is carried on.
        retry_failed: whether lanes that failed run again.

    Raises (on entering):
        TypeError: the path is none (at once).
        FileExistsError: something else is there, or `resume` is false and a store is.
        ValueError: the store was made by another plan, or is damaged; an observable's name holds a slash (at once).
        BlockingIOError: another process writes to the store.
        OSError: the path cannot be written to.

    Warns:
        UserWarning: the store was begun with another batch size, on another device, or by other versions.
    """

    def __init__(self, path: Any, frame: Frame, plan: dict[str, Any], *, resume: bool, retry_failed: bool):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"store must be the path of a folder such as 'run.zarr', got {describe(path)}")
        for item in frame.observables:
            if "/" in item.name:
                raise ValueError(f"{item.name!r} cannot be stored: Zarr takes '/' for a folder. Rename the observable")
        self.path = Path(path).absolute()
        self._frame = frame
        self._plan = plan
        self._resume = resume
        self._retry_failed = retry_failed
        self._lock = Lock(self.path / OURS / LOCK)
        self._made = False  # whether this process made the folder
        self._missing = np.ones(frame.lanes, bool)
        self._manifest: dict[str, Any] = {}
        self._variables: tuple[Variable, ...] = ()
        self._collector: Collector | None = None
        self._next_flush = 0.0

    def __enter__(self) -> "OnDisk":
        with explained(self.path, "nothing has run"):
            require_ours(self.path, resume=self._resume)
            self._acquire()
        try:
            if has_manifest(self.path):
                self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            # After an interruption there is no time, and after an error of writing no point.
            if not isinstance(error, OSError | KeyboardInterrupt):
                self.flush()
        finally:
            if self._lock.held and not has_manifest(self.path):
                self._remove()
            self._lock.release()

    @property
    def missing(self) -> np.ndarray:
        return self._missing

    def batch_size(self, group: Group) -> int | None:
        if self._frame.batch_size is not None or not self._manifest:
            return self._frame.batch_size
        known = self._manifest["batch_size"]
        return known["used"].get(_name(group), known["asked"])

    def expect(self, program: Program) -> None:
        dynamics, ts = self._frame.dynamics, self._frame.ts
        # Where the problem chooses the dynamics, how it rounds times is not known before it runs.
        unknown = isinstance(dynamics, AbstractChoice) and not isinstance(dynamics, AbstractMarching)
        rounded = unknown or not np.array_equal(np.asarray(dynamics.times(jnp.asarray(ts))), ts)
        found = variables_of(self._frame.observables, program.lowered.out_info, rounded=rounded)
        with explained(self.path, AGAIN if self._manifest else "nothing has run"):
            if not self._manifest:
                layout = new_layout(self._frame, self._plan, found, program.size)
                write_layout(self.path, layout)
                self._begin(layout)
            self._require_same(found, program.group)
            used = self._manifest["batch_size"]["used"]
            if used.get(_name(program.group)) != program.size:
                used[_name(program.group)] = program.size
                write_manifest(self.path, self._manifest)

    def add(self, batch: Timed) -> None:
        assert self._collector is not None, "expect comes before add"
        if all(item.name != "t_saved" for item in self._variables) and not self._frame.saved_as_asked(batch):
            raise ValueError(f"{self._frame.dynamics.name} saved other times than its method `times` says")
        with explained(self.path, AGAIN):
            self._collector.add(batch.lanes, rows_of(batch))
        self._missing[batch.lanes] = False
        begin = time.monotonic()
        if begin > self._next_flush:
            self.flush()
            now = time.monotonic()
            self._next_flush = now + max(FLUSH_SECONDS, (now - begin) / FLUSH_SHARE)

    def flush(self) -> None:
        if self._collector is not None:
            with explained(self.path, AGAIN):
                self._collector.flush()

    def dataset(self) -> "xarray.Dataset":
        data = read(self.path)
        if "t_saved" in data and np.all(data["t_saved"] == data["t"].astype(data["t_saved"].dtype)):
            return data.drop_vars("t_saved")
        return data

    def _acquire(self) -> None:
        self._made = not self.path.exists()
        try:
            (self.path / OURS).mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            # A store that is complete can be read without the lock.
            if error.errno not in READ_ONLY or not has_manifest(self.path):
                raise

    def _open(self) -> None:
        """Takes up a store: checks it, and finds what has run."""
        layout = read_layout(self.path)
        require_same_plan(self.path, layout.manifest["plan"], self._plan)
        chunks, collector = self._begin(layout)
        if self._lock.held:
            with explained(self.path, AGAIN):
                restore(self.path, layout)
        found = {chunk.number: chunk for chunk in chunks.find()}
        for number, chunk in found.items():
            if chunk.whole and not (self._retry_failed and chunk.failed):
                collector.finished(number)
                self._missing[layout.blocks.lanes(number)] = False
            else:
                part = chunks.read(number)
                if self._retry_failed:
                    part.known[part.rows["result"] >= FINE] = False
                collector.begin(number, part)
                self._missing[part.lanes[part.known]] = False
        if np.any(self._missing):
            with explained(self.path, AGAIN):
                self._carry_on(chunks, [number for number in range(len(layout.blocks)) if number not in found])

    def _carry_on(self, chunks: Chunks, absent: list[int]) -> None:
        if not self._lock.held:
            self._lock.acquire()  # raises what it raised before
        remove_parts(self.path)
        for number in absent:
            chunks.drop(number)
        run = run_facts()
        different = changes(self._manifest["runs"][-1], run)
        asked, used = self._frame.batch_size, set(self._manifest["batch_size"]["used"].values())
        if asked is not None and used - {min(asked, self._frame.lanes_per_group)}:
            different.append(f"batch size: {sorted(used)} before, {asked} now")
        if different:
            warnings.warn(
                f"{self.path} was begun under other conditions, so results agree to the integrator's tolerance, but "
                f"not to the last bit: {'; '.join(different)}",
                stacklevel=5,
            )
        self._manifest["runs"].append(run)
        write_manifest(self.path, self._manifest)
        lanes = int(self._missing.sum())
        log.info("%s: %d of %d lanes are left to run", self.path, lanes, self._missing.size)

    def _begin(self, layout: Layout) -> tuple[Chunks, Collector]:
        chunks = Chunks(self.path, layout.blocks, ChunkCodec(layout.files, layout.blocks, layout.variables))
        collector = Collector(layout.blocks, layout.variables, chunks.write)
        self._manifest, self._variables, self._collector = layout.manifest, layout.variables, collector
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        return chunks, collector

    def _require_same(self, found: tuple[Variable, ...], group: Group) -> None:
        for old, new in zip(self._variables, found, strict=True):
            if (old.name, old.dims, old.shape, old.dtype) != (new.name, new.dims, new.shape, new.dtype):
                raise ValueError(
                    f"{new.name!r} is {new.dtype} of shape {new.shape} for {group.static}, but the store {self.path} "
                    f"holds {old.name!r} as {old.dtype} of shape {old.shape}; sweep them in stores of their own"
                )

    def _remove(self) -> None:
        """Leaves nothing behind where nothing has begun."""
        with contextlib.suppress(OSError):
            remove_parts(self.path)
            for name in (SKELETON, LOCK):
                (self.path / OURS / name).unlink(missing_ok=True)
            (self.path / OURS).rmdir()
            if self._made:
                self.path.rmdir()


def _name(group: Group) -> str:
    """What a manifest calls a group: the number of its first lane."""
    return str(int(group.lanes[0]))
