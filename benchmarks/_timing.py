"""Times of several ways of doing the same, which share what the machine is doing meanwhile, and of fresh processes."""

import gc
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax


def in_turns(
    ways: Sequence[Callable[[], Any]],
    repeats: int,
    budget: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of each way, called one after the other `repeats` times; fewer once `budget` seconds are spent.

    What compiles must have been called before.
    """
    found: list[list[float]] = [[] for _ in ways]
    while len(found[0]) < repeats and sum(map(sum, found)) < budget:
        for way, seconds in zip(ways, found, strict=True):
            begin = clock()
            jax.block_until_ready(way())
            seconds.append(clock() - begin)
    return found


def clock() -> float:
    """Seconds of processor time; on accelerators, of wall time."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def forget_programs() -> None:
    """Drops all that is compiled: programs of a whole suite are more mappings of memory than Linux gives a process."""
    jax.clear_caches()
    gc.collect()


def timed(way: Callable[[], Any]) -> tuple[Any, float]:
    """What one call returns, and its seconds."""
    begin = time.perf_counter()
    found = jax.block_until_ready(way())
    return found, time.perf_counter() - begin


def as_installed() -> dict[str, str]:
    """The environment, where Python keeps its bytecode as after an installation: if not beside the code, then apart."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if sys.dont_write_bytecode:
        kept.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix, "bytecode")))
    return kept


def own_process(code: str, **environment: str) -> list[float]:
    """The numbers that a fresh Python prints which runs this code, on the device that JAX has here.

    Raises:
        RuntimeError: it fails; the message ends like its errors.
    """
    # An accelerator is the default where there is one; JAX's names for its kinds are not those that it takes.
    device = {"JAX_PLATFORMS": "cpu"} if jax.default_backend() == "cpu" else {}
    command, environment = [sys.executable, "-c", code], {**as_installed(), **device, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"a process of its own failed: {done.stderr.strip()[-300:]}")
    return [float(word) for word in done.stdout.split()]
