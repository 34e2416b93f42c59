"""Sweeps by all processes of `jax.distributed`, each of which fills its share of one store."""

from typing import Any, TYPE_CHECKING

import jax
import numpy as np

from .._signals import Signals
from ..grid._axes import Blocks
from ..planning._fingerprint import plan_facts, require_same_plan
from ..planning._plan import Plan
from ..running._runner import Batch
from ..store._files import MANIFEST, OURS
from ..store._layout import read_manifest
from ..store._memory import AbstractStore
from ..store._zarr import HeldStore, JoinedStore


if TYPE_CHECKING:
    import xarray


class Hosts:
    """The processes that `jax.distributed.initialize` has brought together: `sweep(..., executor=Hosts())`.

    Each calls the sweep with the same arguments, among them a store that all of them see, and runs its share of the
    lanes on its own devices: chunks are dealt out in turn, for each static combination from another process on.
    Process 0 holds the store and keeps other writers out. Every process returns the whole dataset, once it is there.
    Without `jax.distributed` there is one process, which runs all lanes.

    Example:
        >>> data = js.sweep(problem, axes, flow, ts, store="run.zarr", executor=js.sweeps.Hosts())  # doctest: +SKIP
    """


class Share(AbstractStore):
    """The share of this process in a store, which only process 0 opens."""

    def __init__(self, held: HeldStore, signals: Signals):
        self._store: HeldStore | JoinedStore = held
        self._signals = signals
        self.plan = held.plan

    def __enter__(self) -> "Share":
        index, path = jax.process_index(), self._store.path
        try:
            if index == 0:
                self._store.__enter__()
        except BaseException:
            _announced(False)
            raise
        if not _announced(True):
            raise RuntimeError(f"process 0 did not begin to fill {path}; its own error says why")
        if index:
            facts = plan_facts(self.plan)
            self._store = JoinedStore(path, self.plan, index=index)
            self._store.__enter__()
            require_same_plan(path, path / OURS / MANIFEST, read_manifest(path)["plan"], facts)
        self.plan = self._store.plan
        self._mine = dealt(self.plan, self._store.chunks.blocks, index, jax.process_count())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._store.__exit__(kind, error, trace)

    @property
    def missing(self) -> np.ndarray:
        return self._store.missing & self._mine

    def write(self, batch: Batch) -> None:
        self._store.write(batch)

    def dataset(self) -> "xarray.Dataset":
        chunks = self._store.chunks
        chunks.wait(np.flatnonzero(chunks.missing), lambda: self._signals.heed(chunks.missing))
        if isinstance(self._store, HeldStore):
            self._store.hear_hosts()
        return self._store.dataset()


def dealt(plan: Plan, blocks: Blocks, index: int, count: int) -> np.ndarray:
    """Which lanes one of several processes runs: a flag for each cell of the grid."""
    owner = np.zeros(len(blocks), int)
    for turn, group in enumerate(plan.groups):
        numbers = np.unique(blocks.of(group.lanes))
        owner[numbers] = (turn + np.arange(len(numbers))) % count
    return owner[blocks.of(np.arange(plan.lanes))] == index


def _announced(begun: bool) -> bool:
    """Whether process 0 has begun. All processes call it once, and wait for each other here."""
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.int32(begun)))
