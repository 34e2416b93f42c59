"""What benchmarks say: where they run, how busy the machine is, and whether a goal was met."""

import contextlib
import os
import time
from collections.abc import Iterator

import jax
import psutil


@contextlib.contextmanager
def on_cpu(*more: str) -> Iterator[None]:
    """Work on the CPU, with a line before it and one after it.

    Arguments:
        more: what else the first line says.
    """
    start = time.perf_counter()
    with jax.default_device(jax.devices("cpu")[0]):
        print(", ".join([f"jax {jax.__version__} on CPU", f"{os.cpu_count()} cores", *more, _load()]))
        yield
        print(f"\n{_load()} at the end; wall time of it all {time.perf_counter() - start:.0f} s")


def _load() -> str:
    return "load " + "/".join(f"{load / (os.cpu_count() or 1):.2f}" for load in psutil.getloadavg()) + " per core"


def row(what: str, measured: float, sense: str, goal: float, measured_format: str = ".3g") -> str:
    """One line: what was measured, the goal (`sense` is ">=" or "<="), and whether it was met."""
    met = measured >= goal if sense == ">=" else measured <= goal  # False for what is not a number
    return f"{what:<84} {measured:>9{measured_format}}   (goal: {sense} {goal:.3g}) {'met' if met else 'NOT MET'}"
