"""What the workers of a dask cluster do in a sweep, and what they need for it."""

import contextlib
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
import jax.experimental
import numpy as np

from ..planning._plan import Plan
from ..running._fitting import Fitting
from ..running.programs._base import Batch, Origin
from ..store._manifest import LIBRARIES
from ._joined import JoinedStore


FLAGS = "XLA_FLAGS"
# Of JAX, what decides the bits of a result.
SETTINGS = (
    "enable_x64",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
)


class Job(NamedTuple):
    """What all tasks of a sweep have in common.

    Attributes:
        plan: of the sweep.
        path: of the store that workers write to; None if they send their lanes back.
    """

    plan: Plan
    path: Path | None


class Receipt(NamedTuple):
    """For lanes that have run on a worker.

    Attributes:
        lanes: their flat indices.
        origin: where and how they ran; if they ran in batches of several sizes, the last.
        failed: how many of them failed.
        batches: their rows, if they were sent back.
    """

    lanes: np.ndarray
    origin: Origin
    failed: int
    batches: tuple[Batch, ...]


class Conditions(NamedTuple):
    """What decides the bits of a result in a process, and must be the same in all that take part.

    Attributes:
        settings: of JAX, by name.
        flags: of XLA.
        versions: of libraries, by name.
    """

    settings: dict[str, Any]
    flags: str
    versions: dict[str, str]

    @staticmethod
    def here() -> "Conditions":
        """Those of this process."""
        return Conditions(_settings(), os.environ.get(FLAGS, ""), versions_here())

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While it is entered, JAX has these settings in this thread."""
        with contextlib.ExitStack() as stack:
            for name, value in self.settings.items():
                if _settings()[name] != value:
                    # JAX before 0.8 has enable_x64 among the experiments.
                    setting: Any = getattr(jax if hasattr(jax, name) else jax.experimental, name)
                    stack.enter_context(setting(value))
            yield

    def adopt_flags(self, where: str, *, fresh: bool) -> None:
        """Takes over the flags of XLA, which reads them once, when a process first computes something.

        Arguments:
            where: what to call this process.
            fresh: whether it has computed nothing yet.

        Raises:
            ValueError: it is too late.
        """
        present = os.environ.get(FLAGS, "")
        if present == self.flags:
            return
        if not fresh:
            raise ValueError(
                f"{where} runs with {FLAGS}={present!r}, but this sweep needs {self.flags!r}; restart the "
                "workers, for example by client.restart()"
            )
        os.environ[FLAGS] = self.flags

    def require_versions(self, found: dict[str, str | None], where: str) -> None:
        """Raises ValueError unless another process has the same libraries."""
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


def versions_here() -> dict[str, str]:
    """The versions of Python, to its second number, and of the libraries that a manifest names."""
    return {"python": short(sys.version.split()[0]), **{name: metadata.version(name) for name in LIBRARIES}}


def short(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def _settings() -> dict[str, Any]:
    config: Any = jax.config
    return {name: getattr(config, f"jax_{name}") for name in SETTINGS}


def packed(job: Job, conditions: Conditions) -> bytes:
    """A job in which functions and classes that a worker cannot import travel by value."""
    import cloudpickle

    return pickle.dumps((conditions, cloudpickle.dumps(job)))


def held(blob: bytes) -> bytes:
    """What holds a job in the memory of a worker."""
    return blob


def work(blob: bytes, group: str, size: int, lanes: np.ndarray) -> Receipt:
    """Runs some lanes of a group, in batches of `size`, and leaves them where the job says."""
    return _worker(blob).run(group, size, lanes)


@functools.lru_cache(maxsize=1)
def _worker(blob: bytes) -> "_Worker":
    return _Worker(blob, fresh=_worker.cache_info().currsize == 0)


class _Worker:
    """A job in one worker, where each group is compiled once.

    Arguments:
        blob: from `packed`.
        fresh: whether this is the first job of the process.
    """

    def __init__(self, blob: bytes, *, fresh: bool):
        import cloudpickle
        from distributed import get_worker

        where = f"the worker {get_worker().address}"
        self._conditions, content = pickle.loads(blob)
        self._conditions.require_versions(dict(Conditions.here().versions), where)  # it may have come later
        self._conditions.adopt_flags(where, fresh=fresh)
        self._compiling = threading.Lock()
        self._compiled: dict[tuple[str, int], Fitting] = {}
        with self._conditions.applied():
            try:
                self._job: Job = cloudpickle.loads(content)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"{where} has no module {error.name!r}, which the sweep needs; install it there, or send it by "
                    f"client.upload_file('{error.name}.py')"
                ) from error
            self._groups = {group.name: group for group in self._job.plan.groups}

    def run(self, group: str, size: int, lanes: np.ndarray) -> Receipt:
        """Runs lanes and leaves them where the job says."""
        plan, path = self._job
        wanted = np.zeros(plan.lanes, bool)
        wanted[lanes] = True
        with self._conditions.applied():
            with self._compiling:
                fitting = self._fitting(group, size)
            if path is None:
                batches = tuple(fitting.run(wanted))
                return Receipt(lanes, fitting.program.origin, sum(batch.failed for batch in batches), batches)
            failed = 0
            with JoinedStore(path, plan, lanes) as store:
                for batch in fitting.run(wanted & store.missing):
                    store.write(batch)
                    failed += batch.failed
            return Receipt(lanes, fitting.program.origin, failed, ())

    def _fitting(self, group: str, size: int) -> Fitting:
        if (group, size) not in self._compiled:
            traced = self._job.plan.trace(self._groups[group], size=size)
            self._compiled[group, size] = Fitting(traced, traced.lowered.compile())
        return self._compiled[group, size]
