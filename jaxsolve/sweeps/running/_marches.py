"""Runners of marches, whose lanes need different numbers of steps: one after another in a loop, or in lockstep."""

import functools
import time
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ..._core import advance_alone
from ..._solve import observe_march
from ..grid._axes import rows_at
from ._builder import Cells, Leaves
from ._runner import AbstractRunner, Batch, lane_of, LaneQueue, Lanes


LONG = 0.1  # seconds after which a call of a loop is long enough: with more lanes, results would only come later
PORTION = 8  # lanes enter and leave by 1/8 of a batch: larger portions wait for others, smaller ones need more calls
LOOK = 0.2  # approximate seconds between checks of a batch in lockstep
NONE = -1  # marks a place that holds no lane
ENDLESS = np.iinfo(np.int32).max  # more steps than any run makes


@final
class Looped(AbstractRunner):
    """A loop over up to `rows` lanes on each device: no lane waits for another, and a branch not taken costs nothing.

    Best on CPUs, if a step of one lane is enough work.
    """

    refills = True

    def _program(self) -> Any:
        @functools.partial(jax.jit, inline=True)  # so that eval_shape and the loop share one trace
        def lane(cell: dict[str, Array]) -> tuple[Lanes, Int[Array, ""]]:
            problem, march = self.lane(self.builder.leaves(cell))
            state, attempts = advance_alone(problem, march, march.init(problem, self.ts), ENDLESS)
            run = march.finish(problem, state)
            return lane_of(run, observe_march(problem, self.observables, run)), attempts.astype(jnp.int32)

        def batch(cells: dict[str, Array], count: Int[Array, " device"]) -> tuple[Lanes, Int[Array, " lanes"]]:
            def fill(index: Array, found: Any) -> Any:
                row = lane({name: values[index] for name, values in cells.items()})
                return jax.tree.map(lambda all_rows, value: all_rows.at[index].set(value), found, row)

            # The number of wanted rows is an input, so one program serves any number of lanes, and a lane's bits do not
            # depend on how many run with it.
            empty = lambda leaf: jnp.zeros((self._rows, *leaf.shape), leaf.dtype)
            return jax.lax.fori_loop(0, count[0], fill, jax.tree.map(empty, jax.eval_shape(lane, self.builder.cell)))

        return batch, [self.shapes(self._rows), jax.ShapeDtypeStruct((1,), jnp.int32)]

    def run(self, cells: Cells, lanes_left: LaneQueue, hand_over: Callable[[Batch], Any]) -> None:
        each = 1
        while True:
            # Near the end, a call takes few lanes, so that other streams do not wait for this one.
            share = -(-len(lanes_left) // (2 * self.streams * len(self.devices)))
            places = lanes_left.take(len(self.devices) * max(1, min(each, share, self._rows)))
            if not len(places):
                return
            begin = time.perf_counter()
            done, attempts = self._call(cells, places)
            wall = time.perf_counter() - begin
            lanes_left.learn(places, attempts)
            steps = int(attempts.sum())
            hand_over(Batch(places, done, wall, steps, steps))
            if wall < LONG:
                each = min(2 * each, self._rows)

    def _call(self, cells: Cells, places: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        parts = np.array_split(places, len(self.devices))
        counts = np.array([len(part) for part in parts], np.int32)
        filled = [part if len(part) else places[:1] for part in parts]  # every call needs the same number of rows
        rows = np.concatenate([np.pad(part, (0, self._rows - len(part)), "edge") for part in filled])
        lanes, attempts = self._compiled(rows_at(cells, rows), counts)
        wanted = np.concatenate([self._rows * device + np.arange(count) for device, count in enumerate(counts)])
        return rows_at(lanes, wanted), np.asarray(attempts)[wanted]


@final
class Lockstep(AbstractRunner):
    """All places of a batch make a step at once, and new lanes take the places of finished ones.

    It runs in turns: lanes enter a batch, all march until enough are done, and some of the finished ones leave. Best on
    accelerators, and for lanes so small that a step of one is mostly overhead.
    """

    refills, alone = True, True

    def _program(self) -> Any:
        rows = self._rows
        portion = self._portion = max(1, rows // PORTION)
        # A group that fits into a batch enters at once. It leaves in portions, since observed values may be large.
        entering = self._entering = rows if self.builder.lanes <= self.size else portion

        def begin(cells: dict[str, Array], count: int) -> Any:
            own, shared = jax.vmap(self.builder.leaves, out_axes=Leaves(0, None), axis_size=count)(cells)

            def start(own: Any) -> Any:
                problem, march = self.lane(Leaves(own, shared))
                return march.init(problem, self.ts)

            return own, jax.vmap(start, axis_size=count)(own)

        def turn(
            cells: dict[str, Array],
            places: Int[Array, " entering"],
            live: Bool[Array, " rows"],
            limit: Int[Array, " device"],
            target: Int[Array, " device"],
            held: Any,
        ) -> tuple[Lanes, Any, Int[Array, " portion"], Int[Array, " rows"], Int[Array, " device"]]:
            def enter(held: Any) -> Any:
                new = begin(cells, entering)
                # The place `rows` lies outside the batch: no lane enters there.
                return jax.tree.map(lambda old, put: old.at[places].set(put, mode="drop"), held, new)

            own, state = jax.lax.cond(jnp.any(places < rows), enter, lambda held: held, held)
            # Shared arrays do not depend on the cell, so any cell gives them.
            shared = self.builder.leaves(jax.tree.map(lambda values: values[0], cells)).shared

            def move(own: Any, state: Any) -> Any:
                problem, march = self.builder.lane(Leaves(own, shared))
                return march.advance(problem, state, jnp.ones((), int))

            def leave(own: Any, state: Any) -> Lanes:
                problem, march = self.builder.lane(Leaves(own, shared))
                run = march.finish(problem, state)
                return lane_of(run, observe_march(problem, self.observables, run, at_once=1))

            def going(at: tuple[Any, Array, Array]) -> Array:
                state, _, count = at
                return (count < limit[0]) & (jnp.sum(state.done, dtype=jnp.int32) < target[0])

            def forward(at: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
                state, steps, count = at
                moved = jax.vmap(move, axis_size=rows)(own, state)
                return moved, steps + (~state.done).astype(jnp.int32), count + 1

            start = state, jnp.zeros(rows, jnp.int32), jnp.zeros((), jnp.int32)
            state, steps, count = jax.lax.while_loop(going, forward, start)
            # Empty places count as done, too, but hold no lane that could leave.
            (left,) = jnp.nonzero(state.done & live, size=portion, fill_value=rows)
            taken = jax.tree.map(lambda leaf: leaf[left], (own, state))
            leaving = jax.vmap(leave, axis_size=portion)
            nothing = lambda *taken: jax.tree.map(jnp.zeros_like, jax.eval_shape(leaving, *taken))
            lanes = jax.lax.cond(jnp.any(left < rows), leaving, nothing, *taken)
            return lanes, (own, state), left.astype(jnp.int32), steps, count[None]

        own, state = jax.eval_shape(lambda cells: begin(cells, rows), self.shapes(rows))
        whole = lambda leaf: jax.ShapeDtypeStruct((len(self.devices) * rows, *leaf.shape[1:]), leaf.dtype)
        self._empty = jax.tree.map(whole, (own, state))
        number = jax.ShapeDtypeStruct((1,), jnp.int32)
        places, live = jax.ShapeDtypeStruct((entering,), jnp.int32), jax.ShapeDtypeStruct((rows,), bool)
        return turn, [self.shapes(entering), places, live, number, number, (own, state)]

    def run(self, cells: Cells, lanes_left: LaneQueue, hand_over: Callable[[Batch], Any]) -> None:
        # The host's records of the places of a batch have one row per device.
        size = len(self.devices), self._rows
        lanes, useful, seconds = np.full(size, NONE), np.zeros(size, int), np.zeros(size)
        own, state = jax.tree.map(jnp.zeros_like, self._empty)
        # Empty places count as done from the start, so that no turn waits for them.
        held = own, eqx.tree_at(lambda state: state.done, state, jnp.ones_like(state.done))
        steps_at_once, executed = 1, 0
        while True:
            places, chosen = self._enter(lanes, lanes_left)
            live = lanes != NONE
            if not live.any():
                return
            entered = np.nonzero(places < self._rows)
            useful[entered[0], places[entered]] = seconds[entered[0], places[entered]] = 0
            # If no lanes are waiting for places, none need leave before the last is done.
            empty, more = np.sum(~live, axis=1), len(lanes_left) > 0
            target = np.minimum(empty + (self._portion if more else self._rows), self._rows)
            limit = 0 if more and empty.any() else steps_at_once  # fill empty places first
            begin = time.perf_counter()
            held, found, left, steps, count = self._call(rows_at(cells, chosen), places, live, limit, target, held)
            # Wall time is shared in proportion to steps; equally in a turn without steps.
            wall, weight = time.perf_counter() - begin, steps if steps.any() else live
            seconds, useful, executed = seconds + wall * weight / weight.sum(), useful + steps, executed + count.sum()
            # Only a turn that used up its limit shows how long that many steps take.
            if limit and count.max() == limit * self._rows:
                steps_at_once = max(1, int(limit * np.clip(LOOK / wall, 0.5, 4)))
            wanted = left < self._rows
            if wanted.any():
                gone = np.nonzero(wanted)[0], left[wanted]
                lanes_left.learn(lanes[gone], useful[gone])
                rows, walls = rows_at(found, wanted.ravel()), float(seconds[gone].sum())
                hand_over(Batch(lanes[gone], rows, walls, int(useful[gone].sum()), int(executed)))
                lanes[gone], executed = NONE, 0

    def _enter(self, lanes: np.ndarray, lanes_left: LaneQueue) -> tuple[np.ndarray, np.ndarray]:
        """Puts lanes into empty places; returns these places for each device, and the lanes."""
        free = [np.flatnonzero(row == NONE)[: self._entering] for row in lanes]
        # Devices take turns, so that all of them are busy.
        turns = sorted((turn, device) for device, places in enumerate(free) for turn in range(len(places)))
        size = len(lanes), self._entering
        places, chosen = np.full(size, self._rows, np.int32), np.zeros(size, int)
        taken: list[int] = []
        while len(taken) < len(turns) and len(lanes_left):  # a call takes at most one window
            taken += lanes_left.take(len(turns) - len(taken)).tolist()
        for lane, (turn, device) in zip(taken, turns, strict=False):
            places[device, turn], chosen[device, turn] = free[device][turn], lane
            lanes[device, free[device][turn]] = lane
        return places, chosen.ravel()

    def _call(self, cells: Cells, places: Any, live: Any, limit: int, target: Any, held: Any) -> tuple[Any, ...]:
        """Runs a turn; its results on the host have one row per device, and count the steps of all its places."""
        limits = np.full(len(live), limit, np.int32)
        out = self._compiled(cells, places.ravel(), live.ravel(), limits, target.astype(np.int32), held)
        found, held, *numbers = out
        left, steps, count = (np.asarray(values).reshape(len(live), -1) for values in numbers)
        return held, found, left, steps, count * self._rows
