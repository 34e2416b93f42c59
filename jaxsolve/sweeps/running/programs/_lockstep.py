"""Marches in lockstep: all places of a batch make a step at once, and new lanes take the places of finished ones.

Best on accelerators, and for lanes so small that a step of one is mostly overhead.
"""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any, final, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ...._solve import observe_march
from .._builder import Cells, Leaves, Setup
from ._base import AbstractLowered, AbstractRunner, Batch, lane_of, Lanes, take
from ._queue import Waiting


PORTION = 8  # lanes enter and leave by this part of a batch: fewer would wait for others, more would be calls for few
TOGETHER = 8  # where nobody waits for a place, so many leave at once: a call of `leave` costs the same for one
LOOK = 0.2  # seconds between two looks at a batch, about
NONE = -1  # in the place of a lane


class Phases(NamedTuple):
    """What is done with a batch. Its places stand one device's after another's.

    Attributes:
        share: cell -> the arrays that all problems share.
        enter: cells, places, own, state -> own, state with new lanes at these places.
        advance: limit, target, own, shared, state -> state, steps of each lane, steps of the batch; each device goes on
            until so many of its places are done, or the limit is reached.
        leave: places, own, shared, state -> what came out of the lanes at these places.
    """

    share: Any
    enter: Any
    advance: Any
    leave: Any


class Sizes(NamedTuple):
    """Places of a device, how many of them enter or leave at once, and the number of devices."""

    rows: int
    portion: int
    devices: int


@final
class LoweredLockstep(AbstractLowered):
    """The programs of a batch in lockstep. Arguments as for `LoweredFused`."""

    refills = True

    def __init__(self, setup: Setup):
        devices, rows = setup.devices, setup.rows
        portion = max(1, rows // PORTION)
        self._sizes = Sizes(rows, portion, len(devices))

        def begin(cells: dict[str, Array], count: int) -> tuple[list[Array], Any]:
            own, shared = jax.vmap(setup.leaves, out_axes=Leaves(0, None), axis_size=count)(cells)

            def start(own: list[Array]) -> Any:
                problem, march = setup.lane(Leaves(own, shared))
                return march.init(problem, setup.ts)

            return own, jax.vmap(start, axis_size=count)(own)

        def enter(cells: dict[str, Array], places: Int[Array, " portion"], own: list[Array], state: Any) -> Any:
            put = lambda old, new: old.at[places].set(new, mode="drop")
            return jax.tree.map(put, (own, state), begin(cells, portion))

        def advance(
            limit: Int[Array, " device"],
            target: Int[Array, " device"],
            own: list[Array],
            shared: list[Array],
            state: Any,
        ) -> tuple[Any, Int[Array, " rows"], Int[Array, " device"]]:
            one = jnp.ones((), int)

            def move(own: list[Array], state: Any) -> Any:
                problem, march = setup.lane(Leaves(own, shared))
                return march.advance(problem, state, one)

            step = jax.vmap(move, axis_size=rows)

            def going(at: tuple[Any, Array, Array]) -> Array:
                state, _, count = at
                return (count < limit[0]) & (jnp.sum(state.done, dtype=jnp.int32) < target[0])

            def forward(at: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
                state, steps, count = at
                return step(own, state), steps + (~state.done).astype(jnp.int32), count + 1

            start = state, jnp.zeros(rows, jnp.int32), jnp.zeros((), jnp.int32)
            state, steps, count = jax.lax.while_loop(going, forward, start)
            return state, steps, count[None]

        def leave(places: Int[Array, " portion"], own: list[Array], shared: list[Array], state: Any) -> Lanes:
            def lane(own: list[Array], state: Any) -> Lanes:
                problem, march = setup.lane(Leaves(own, shared))
                run = march.finish(problem, state)
                observed = observe_march(problem, setup.observables, run, at_once=1)
                return lane_of(run, observed)

            chosen = jax.tree.map(lambda leaf: leaf[places], (own, state))
            return jax.vmap(lane, axis_size=portion)(*chosen)

        few, share = setup.shapes(portion), lambda cell: setup.leaves(cell).shared
        own, state = jax.eval_shape(lambda cells: begin(cells, rows), setup.shapes(rows))
        shared = jax.eval_shape(share, setup.cell)
        places, number = (jax.ShapeDtypeStruct((count,), jnp.int32) for count in (portion, 1))
        lower = devices.lower
        self._lowered = Phases(
            lower(share, [setup.cell], [True, True]),
            lower(enter, [few, places, own, state], [False] * 5),
            lower(advance, [number, number, own, shared, state], [False, False, False, True, False, False]),
            lower(leave, [places, own, shared, state], [False, False, True, False, False]),
        )
        self._empty = _longer((own, state), len(devices) * rows)
        self.out_info = self._lowered.leave.out_info

    def compile(self) -> "Lockstep":
        with concurrent.futures.ThreadPoolExecutor(len(self._lowered)) as pool:
            compiled = Phases(*pool.map(lambda program: program.compile(), self._lowered))
        return Lockstep(compiled, self._sizes, self._empty)


@final
class Lockstep(AbstractRunner):
    """Compiled programs for batches in lockstep.

    Arguments:
        compiled: the programs.
        sizes: of a batch.
        empty: shapes and dtypes of a batch's own arrays and states.
    """

    def __init__(self, compiled: Phases, sizes: Sizes, empty: Any):
        self._compiled = compiled
        self._sizes = sizes
        self._empty = empty
        self.programs, self.streams = compiled, 1

    def run(self, cells: Cells, waiting: Waiting, hand_over: Callable[[Batch], Any]) -> None:
        places = _Places(self._compiled, self._sizes, self._empty, cells)
        while True:
            places.fill(waiting)
            if not places.live.any():
                return
            done = places.advance(drain=len(waiting) == 0)
            waiting.learn(places.lanes[done], places.useful[done])
            # Where no others wait for their places, lanes stay until some can leave together.
            if done.any() and (len(waiting) or done.sum() >= TOGETHER or np.array_equal(done, places.live)):
                hand_over(places.leave(done))


class _Places:
    """The places of a batch while it runs. What the host knows of its places has one row per device."""

    def __init__(self, compiled: Phases, sizes: Sizes, empty: Any, cells: Cells):
        self._compiled, self._sizes, self._cells = compiled, sizes, cells
        places = sizes.devices, sizes.rows
        self._own, state = jax.tree.map(lambda leaf: _zeros(leaf.shape, leaf.dtype), empty)
        self._state = eqx.tree_at(lambda state: state.done, state, np.ones(sizes.devices * sizes.rows, bool))
        self._shared = compiled.share({name: values[0] for name, values in cells.items()})
        self._seconds = np.zeros(places)
        self._executed = 0  # since lanes were last handed over
        self._limit = 1
        self.lanes = np.full(places, NONE)
        self.useful = np.zeros(places, int)

    @property
    def live(self) -> np.ndarray:
        """Which places hold a lane."""
        return self.lanes != NONE

    def fill(self, waiting: Waiting) -> None:
        """Puts lanes into the places that hold none."""
        rows, portion, devices = self._sizes
        while not self.live.all():
            free = [np.flatnonzero(~live)[:portion] for live in self.live]
            # One for each device in turn, so that all of them are busy.
            turns = sorted((turn, device) for device, places in enumerate(free) for turn in range(len(places)))
            lanes = waiting.take(len(turns))
            if not len(lanes):
                return
            places, chosen = np.full((devices, portion), rows, np.int32), np.full((devices, portion), lanes[0])
            for lane, (turn, device) in zip(lanes, turns, strict=False):
                place = free[device][turn]
                places[device, turn], chosen[device, turn] = place, lane
                self.lanes[device, place], self.useful[device, place], self._seconds[device, place] = lane, 0, 0
            new = take(self._cells, chosen.ravel())
            self._own, self._state = self._compiled.enter(new, places.ravel(), self._own, self._state)

    def advance(self, *, drain: bool) -> np.ndarray:
        """Makes steps until, on each device, some lanes are done, or with `drain` all; which ones are."""
        rows, portion, devices = self._sizes
        begin = time.perf_counter()
        empty = np.sum(~self.live, axis=1)
        target = np.full(devices, rows) if drain else np.minimum(empty + portion, rows)
        limit = np.full(devices, self._limit)
        self._state, steps, count = self._compiled.advance(
            limit.astype(np.int32), target.astype(np.int32), self._own, self._shared, self._state
        )
        steps, done = np.asarray(steps).reshape(devices, rows), np.asarray(self._state.done).reshape(devices, rows)
        wall = time.perf_counter() - begin
        self._seconds += wall * steps / max(steps.sum(), 1)
        self.useful += steps
        self._executed += rows * int(np.asarray(count).sum())
        if int(np.asarray(count).max()) == self._limit:
            self._limit = max(1, int(self._limit * np.clip(LOOK / wall, 0.5, 4)))
        return done & self.live

    def leave(self, done: np.ndarray) -> Batch:
        """Takes lanes out of their places."""
        rows, portion, devices = self._sizes
        left = [np.flatnonzero(places) for places in done]
        found, lanes = [], []
        begin = time.perf_counter()
        while any(map(len, left)):
            places, wanted = np.zeros((devices, portion), np.int32), np.zeros((devices, portion), bool)
            for device, finished in enumerate(left):
                part, left[device] = finished[:portion], finished[portion:]
                places[device, : len(part)], wanted[device, : len(part)] = part, True
                lanes.append(self.lanes[device, part])
            rows_of_all = self._compiled.leave(places.ravel(), self._own, self._shared, self._state)
            found.append(jax.tree.map(lambda leaf, wanted=wanted: np.asarray(leaf)[wanted.ravel()], rows_of_all))
        wall = float(self._seconds[done].sum()) + time.perf_counter() - begin
        useful, executed, self._executed = int(self.useful[done].sum()), self._executed, 0
        self.lanes[done] = NONE
        all_rows = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        return Batch(np.concatenate(lanes), all_rows, wall, useful, executed)


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros, of NumPy where it knows the dtype: nothing needs to be compiled for them."""
    return jnp.zeros(shape, dtype) if jnp.issubdtype(dtype, jax.dtypes.extended) else np.zeros(shape, dtype)


def _longer(tree: Any, rows: int) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), tree)
