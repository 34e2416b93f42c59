"""The chunks of a store: rows of lanes arrive in any order, and a chunk is written once its last row is there."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import final

import numpy as np

from ..._results import FIRST_FAILURE
from ..running._runner import Batch
from ..running._variables import Rows, rows_of
from ._coding import Coding
from ._files import explained, OURS, read_regular, require_own, write_together
from ._layout import Layout


log = logging.getLogger("jaxsolve")

FLUSH_SECONDS = 60.0  # minimum interval between writes of unfinished chunks
FLUSH_SHARE = 0.05  # largest share of the time spent on these writes
SLOWEST_LOOK = 2.0  # longest interval in seconds between checks for the chunks of other processes
RECORDS = "chunks"  # the folder of chunk records
LARGEST_RECORD = 2**20  # bytes


@final
class Unsound(ValueError):
    """The files of a chunk do not match, as if copying or writing it was interrupted.

    Attributes:
        missing: the files that are missing, if this is the reason.
        damaged: whether a file does not hold what was written.
    """

    def __init__(self, said: str, *, missing: Sequence[Path] = (), damaged: bool = False):
        self.args, self.missing, self.damaged = (said,), tuple(missing), damaged


class Chunks:
    """Fills the chunks of a store. Several processes may do so at the same time, each with its own chunks.

    A chunk is one file per variable, and a record written after them, which names the store and has a digest of each
    file. So a chunk counts only if it is complete, even if its writer was killed, the power failed, or the store was
    copied while it was filled. A lane has run if its `result` in such a chunk is not -1.

    Raises OSError before it writes if the store is no longer the one that was opened.
    """

    def __init__(self, path: Path, layout: Layout):
        self.path, self.id = path, str(layout.manifest.get("id", ""))
        self.blocks = layout.blocks
        self.missing = np.ones(math.prod(layout.blocks.grid), bool)  # missing lanes, as far as this process knows
        self.failed = set[int]()  # chunks in which failed lanes were seen
        self._recorded = layout.manifest["format"] >= 4  # earlier formats have no records, but can be read
        self._variables = {item.name: item for item in layout.variables}
        self._coding = Coding(layout.blocks, layout.variables)
        self._open: dict[int, Rows] = {}  # the chunks that are incomplete
        self._changed: set[int] = set()
        self._next_flush = time.monotonic() + FLUSH_SECONDS

    def look(self, numbers: Iterable[int], *, forget_failed: bool = False) -> list[int]:
        """Reads those of these chunks that are on disk, optionally dropping failed lanes. Returns the other numbers."""
        absent = list[int]()
        for number in numbers:
            rows = self._known(number)
            if rows is None:
                absent.append(number)
            else:
                self._take_up(number, rows, forget_failed=forget_failed)
        return absent

    def _take_up(self, number: int, rows: Rows, *, forget_failed: bool = False) -> None:
        failed = rows["result"] >= FIRST_FAILURE
        if failed.any():
            self.failed.add(number)
        if forget_failed and failed.any():
            self.missing[self.blocks.lanes(number)[failed]] = True
            for name, values in rows.items():
                values[failed] = self._variables[name].missing
            with explained(self.path):
                self._put(number, rows)
        run = rows["result"] >= 0
        self.missing[self.blocks.lanes(number)[run]] = False
        if not run.all():
            self._open[number] = rows

    def finished(self) -> tuple[int, Rows] | None:
        """The first lane that has run and did not fail, and its row; None if there is none."""
        for number in range(len(self.blocks)):
            rows = self._known(number)
            if rows is not None:
                (fine,) = np.nonzero((rows["result"] >= 0) & (rows["result"] < FIRST_FAILURE))
                if len(fine):
                    return int(self.blocks.lanes(number)[fine[0]]), {key: row[fine[:1]] for key, row in rows.items()}
        return None

    def drop(self, numbers: Iterable[int]) -> None:
        """Removes chunks, so that readers see lanes that have not run."""
        require_own(self.path, self.id)
        for number in numbers:
            for file in (self._record(number), *self._files(number).values()):
                file.unlink(missing_ok=True)

    def write(self, batch: Batch) -> None:
        """Takes some lanes; those that have run are skipped. ValueError if a variable has another shape or dtype."""
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
        """Writes the known rows of incomplete chunks."""
        with explained(self.path):
            for number in sorted(self._changed):
                self._put(number, self._open[number])

    def wait(self, lanes: np.ndarray, check: Callable[[], None], patience: float = math.inf) -> None:
        """Waits until lanes (flat indices) that other processes run are on disk, and thus no longer missing.

        Lanes that have not arrived after `patience` seconds stay missing. `check` is called while waiting.
        """
        begin = time.monotonic()
        while True:
            lanes = lanes[self.missing[lanes]]
            for number in map(int, np.unique(self.blocks.of(lanes))):
                if (rows := self._ended(number)) is not None:
                    self._take_up(number, rows)
            require_own(self.path, self.id)
            waited = time.monotonic() - begin
            if not self.missing[lanes].any() or waited > patience:
                return
            check()
            time.sleep(min(SLOWEST_LOOK, 0.01 + 0.1 * waited))

    def read(self, number: int) -> Rows | None:
        """The rows of a chunk; None if it is not on disk.

        Raises:
            Unsound: the files there cannot be used; another process may be writing them now.
            OSError, MemoryError: the system cannot read a file, which says nothing about its content.
        """
        names, rows = self._files(number), self._empty(number)
        if not names["result"].exists():
            return None
        lost = [file.relative_to(self.path) for file in names.values() if not file.exists()]
        if lost:
            raise Unsound(f"{lost[0]} is missing", missing=lost)
        digests = self._digests(number)
        for name, file in names.items():
            item, short = self._variables[name], file.relative_to(self.path)
            try:
                data = read_regular(file, self._coding.most(item))
                rows[name] = self._coding.decode(number, item, data)
            except FileNotFoundError:
                raise Unsound(f"{short} is missing", missing=[short]) from None
            except ValueError as error:
                said = f"{short} cannot be read ({type(error).__name__}: {error})"
                raise Unsound(said, damaged=True) from error
            if digests is not None and digests.get(name) != _digest(data):
                raise Unsound(f"{short} is another one than the record of its chunk names")
        return rows

    def _digests(self, number: int) -> dict[str, str] | None:
        """The digests of a chunk's files by variable, from its record; None in a store without records."""
        if not self._recorded:
            return None
        file = self._record(number)
        try:
            said = json.loads(read_regular(file, LARGEST_RECORD))
        except (FileNotFoundError, ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or said.get("store") != self.id:
            raise Unsound(f"{file.relative_to(self.path)} is not there, or is not the record of a chunk of this store")
        return said["files"] if isinstance(said.get("files"), dict) else {}

    def _known(self, number: int) -> Rows | None:
        """The rows of a chunk; None if it is not on disk or is damaged, which is logged."""
        try:
            return self.read(number)
        except Unsound as error:
            log.warning("%s: %s; its lanes are run again", self.path, error)
            return None

    def _ended(self, number: int) -> Rows | None:
        """The rows of a chunk if all its lanes have run; otherwise None."""
        try:
            rows = self.read(number)
        except Unsound:  # it is being written, or it is damaged
            return None
        return None if rows is None or np.any(rows["result"] < 0) else rows

    def _put(self, number: int, rows: Rows) -> None:
        names = self._files(number)
        files = {names[name]: data for name, data in self._coding.encode(number, {name: rows[name] for name in names})}
        digests = {name: _digest(files[file]) for name, file in names.items()}
        record = json.dumps({"store": self.id, "files": digests}).encode()
        require_own(self.path, self.id)
        try:
            write_together(self.path, {**files, self._record(number): record})
        except FileNotFoundError:
            require_own(self.path, self.id)  # the store may have been moved in the meantime
            raise
        self._changed.discard(number)

    def _record(self, number: int) -> Path:
        return self.path / OURS / RECORDS / ".".join(map(str, self.blocks.place(number)))

    def _files(self, number: int) -> dict[str, Path]:
        """The files of a chunk by variable; `result` is the last. Zarr writes no file for an empty array."""
        place = self.blocks.place(number)
        return {
            name: self.path / name / "c" / Path(*map(str, (*place, *(0 for _ in item.shape))))
            for name, item in self._variables.items()
            if 0 not in item.shape
        }

    def _empty(self, number: int) -> Rows:
        lanes = len(self.blocks.lanes(number))
        return {name: np.full((lanes, *item.shape), item.missing, item.dtype) for name, item in self._variables.items()}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
