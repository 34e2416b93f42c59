"""Closed forms: lanes in one fused kernel, where nothing waits for anything."""

import time
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...._results import result_code
from ...._solve import check_applies, observe_random_access, random_access_result
from .._builder import Cells, Leaves, Setup
from ._base import AbstractRunner, Batch, Lanes, rows_at, take
from ._queue import Waiting


# Lanes of a call on a processor: more at once cost more each.
TILE = 1024


@final
class Fused(AbstractRunner):
    """Takes a number of rows at each call. Raises NotApplicable for another kind of problem than the dynamics'."""

    refills = False

    def _program(self, setup: Setup) -> Any:
        # Only the kind of problem matters here; to say what it is takes numbers.
        wrong: list[bool] = []

        def look(cell: dict[str, Array]) -> None:
            problem, closed = setup.lane(setup.leaves(cell))
            wrong.append(closed.check(problem).structural)

        jax.eval_shape(look, setup.cell)
        if any(wrong):
            problem, closed = setup.lane(jax.jit(setup.leaves)(setup.cell))
            check_applies(problem, closed, throw=False)
        ts = setup.ts
        rows = self._rows = min(self._rows, TILE) if self._devices.on_cpu else self._rows

        def lane(own: list[Array], shared: list[Array]) -> Lanes:
            problem, closed = setup.lane(Leaves(own, shared))
            observed = observe_random_access(problem, closed, setup.observables, ts.astype(problem.x.dtype))
            code = result_code(random_access_result(problem, closed))
            return Lanes(observed, ts, ts[-1], code, jnp.zeros((), int))

        def batch(cells: dict[str, Array]) -> tuple[Lanes]:
            own, shared = jax.vmap(setup.leaves, out_axes=Leaves(0, None), axis_size=rows)(cells)
            return (jax.vmap(lane, in_axes=(0, None), axis_size=rows)(own, shared),)

        return batch, [setup.shapes(rows)]

    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        size = len(self._devices) * self._rows
        while len(places := waiting.take(size)):
            begin = time.perf_counter()
            # Calls are filled up, so that a lane's bits do not depend on how many lanes are left.
            filled = take(cells, np.pad(places, (0, size - len(places)), "edge"))
            rows = rows_at(self._compiled(filled)[0], slice(len(places)))
            hand_over(Batch(places, rows, time.perf_counter() - begin))
