"""Times of several ways of doing the same, which share what the machine is doing meanwhile."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax


def in_turns(ways: Sequence[Callable[[], Any]], repeats: int, budget: float = math.inf) -> list[list[float]]:
    """Seconds of each way, called one after the other `repeats` times; fewer once `budget` seconds are spent.

    What compiles must have been called before.
    """
    found: list[list[float]] = [[] for _ in ways]
    while len(found[0]) < repeats and sum(map(sum, found)) < budget:
        for way, seconds in zip(ways, found, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(way())
            seconds.append(time.perf_counter() - begin)
    return found
