"""The chunks of a store: rows of lanes come in any order, and a chunk is written when the last of its own is there."""

import contextlib
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np

from ..._attempt import attempt
from ..._extras import needs
from ..._results import FIRST_FAILURE
from ..running._runner import Batch
from ..running._variables import Rows, rows_of
from ._files import explained
from ._layout import has_manifest, Layout, read_layout


if TYPE_CHECKING:
    import xarray

log = logging.getLogger("jaxsolve")

FLUSH_SECONDS = 60.0  # between two writings of unfinished chunks
FLUSH_SHARE = 0.05  # of the time, at most, goes into that
SLOWEST_LOOK = 2.0  # seconds between two looks for the chunks of others


class Chunks:
    """Fills the chunks of a store. Several processes may do so at the same time, each with chunks of its own.

    A chunk is one file per variable, which Zarr replaces as a whole. `result` comes last, and is the record: a lane has
    run where `result` is not -1, all files of the chunk are there, and their checksums hold.
    """

    def __init__(self, path: Path, layout: Layout):
        with needs("sweeps", "a store"):
            import zarr

        self.path = path
        self.blocks = layout.blocks
        self.missing = np.ones(math.prod(layout.blocks.grid), bool)  # lanes, as far as this process knows
        self.failed = set[int]()  # chunks in which failed lanes were seen
        self._variables = {item.name: item for item in layout.variables}
        self._open: dict[int, Rows] = {}  # the chunks that are not whole
        self._changed: set[int] = set()
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        # Also chunks that hold nothing but NaN are written: they have run.
        with zarr.config.set({"array.write_empty_chunks": True}):
            self._arrays: dict[str, Any] = {
                name: zarr.open_array(path / name, mode="r+", zarr_format=3) for name in self._variables
            }

    def lost(self) -> list[Path]:
        """The files that are missing beside a `result`, which is written last."""
        found = [self._files(number) for number in range(len(self.blocks))]
        return [file for files in found if files["result"].exists() for file in files.values() if not file.exists()]

    def look(self, numbers: Iterable[int], *, forget_failed: bool = False) -> list[int]:
        """Takes up those of some chunks that are on disk; failed lanes may be forgotten. Returns the others."""
        absent = list[int]()
        for number in numbers:
            if (rows := self._read(number)) is None:
                absent.append(number)
                continue
            failed = rows["result"] >= FIRST_FAILURE
            if failed.any():
                self.failed.add(number)
            if forget_failed and failed.any():
                self.missing[self.blocks.lanes(number)[failed]] = True
                for name, values in rows.items():
                    values[failed] = self._variables[name].missing
                # Of a lane that does not count as run any more nothing need hold: `result` first.
                with explained(self.path):
                    self._put(number, {"result": rows["result"], **rows})
            run = rows["result"] >= 0
            self.missing[self.blocks.lanes(number)[run]] = False
            if not run.all():
                self._open[number] = rows
        return absent

    def finished(self) -> tuple[int, Rows] | None:
        """The first lane that has run and did not fail, and its row; None if there is none."""
        for number in range(len(self.blocks)):
            rows = self._read(number)
            if rows is not None:
                (fine,) = np.nonzero((rows["result"] >= 0) & (rows["result"] < FIRST_FAILURE))
                if len(fine):
                    return int(self.blocks.lanes(number)[fine[0]]), {key: row[fine[:1]] for key, row in rows.items()}
        return None

    def drop(self, numbers: Iterable[int]) -> None:
        """Removes chunks, so that readers see lanes that have not run."""
        for number in numbers:
            for file in reversed(self._files(number).values()):
                file.unlink(missing_ok=True)

    def write(self, batch: Batch) -> None:
        """Takes some lanes. Those that have run before are passed over; ValueError for variables of another kind."""
        rows = rows_of(batch)
        for name, variable in self._variables.items():
            variable.require(rows[name])
        chunks = self.blocks.of(batch.lanes)
        with explained(self.path):
            for number in map(int, np.unique(chunks[self.missing[batch.lanes]])):
                here, lanes = np.flatnonzero(chunks == number), self.blocks.lanes(number)
                known = self._open.setdefault(number, self._empty(number))
                for name, values in known.items():
                    values[np.searchsorted(lanes, batch.lanes[here])] = rows[name][here]
                self._changed.add(number)
                if np.all(known["result"] >= 0):
                    self._put(number, known)
                    del self._open[number]
        self.missing[batch.lanes] = False
        begin = time.monotonic()
        if begin > self._next_flush:
            self.flush()
            now = time.monotonic()
            self._next_flush = now + max(FLUSH_SECONDS, (now - begin) / FLUSH_SHARE)

    def flush(self) -> None:
        """Writes what is known of the chunks that are not whole."""
        with explained(self.path):
            for number in sorted(self._changed):
                self._put(number, self._open[number])

    def wait(self, lanes: np.ndarray, heed: Callable[[], None], patience: float = math.inf) -> None:
        """Waits until lanes (flat indices) that other processes run are on disk, and so no longer missing.

        Those that have not come after so many seconds stay missing; `heed` is called between two looks.
        """
        begin = time.monotonic()
        while True:
            lanes = lanes[self.missing[lanes]]
            self.look(number for number in map(int, np.unique(self.blocks.of(lanes))) if self._has_ended(number))
            waited = time.monotonic() - begin
            if not self.missing[lanes].any() or waited > patience:
                return
            heed()
            time.sleep(min(SLOWEST_LOOK, 0.01 + 0.1 * waited))

    def _put(self, number: int, rows: Rows) -> None:
        region = self.blocks.region(number)
        shape = [part.stop - part.start for part in region]
        for name, values in rows.items():
            if 0 not in values.shape:
                self._arrays[name][region] = values.reshape(*shape, *values.shape[1:])
        self._changed.discard(number)

    def _get(self, number: int, name: str) -> np.ndarray:
        return np.asarray(self._arrays[name][self.blocks.region(number)])

    def _read(self, number: int) -> Rows | None:
        """The rows of a chunk; None if nothing is known of it, or if it is damaged, which the log tells."""
        files, rows = self._files(number), self._empty(number)
        if not files["result"].exists():
            return None
        for name, file in files.items():
            found, error = attempt(file.stat)  # of a file that is not there Zarr says that it holds the fill value
            if error is None:
                found, error = attempt(self._get, number, name)  # its codecs raise anything for damaged bytes
            if error is not None:
                missing = isinstance(error, FileNotFoundError)
                wrong = "is missing" if missing else f"cannot be read ({type(error).__name__}: {error})"
                log.warning("%s: %s %s; its lanes are run again", self.path, file.relative_to(self.path), wrong)
                return None
            rows[name] = found.reshape(rows[name].shape)
        return rows

    def _has_ended(self, number: int) -> bool:
        """True if all lanes of a chunk have run; `result`, which comes last, says so."""
        result, error = attempt(self._get, number, "result")
        return error is None and bool(np.all(result >= 0))  # where it raises, it is damaged

    def _files(self, number: int) -> dict[str, Path]:
        """The files of a chunk by variable; `result` is the last. Of nothing, Zarr writes no file."""
        place = self.blocks.place(number)
        return {
            name: self.path / name / "c" / Path(*map(str, (*place, *(0 for _ in item.shape))))
            for name, item in self._variables.items()
            if 0 not in item.shape
        }

    def _empty(self, number: int) -> Rows:
        lanes = len(self.blocks.lanes(number))
        return {name: np.full((lanes, *item.shape), item.missing, item.dtype) for name, item in self._variables.items()}


def load(path: str | os.PathLike) -> "xarray.Dataset":
    """The dataset of a sweep's store, in memory. What has not run is NaN, and -1 in `result` and `steps`.

    Raises:
        FileNotFoundError: there is no store.
        ValueError: a file is damaged, by its checksum.

    Warns:
        UserWarning: files of lanes that have run are missing.

    Example:
        >>> data = js.sweeps.load("run.zarr")  # doctest: +SKIP
    """
    import xarray

    path = Path(path)
    mend = "the sweep that made the store, called again with the same arguments, runs those lanes again"
    lost: list[Path] = []
    if has_manifest(path):
        with contextlib.suppress(ValueError):  # a damaged manifest leaves the arrays as they are
            lost = Chunks(path, read_layout(path)).lost()
    if lost:
        warnings.warn(
            f"{path}: {len(lost)} files of lanes that have run are missing, the first is "
            f"{lost[0].relative_to(path)}; they are read as missing values. To mend it: {mend}",
            stacklevel=2,
        )
    if not path.exists():
        raise FileNotFoundError(f"there is no store at {path}")
    try:
        with needs("sweeps", "a store"):
            import zarr  # noqa: F401  xarray would speak of engines
        with xarray.open_zarr(path, chunks=None) as data:
            return data.load().drop_encoding()
    except (ValueError, RuntimeError, OSError, KeyError) as error:  # what the codecs make of such bytes
        raise ValueError(f"{path} is damaged: {error}. To mend it: {mend}") from error
