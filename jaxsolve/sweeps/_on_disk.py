"""A sweep's store, while one process writes to it."""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from .._checks import describe
from ._axes import Group
from ._blocks import Blocks
from ._chunks import remove_parts
from ._execute import Program
from ._files import explained, READ_ONLY
from ._fill import AGAIN, Filler, variables_for
from ._frame import Frame
from ._lanes import Timed
from ._layout import (
    attributes,
    batch_size_of,
    has_manifest,
    Layout,
    LOCK,
    name_of,
    new_layout,
    read_layout,
    relabel,
    require_ours,
    restore,
    SKELETON,
    write_layout,
    write_manifest,
)
from ._lock import Lock
from ._manifest import changes, OURS, require_same_plan, run_facts
from ._origin import credited, joined, Origin, read_origins, remove_origins
from ._outlet import AbstractOutlet, PATIENCE, Receipt, Shelf
from ._sink import AbstractHub
from ._store import read


if TYPE_CHECKING:
    import xarray


log = logging.getLogger("jaxsolve")


class OnDisk(AbstractHub):
    """Keeps the lanes in a Zarr store, chunk by chunk as they finish, and takes up where another process stopped.

    While it is entered no other process can write to the store. Beside the Zarr arrays, the folder `_jaxsolve` holds
    the manifest, the lock, a copy of the arrays' metadata, and a record for each chunk that has been written.

    Arguments:
        path: of the store.
        frame: of the dataset.
        plan: from `plan_facts`.
        resume: whether a store of the same plan is carried on.
        retry_failed: whether lanes that failed run again.
        elsewhere: whether the lanes run in other processes.

    Raises (on entering):
        TypeError: the path is none (at once).
        FileExistsError: something else is there, or `resume` is false and a store is.
        ValueError: the store was made by another plan, or is damaged; an observable's name holds a slash (at once).
        BlockingIOError: another process writes to the store.
        OSError: the path cannot be written to.

    Warns:
        UserWarning: the store was begun with another batch size, on another device, or by other versions.
    """

    def __init__(
        self, path: Any, frame: Frame, plan: dict[str, Any], *, resume: bool, retry_failed: bool, elsewhere: bool
    ):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"store must be the path of a folder such as 'run.zarr', got {describe(path)}")
        for item in frame.observables:
            if "/" in item.name:
                raise ValueError(f"{item.name!r} cannot be stored: Zarr takes '/' for a folder. Rename the observable")
        self.path = Path(path).absolute()
        self._frame = frame
        self.plan = plan
        self._resume = resume
        self._retry_failed = retry_failed
        self._elsewhere = elsewhere
        self._lock = Lock(self.path / OURS / LOCK)
        self._made = False  # whether this process made the folder
        self._missing = np.ones(frame.lanes, bool)
        self._promised = np.zeros(frame.lanes, bool)  # what other processes say that they have written
        self._layout: Layout | None = None
        self._labels: dict[str, str] = {}
        self._filler: Filler | None = None

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
    def blocks(self) -> Blocks | None:
        """The chunks of the store; None before it exists."""
        return None if self._filler is None else self._filler.blocks

    @property
    def missing(self) -> np.ndarray:
        return self._missing if self._filler is None else self._filler.missing

    def batch_size(self, group: Group) -> int | None:
        return batch_size_of(self._manifest, self._frame, group)

    def expect(self, program: Program) -> None:
        found = variables_for(self._frame, program)
        with explained(self.path, "nothing has run" if self._layout is None else AGAIN):
            labels = self._labels if self._elsewhere else credited(self._labels, Origin.here(program))
            if self._layout is None:
                run = run_facts(elsewhere=self._elsewhere)
                layout = new_layout(self._frame, self.plan, found, program.size, labels, run)
                write_layout(self.path, layout)
                self._begin(layout)
            self._opened.require(found, program.group)
            self._relabel(labels)
            self._note_size(name_of(program.group), program.size)

    def add(self, batch: Timed) -> None:
        self._opened.add(batch)

    def flush(self) -> None:
        if self._filler is not None:
            self._filler.flush()

    @property
    def outlet(self) -> AbstractOutlet:
        return Shelf(self.path, self._frame)

    def parts(self, lanes: np.ndarray, size: int) -> Iterator[np.ndarray]:
        return self._opened.blocks.parts(lanes, size)

    def receive(self, receipt: Receipt) -> None:
        origin, run = receipt.origin, self._manifest["runs"][-1]
        self._promised[receipt.lanes] = True
        ran = run.setdefault("workers", {})
        ran[origin.where] = ran.get(origin.where, 0) + len(receipt.lanes)
        self._hear(origin)

    def hear_hosts(self) -> None:
        """Notes where and how other processes have run lanes that keep no manifest of their own."""
        origins = read_origins(self.path)
        if origins:
            run = self._manifest["runs"][-1]
            run["hosts"] = list(dict.fromkeys([*run.get("hosts", []), *(origin.where for origin in origins)]))
            for origin in origins:
                self._hear(origin)
            write_manifest(self.path, self._manifest)
            remove_origins(self.path)

    def _hear(self, origin: Origin) -> None:
        run, used = self._manifest["runs"][-1], self._manifest["batch_size"]["used"]
        run["device"] = joined(run.get("device"), origin.device)
        with explained(self.path, AGAIN):
            self._relabel(credited(self._labels, origin))
            self._note_size(origin.group, min(origin.size, used.get(origin.group, origin.size)))

    def confirm(self, heed: Callable[[], None]) -> None:
        if self._promised.any():
            with explained(self.path, AGAIN):
                write_manifest(self.path, self._manifest)
        self._opened.wait(np.flatnonzero(self._promised), heed, PATIENCE)
        lost = int(np.sum(self._promised & self.missing))
        if lost:
            raise OSError(
                f"{lost} lanes that other processes wrote to {self.path} are not there: a store that several processes "
                "fill must be a folder that all of them see"
            )
        # And of those that were not waited for until their end.
        self._opened.wait(np.flatnonzero(self.missing), heed, patience=0.0)

    def wait(self, heed: Callable[[], None]) -> None:
        """Waits for the lanes that other processes run.

        Arguments:
            heed: called now and then.
        """
        self._opened.wait(np.flatnonzero(self.missing), heed)

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
        require_same_plan(self.path, layout.manifest["plan"], self.plan)
        filler, numbers = self._begin(layout), range(len(layout.blocks))
        if self._lock.held:
            with explained(self.path, AGAIN):
                restore(self.path, layout)
                self.hear_hosts()
        found = filler.look(numbers, forget_failed=self._retry_failed)
        if np.any(filler.missing):
            with explained(self.path, AGAIN):
                self._carry_on(filler, [number for number in numbers if number not in found])

    def _carry_on(self, filler: Filler, absent: list[int]) -> None:
        if not self._lock.held:
            self._lock.acquire()  # raises what it raised before
        remove_parts(self.path)
        filler.drop(absent)
        run = run_facts(elsewhere=self._elsewhere)
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
        log.info("%s: %d of %d lanes are left to run", self.path, int(filler.missing.sum()), filler.missing.size)

    def _begin(self, layout: Layout) -> Filler:
        self._layout = layout
        self._labels = {name: text for name, text in attributes(layout).items() if name in ("dynamics", "device")}
        self._filler = Filler(self.path, self._frame, layout)
        return self._filler

    def _relabel(self, labels: dict[str, str]) -> None:
        if self._layout is not None and labels != self._labels:
            self._labels = labels
            relabel(self.path, self._layout, labels)

    def _note_size(self, group: str, size: int) -> None:
        used = self._manifest["batch_size"]["used"]
        if self._layout is not None and used.get(group) != size:
            used[group] = size
            write_manifest(self.path, self._manifest)
            sizes = sorted(set(used.values()))
            said = sizes if len(sizes) > 1 else sizes[0]
            if attributes(self._layout)["batch_size"] != said:
                relabel(self.path, self._layout, {"batch_size": said})

    @property
    def _manifest(self) -> dict[str, Any]:
        return {} if self._layout is None else self._layout.manifest

    @property
    def _opened(self) -> Filler:
        assert self._filler is not None, "expect comes first"
        return self._filler

    def _remove(self) -> None:
        """Leaves nothing behind where nothing has begun."""
        with contextlib.suppress(OSError):
            remove_parts(self.path)
            for name in (SKELETON, LOCK):
                (self.path / OURS / name).unlink(missing_ok=True)
            (self.path / OURS).rmdir()
            if self._made:
                self.path.rmdir()
