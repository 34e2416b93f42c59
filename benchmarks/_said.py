"""What benchmarks say: what was measured, its goal, and on which machine."""

import importlib.metadata
import math
import os
import platform
import resource
from typing import Any, NamedTuple

import jax
import psutil


BUSY = 10.0  # per cent of all cores that others may use before a benchmark begins


class Row(NamedTuple):
    """One number.

    Attributes:
        what: was measured, of what, in which unit.
        measured: the number.
        sense: ">=" or "<=", of a goal.
        goal: what it was built to reach; without one, NaN.
        shown: how its digits are shown.
    """

    what: str
    measured: float
    sense: str = ""
    goal: float = math.nan
    shown: str = ".3g"

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached, which a NaN does not; None without a goal."""
        if math.isnan(self.goal):
            return None
        return bool(self.measured >= self.goal if self.sense == ">=" else self.measured <= self.goal)

    def __str__(self) -> str:
        goal = {None: "", True: "met", False: "NOT MET"}[self.met]
        promised = f"   (goal: {self.sense} {self.goal:.3g}) {goal}" if goal else ""
        return f"{self.what:<84} {self.measured:>9{self.shown}}{promised}"

    def facts(self) -> dict[str, Any]:
        """As JSON, which knows no NaN and no infinity."""
        finite = lambda value: float(value) if math.isfinite(value) else None
        measured, goal = finite(self.measured), finite(self.goal)
        return {"what": self.what, "measured": measured, "sense": self.sense, "goal": goal, "met": self.met}


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    packages = ("jaxsolve", "jax", "jaxlib", "equinox", "diffrax", "optax", "neural-tangents")
    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def busy() -> float:
    """Per cent of all cores that are in use, over a second in which this process sleeps."""
    return psutil.cpu_percent(interval=1.0)


def peak_memory() -> float:
    """Bytes that this process has held at most, of the host."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
