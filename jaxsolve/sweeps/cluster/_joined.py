"""A sweep's store on disk, for processes that do not hold it."""

from pathlib import Path
from typing import Any

import numpy as np

from ..planning._plan import Plan
from ..running.programs._base import Batch, Origin
from ..store._chunks import Chunks
from ..store._files import OURS, write_json
from ..store._layout import await_layout, require_names
from ..store._zarr import AbstractOnDisk, HOSTS, sized


class JoinedStore(AbstractOnDisk):
    """A store that another process holds, of which this one writes whole chunks.

    Arguments:
        path: of the store.
        plan: of the sweep.
        lanes: flat indices of those that this process may be asked for; None looks at all chunks.
        index: of this process among those of `Hosts`, which leave word for the holder; None if the caller tells it.
    """

    def __init__(self, path: Path, plan: Plan, lanes: np.ndarray | None = None, index: int | None = None):
        self.path = path
        self.plan = plan
        self._lanes = lanes
        self._index = index
        self._origins: list[Origin] = []
        self._chunks: Chunks | None = None

    def __enter__(self) -> "JoinedStore":
        layout = await_layout(self.path)
        require_names(self.plan, layout)
        self.plan = sized(self.plan, layout)
        chunks = self._chunks = Chunks(self.path, layout)
        lanes = np.arange(self.plan.lanes) if self._lanes is None else self._lanes
        # A process that was lost may have written some of them.
        chunks.look(map(int, np.unique(chunks.blocks.of(lanes))))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.flush_after(error)

    def write(self, batch: Batch) -> None:
        self.chunks.write(batch)
        if self._index is not None and batch.origin is not None and batch.origin not in self._origins:
            self._origins.append(batch.origin)
            write_json(self.path / OURS / HOSTS / f"{self._index}.json", [o._asdict() for o in self._origins])
