"""The chunks of a store, and the records that say which of them are whole."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ._blocks import Blocks
from ._collect import Part
from ._files import checksum, damage, PART, write_json, write_whole
from ._manifest import OURS
from ._store import ChunkCodec
from ._variables import FINE


log = logging.getLogger("jaxsolve")


class Found(NamedTuple):
    """A chunk that is on disk as it was written."""

    number: int
    whole: bool  # whether all of its lanes have run
    failed: int  # lanes


class Chunks:
    """Writes and reads the chunks of a store.

    A chunk is one file per variable. Its record, written when all of them are, holds their checksums: a chunk without
    a record, or with another content, counts as not run. Processes may write different chunks at the same time.

    Arguments:
        path: the store.
        blocks: which lanes a chunk holds.
        codec: for its files.
    """

    def __init__(self, path: Path, blocks: Blocks, codec: ChunkCodec):
        self.path = path
        self.blocks = blocks
        self.codec = codec
        self._records = path / OURS / "chunks"

    def write(self, number: int, part: Part) -> None:
        """Writes what is known of a chunk, in place of what was there.

        Raises:
            OSError: the disk is full, or fails otherwise. Then the chunk counts as not run.
        """
        files = self.codec.encode(number, part.rows)
        record = self._record(number)
        record.unlink(missing_ok=True)
        for key, data in files.items():
            write_whole(self.path / key, data)
        result = part.rows["result"]
        facts = {
            "lanes": len(result),
            "done": int(part.known.sum()),
            "failed": int(np.sum(result[part.known] >= FINE)),
            "files": {key: checksum(data) for key, data in files.items()},
        }
        write_json(record, {**facts, "check": _check(facts)})

    def read(self, number: int) -> Part:
        """What is known of a chunk that is on disk."""
        files = {key: (self.path / key).read_bytes() for key in self.codec.keys(number).values()}
        rows = self.codec.decode(number, files)
        return Part(self.blocks.lanes(number), rows, rows["result"] >= 0)

    def find(self, numbers: Iterable[int]) -> Iterator[Found]:
        """Those chunks that are on disk as they were written. Those that are not any more are told of in the log."""
        for number in numbers:
            if not self._record(number).exists():
                continue
            facts, wrong = self._facts(number)
            if wrong:
                log.warning("%s: %s; its lanes are run again", self.path, wrong)
            else:
                yield Found(number, facts["done"] == facts["lanes"], facts["failed"])

    def ended(self, number: int) -> bool:
        """Whether a chunk's record says that all of its lanes have run. Its files are not looked at."""
        try:
            facts = json.loads(self._record(number).read_bytes())
            return facts["done"] == facts["lanes"]
        except (OSError, ValueError, KeyError, TypeError):  # not there, or being written
            return False

    def drop(self, number: int) -> None:
        """Removes a chunk, so that readers see lanes that have not run."""
        self._record(number).unlink(missing_ok=True)
        for key in reversed(self.codec.keys(number).values()):
            (self.path / key).unlink(missing_ok=True)

    def _facts(self, number: int) -> tuple[dict[str, Any], str]:
        """A chunk's record, and what is wrong with the chunk."""
        record = self._record(number)
        try:
            facts = json.loads(record.read_bytes())
            sound = facts.pop("check") == _check(facts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            sound, facts = False, {}
        if not sound or facts["files"].keys() != set(self.codec.keys(number).values()):
            return {}, f"{record.relative_to(self.path)} cannot be read"
        for key, expected in facts["files"].items():
            wrong = damage(self.path / key, expected)
            if wrong:
                return {}, f"{key} {wrong}"
        return facts, ""

    def _record(self, number: int) -> Path:
        return self._records / f"{'.'.join(map(str, self.blocks.place(number)))}.json"


def remove_parts(path: Path) -> None:
    """Removes what a process that died was writing."""
    for part in path.rglob(f"*{PART}"):
        part.unlink(missing_ok=True)


def _check(facts: dict[str, Any]) -> int:
    return checksum(json.dumps(facts, sort_keys=True).encode())[1]
