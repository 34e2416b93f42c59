"""What benchmarks say: what was measured, its goal, and on which machine."""

import importlib.metadata
import math
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import psutil


BUSY = 10.0  # per cent of all cores that others may use while a benchmark runs


class Beside(NamedTuple):
    """What a number stands beside: the best other way, or a reference, such as the products of matrices it is made of.

    Attributes:
        name: of it.
        value: in the unit of the number.
    """

    name: str
    value: float


def rounding(dtype: Any) -> Beside:
    """What errors of this type are at best."""
    return Beside("rounding", float(jnp.finfo(dtype).eps))


class Row(NamedTuple):
    """One number.

    Attributes:
        what: was measured, of what, in which unit. The same on every machine and in every run.
        measured: the number.
        sense: ">=" or "<=", of a goal.
        goal: what it was built to reach; without one, NaN.
        shown: how its digits are shown.
        peer: the best other way of doing the same, if the number is a ratio of it to jaxsolve (or, with the sense
            "<=", of jaxsolve to it).
        limit: a reference, if the number is a ratio of jaxsolve to it.
        beside: others, in the unit of the number.
        note: what differs from run to run: steps, errors, settings.
    """

    what: str
    measured: float
    sense: str = ""
    goal: float = math.nan
    shown: str = ".3g"
    peer: str = ""
    limit: str = ""
    beside: tuple[Beside, ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached, which a NaN does not; None without a goal."""
        if math.isnan(self.goal):
            return None
        return bool(self.measured >= self.goal if self.sense == ">=" else self.measured <= self.goal)

    def __str__(self) -> str:
        goal = {None: "", True: "met", False: "NOT MET"}[self.met]
        promised = f"   (goal: {self.sense} {self.goal:.3g}) {goal}" if goal else ""
        others = (f"{name}: {value:.3g}" for name, value in self.beside)
        beside = "; ".join(filter(None, (self.peer or self.limit, *others, self.note)))
        beside = f"\n    ({beside})" if beside else ""
        return f"{self.what:<84} {self.measured:>9{self.shown}}{promised}{beside}"

    def facts(self) -> dict[str, Any]:
        """As JSON, which knows no NaN and no infinity."""
        finite = lambda value: float(value) if math.isfinite(value) else None
        beside = {name: finite(value) for name, value in self.beside}
        numbers = {"measured": finite(self.measured), "goal": finite(self.goal), "met": self.met, "beside": beside}
        return {**self._asdict(), **numbers}


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "optax", "neural-tangents")
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Others:
    """How much of the machine others use, from when this is made: processes that are not of this run."""

    def __init__(self) -> None:
        self._begin = self._now()

    def busy(self) -> float:
        """Per cent of all cores so far."""
        wall, every, own = (after - before for after, before in zip(self._now(), self._begin, strict=True))
        return max(0.0, 100 * (every - own) / (wall * (os.cpu_count() or 1)))

    def _now(self) -> tuple[float, float, float]:
        spent, this = psutil.cpu_times(), psutil.Process()
        every = sum(getattr(spent, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        # What has ended counts with the one that waited for it, which need not be this process: a server forks some.
        return time.perf_counter(), every, sum(map(_used, [this, *this.children(recursive=True)]))


def _used(process: psutil.Process) -> float:
    """Seconds of processor time, with those of children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def device_memory() -> int | None:
    """Bytes that this process has held at most on the device; None where that is the host's."""
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return None if not stats else stats.get("peak_bytes_in_use")


def peak_memory() -> float:
    """Bytes that this process has held at most, of the host."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, what getrusage says includes the process that started this one
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * float(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    unit = 1 if platform.system() == "Darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
