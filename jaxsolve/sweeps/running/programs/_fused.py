"""Closed forms: lanes in one fused kernel, where nothing waits for anything."""

import time
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...._results import result_code
from ...._solve import check_applies, observe_random_access, random_access_result
from .._builder import Cells, Leaves, Setup
from .._devices import Devices
from ._base import AbstractLowered, AbstractRunner, Batch, first, Lanes, repeat_last, safe_streams, take
from ._queue import Waiting


# Lanes of a call on a processor: more at once cost more each.
TILE = 1024


@final
class LoweredFused(AbstractLowered):
    """The program of a closed form.

    Arguments:
        setup: of the group.

    Raises:
        NotApplicable: the dynamics is for another kind of problem.
    """

    refills = False

    def __init__(self, setup: Setup):
        # Only the kind of problem matters here; to say what it is takes numbers.
        wrong: list[bool] = []

        def look(cell: dict[str, Array]) -> None:
            problem, closed = setup.lane(setup.leaves(cell))
            wrong.append(closed.check(problem).structural)

        jax.eval_shape(look, setup.cell)
        if any(wrong):
            problem, closed = setup.lane(jax.jit(setup.leaves)(setup.cell))
            check_applies(problem, closed, throw=False)
        ts, devices = setup.ts, setup.devices
        rows = min(setup.rows, TILE) if devices.on_cpu else setup.rows

        def lane(own: list[Array], shared: list[Array]) -> Lanes:
            problem, closed = setup.lane(Leaves(own, shared))
            observed = observe_random_access(problem, closed, setup.observables, ts.astype(problem.x.dtype))
            code = result_code(random_access_result(problem, closed))
            return Lanes(observed, ts, ts[-1], code, jnp.zeros((), int))

        def batch(cells: dict[str, Array]) -> Lanes:
            own, shared = jax.vmap(setup.leaves, out_axes=Leaves(0, None), axis_size=rows)(cells)
            return jax.vmap(lane, in_axes=(0, None), axis_size=rows)(own, shared)

        self._rows, self._devices = len(devices) * rows, devices
        self._lowered = devices.lower(batch, [setup.shapes(rows)], [False, False])
        self.out_info = self._lowered.out_info

    def compile(self) -> "Fused":
        return Fused(self._devices.compile(self._lowered), self._rows, self._devices)


@final
class Fused(AbstractRunner):
    """The compiled program of a closed form, which takes a number of rows at each call."""

    def __init__(self, compiled: jax.stages.Compiled, rows: int, devices: Devices):
        self._compiled = compiled
        self._rows = rows
        self.programs, self.streams = [compiled], safe_streams(compiled, devices)

    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        while len(places := waiting.take(self._rows)):
            begin = time.perf_counter()
            # Calls are repeat_last, so that a lane's bits do not depend on how many lanes are left.
            rows = first(self._compiled(take(cells, repeat_last(places, self._rows))), len(places))
            hand_over(Batch(places, rows, time.perf_counter() - begin, 0, 0))
