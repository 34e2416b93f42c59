"""The part of a sweep that runs on the workers of a dask cluster, and the data it needs."""

import contextlib
import dataclasses
import functools
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..grid._axes import Group
from ..planning._identity import LIBRARIES
from ..planning._plan import Plan
from ..running._execute import ShrinkingProgram
from ..running._runner import Batch, Origin
from ..running._ways import Ways
from ..store._zarr import JoinedStore


FLAGS = "XLA_FLAGS"
# Settings of JAX that decide the bits of a result.
SETTINGS = (
    "enable_x64",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
)


class Receipt(NamedTuple):
    """A record of lanes that have run on a worker."""

    lanes: np.ndarray  # flat indices
    origin: Origin  # of the last batch, if batches had several sizes
    failed: int  # number of failed lanes
    batches: tuple[Batch, ...]  # their rows, if they are sent back


class Conditions(NamedTuple):
    """The conditions that decide the bits of a result in a process; all processes of a sweep must share them."""

    settings: dict[str, Any]  # of JAX, by name
    flags: str  # of XLA
    versions: dict[str, str]  # of libraries; of Python, only major and minor

    @staticmethod
    def here() -> "Conditions":
        """The conditions of this process."""
        versions = {"python": short(sys.version.split()[0]), **{name: metadata.version(name) for name in LIBRARIES}}
        config: Any = jax.config
        settings = {name: getattr(config, f"jax_{name}") for name in SETTINGS}
        return Conditions(settings, os.environ.get(FLAGS, ""), versions)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which JAX has these settings, in this thread."""
        with contextlib.ExitStack() as stack:
            for name, value in self.settings.items():
                stack.enter_context(getattr(jax, name)(value))
            yield

    def adopt_flags(self, where: str, *, fresh: bool) -> None:
        """Sets the flags of XLA. It reads them only once: ValueError if they differ and the process is not fresh."""
        present = os.environ.get(FLAGS, "")
        if present != self.flags and not fresh:
            raise ValueError(
                f"{where} runs with {FLAGS}={present!r}, but this sweep needs {self.flags!r}; restart the "
                "workers, for example by client.restart()"
            )
        if present != self.flags:
            os.environ[FLAGS] = self.flags

    def require_versions(self, found: dict[str, str | None], where: str) -> None:
        """Raises ValueError unless another process has the same versions."""
        wrong = [
            f"{name} {found.get(name) or 'missing'} instead of {version}"
            for name, version in self.versions.items()
            if found.get(name) != version
        ]
        if wrong:
            raise ValueError(
                f"{where} has {', '.join(wrong)}: its results may differ, and it may not understand its "
                "tasks. Install the same versions wherever the sweep runs"
            )


def short(version: str) -> str:
    """The major and minor numbers of a version."""
    return ".".join(version.split(".")[:2])


def packed(plan: Plan, store: tuple[Path, str] | None, conditions: Conditions) -> bytes:
    """The bytes that all tasks of a sweep share; functions and classes that workers cannot import are sent by value.

    `store` is the store's path and identity; None makes workers send lanes back.
    """
    import cloudpickle

    # A copy of the plan without its cached properties, which would be pickled with it.
    return pickle.dumps((conditions, cloudpickle.dumps((dataclasses.replace(plan), store))))


def work(blob: bytes, group: str, size: int, lanes: np.ndarray) -> Receipt:
    """Runs some lanes of a group, in batches of `size`; rows go to the store given to `packed`, or into the receipt."""
    with _beginning:
        worker = _worker(blob)
    return worker.run(group, size, lanes)


class _Worker:
    """A sweep on one worker, where each group is compiled once. The process is fresh in its first sweep."""

    def __init__(self, blob: bytes):
        import cloudpickle
        from distributed import get_worker

        where = f"the worker {get_worker().address}"
        self._conditions, content = pickle.loads(blob)
        self._conditions.require_versions(dict(Conditions.here().versions), where)  # it may have joined late
        self._conditions.adopt_flags(where, fresh=not _worker.cache_info().currsize)
        self._compiling = threading.Lock()
        self._compiled: dict[tuple[str, int | None, int], ShrinkingProgram] = {}
        self._ways: dict[str, Ways] = {}
        with self._conditions.applied():
            try:
                self._plan, self._store = cloudpickle.loads(content)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"{where} has no module {error.name!r}, which the sweep needs; install it there, or send it with "
                    f"client.upload_file('{error.name}.py')"
                ) from error
            self._groups = {group.name: group for group in self._plan.groups}

    def run(self, group: str, size: int, lanes: np.ndarray) -> Receipt:
        """Runs some lanes of a group, as `work` does."""
        wanted = np.zeros(self._plan.lanes, bool)
        wanted[lanes] = True
        with self._conditions.applied():
            with self._compiling:
                programs = [(self._program(part, size), mine) for part, mine in self._parts(group, wanted)]
            last = programs[-1][0]
            if self._store is None:
                batches = tuple(batch for program, mine in programs for batch in program.run(mine))
                return Receipt(lanes, last.program.origin, sum(batch.failed for batch in batches), batches)
            failed = 0
            path, identity = self._store
            with JoinedStore(path, self._plan, lanes, identity=identity) as store:
                for program, mine in programs:
                    for batch in program.run(mine & store.missing):
                        store.write(batch)
                        failed += batch.failed
            return Receipt(lanes, last.program.origin, failed, ())

    def _parts(self, group: str, wanted: np.ndarray) -> Iterator[tuple[Group, np.ndarray]]:
        if group not in self._ways:
            self._ways[group] = self._plan.ways(self._groups[group])
        return self._ways[group].parts(wanted)

    def _program(self, group: Group, size: int) -> ShrinkingProgram:
        key = group.name, group.way, size
        if key not in self._compiled:
            program = self._plan.trace(group, size=size)
            program.runner.compile()
            self._compiled[key] = ShrinkingProgram(program)
        return self._compiled[key]


_worker = functools.lru_cache(maxsize=1)(_Worker)
_beginning = threading.Lock()  # tasks in several threads of a process share one worker object
