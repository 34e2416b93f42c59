"""Sweeps by all processes of `jax.distributed`, each of which fills its share of one store."""

from typing import Any, TYPE_CHECKING

import jax
import numpy as np

from ._axes import Group, groups
from ._blocks import Blocks
from ._execute import Program
from ._fill import Filler, variables_for
from ._frame import Frame
from ._interrupt import Deferred
from ._lanes import Timed
from ._layout import batch_size_of
from ._manifest import require_same_plan
from ._on_disk import OnDisk
from ._origin import Origin, write_origins
from ._outlet import await_layout
from ._sink import AbstractSink


if TYPE_CHECKING:
    import xarray


class Hosts:
    """The processes that `jax.distributed.initialize` has brought together: `sweep(..., executor=Hosts())`.

    Each calls the sweep with the same arguments, among them a store that all of them see, and runs its share of the
    lanes on its own devices: chunks are dealt out in turn, for each static combination from another process on.
    Process 0 opens the store and keeps other writers out. Every process returns the whole dataset, once it is there.
    Without `jax.distributed` there is one process, which runs all lanes.
    """


def shared(inner: OnDisk, frame: Frame, signals: Deferred) -> AbstractSink:
    """The sink of this process.

    Arguments:
        inner: the store.
        frame: of its dataset.
        signals: heeded while it waits for other processes.
    """
    return Leader(inner, frame, signals) if jax.process_index() == 0 else Member(inner, frame, signals)


class Leader(AbstractSink):
    """Process 0: opens the store, tells the others, and runs its share.

    Arguments:
        inner: the store.
        frame: of its dataset.
        signals: heeded while it waits for other processes.
    """

    def __init__(self, inner: OnDisk, frame: Frame, signals: Deferred):
        self._inner = inner
        self._share = _Share(frame)
        self._signals = signals
        self._told = False

    def __enter__(self) -> "Leader":
        try:
            self._inner.__enter__()
        except BaseException:
            self._tell(begun=False)
            raise
        if self._inner.blocks is not None:
            self._tell(begun=True)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._inner.__exit__(kind, error, trace)
        self._tell(begun=False)

    @property
    def missing(self) -> np.ndarray:
        blocks = self._inner.blocks
        return self._inner.missing if blocks is None else self._inner.missing & self._share.lanes(blocks)

    def batch_size(self, group: Group) -> int | None:
        return self._inner.batch_size(group)

    def expect(self, program: Program) -> None:
        self._inner.expect(program)
        self._tell(begun=True)

    def add(self, batch: Timed) -> None:
        self._inner.add(batch)

    def flush(self) -> None:
        self._inner.flush()

    def dataset(self) -> "xarray.Dataset":
        self._inner.wait(lambda: self._signals.stop_here(self))
        self._inner.hear_hosts()
        return self._inner.dataset()

    def _tell(self, *, begun: bool) -> None:
        if not self._told:
            self._told = True
            _announced(begun)


class Member(AbstractSink):
    """Another process: waits until the store is open, and runs its share.

    Arguments:
        inner: the store, which this process does not open.
        frame: of its dataset.
        signals: heeded while it waits for other processes.
    """

    def __init__(self, inner: OnDisk, frame: Frame, signals: Deferred):
        self._inner = inner
        self._frame = frame
        self._share = _Share(frame)
        self._signals = signals
        self._manifest: dict[str, Any] = {}
        self._origins: list[Origin] = []  # those that were told of
        self._sizes: dict[str, int] = {}  # lanes per batch of each group, at first
        self._filler: Filler | None = None

    def __enter__(self) -> "Member":
        if not _announced(False):
            raise RuntimeError(f"process 0 did not begin to fill {self._inner.path}; its own error says why")
        layout = await_layout(self._inner.path)
        require_same_plan(self._inner.path, layout.manifest["plan"], self._inner.plan)
        self._manifest = layout.manifest
        self._filler = Filler(self._inner.path, self._frame, layout)
        self._filler.look(range(len(layout.blocks)))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._filler is not None and not isinstance(error, OSError | KeyboardInterrupt):
            self.flush()

    @property
    def missing(self) -> np.ndarray:
        return self._entered.missing & self._share.lanes(self._entered.blocks)

    def batch_size(self, group: Group) -> int | None:
        return batch_size_of(self._manifest, self._frame, group)

    def expect(self, program: Program) -> None:
        self._entered.require(variables_for(self._frame, program), program.group)
        self._tell(Origin.here(program))

    def add(self, batch: Timed) -> None:
        self._entered.add(batch)

    def flush(self) -> None:
        self._entered.flush()

    def dataset(self) -> "xarray.Dataset":
        filler = self._entered
        filler.wait(np.flatnonzero(filler.missing), lambda: self._signals.stop_here(self))
        return self._inner.dataset()

    def _tell(self, origin: Origin) -> None:
        """Leaves word for process 0 of what it would not think of itself."""
        asked = self._sizes.setdefault(origin.group, origin.size)
        as_before = [origin.dynamics == other.dynamics for other in self._origins]
        if origin.size < asked or not any(as_before):
            self._origins.append(origin)
            write_origins(self._inner.path, jax.process_index(), self._origins)

    @property
    def _entered(self) -> Filler:
        assert self._filler is not None, "a sink is entered first"
        return self._filler


class _Share:
    """The lanes of this process.

    Arguments:
        frame: of the dataset.
    """

    def __init__(self, frame: Frame):
        self._frame = frame
        self._lanes: np.ndarray | None = None

    def lanes(self, blocks: Blocks) -> np.ndarray:
        """A flag for each cell of the grid."""
        if self._lanes is None:
            self._lanes = dealt(self._frame, blocks, jax.process_index(), jax.process_count())
        return self._lanes


def dealt(frame: Frame, blocks: Blocks, index: int, count: int) -> np.ndarray:
    """Which lanes one of several processes runs: a flag for each cell of the grid."""
    owner = np.zeros(len(blocks), int)
    for turn, group in enumerate(groups(frame.axes)):
        numbers = np.unique(blocks.of(group.lanes))
        owner[numbers] = (turn + np.arange(len(numbers))) % count
    return owner[blocks.of(np.arange(frame.lanes))] == index


def _announced(begun: bool) -> bool:
    """Whether process 0 has begun. All processes call it once, and wait for each other here."""
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.int32(begun)))
