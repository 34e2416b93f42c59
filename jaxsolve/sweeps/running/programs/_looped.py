"""Marches one after another in a compiled loop: no lane waits for another, and a branch not taken costs nothing.

Best on processors, for lanes of which a step is work enough.
"""

import time
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ...._solve import observe_march
from .._builder import Cells, Setup
from ._base import AbstractRunner, Batch, lane_of, Lanes, rows_at, take, zeros
from ._queue import Waiting


LONG = 0.1  # seconds of a call that are enough: more lanes at once would only be later to show


@final
class Looped(AbstractRunner):
    """A loop over up to `rows` lanes on each device."""

    refills = True

    def _program(self, setup: Setup) -> Any:
        def lane(cell: dict[str, Array]) -> tuple[Lanes, Int[Array, ""]]:
            (problem, march), one = setup.lane(setup.leaves(cell)), jnp.ones((), int)
            step = lambda at: (march.advance(problem, at[0], one), at[1] + 1)
            start = march.init(problem, setup.ts), jnp.zeros((), jnp.int32)
            state, attempts = jax.lax.while_loop(lambda at: ~at[0].done, step, start)
            run = march.finish(problem, state)
            return lane_of(run, observe_march(problem, setup.observables, run)), attempts

        def batch(cells: dict[str, Array], count: Int[Array, " device"]) -> tuple[Lanes, Int[Array, " lanes"]]:
            def fill(index: Array, found: Any) -> Any:
                row = lane({name: values[index] for name, values in cells.items()})
                return jax.tree.map(lambda all_rows, value: all_rows.at[index].set(value), found, row)

            # How many rows are wanted is known only when it runs, so one program serves any number of lanes, and the
            # bits of a lane do not depend on how many run with it.
            return jax.lax.fori_loop(0, count[0], fill, zeros(jax.eval_shape(lane, setup.cell), setup.rows))

        return batch, [setup.shapes(setup.rows), jax.ShapeDtypeStruct((1,), jnp.int32)]

    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        each = 1
        while True:
            # Near the end a call takes few lanes, so that other streams do not wait for this one.
            share = -(-len(waiting) // (2 * self.streams * len(self._devices)))
            places = waiting.take(len(self._devices) * max(1, min(each, share, self._rows)))
            if not len(places):
                return
            begin = time.perf_counter()
            done, attempts = self._call(cells, places)
            wall = time.perf_counter() - begin
            waiting.learn(places, attempts)
            steps = int(attempts.sum())
            hand_over(Batch(places, done, wall, steps, steps))
            if wall < LONG:
                each = min(2 * each, self._rows)

    def _call(self, cells: Cells, places: np.ndarray) -> tuple[Lanes, np.ndarray]:
        parts = np.array_split(places, len(self._devices))
        counts = np.array([len(part) for part in parts], np.int32)
        filled = [part if len(part) else places[:1] for part in parts]  # the program has the same rows at each call
        rows = np.concatenate([np.pad(part, (0, self._rows - len(part)), "edge") for part in filled])
        lanes, attempts = self._compiled(take(cells, rows), counts)
        wanted = np.concatenate([self._rows * device + np.arange(count) for device, count in enumerate(counts)])
        return rows_at(lanes, wanted), np.asarray(attempts)[wanted]
