"""Sweeps: the share of useful steps, and the time of lanes (runs), against hand-written code.

The reference sweep is gamma over 6 decades x sigma over 2 x widths 16, 64, 256, 512 x 8 seeds, eta = gamma^-2, softplus
and tanh, parity of digits; here networks of one hidden layer on 32 samples up to t = 3, so that it takes minutes. Both
sides integrate by `diffrax.Tsit5` at equal tolerances, with the same controller, and save the same losses. All programs
are compiled beforehand and called in turns; a ratio is one of medians.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import jaxsolve as js
from jaxsolve.sweeps.grid._axes import Group, groups, read_axes
from jaxsolve.sweeps.running._builder import read_devices
from jaxsolve.sweeps.running._execute import run_group, trace_group

from ._said import Beside, Row
from ._timing import in_turns


GAMMAS = np.geomspace(1e-3, 1e3, 7)
SIGMAS = np.geomspace(0.02, 2.0, 3)
SEEDS = 8
WIDTHS = {16: 8, 64: 8, 256: 2, 512: 1}  # and how many of the seeds run: what is left out is said
ACTIVATIONS = ("softplus", "tanh")
SAMPLES = 32
RTOL, ATOL = 1e-4, 1e-7
MAX_STEPS = 4000
TIMES = np.geomspace(1e-2, 3.0, 10)
REPEATS = 3
SECONDS = 30.0  # of repetitions in one case: what takes longer is repeated less
CELLS = 100, 100, 100  # of a closed form: gammas, sigmas, seeds


def main(*, quick: bool) -> Iterator[Row]:
    """All of it; the quick part is the narrowest networks, and fewer cells."""
    yield from _closed_form(tuple(count // 5 for count in CELLS) if quick else CELLS)
    narrow = min(WIDTHS)
    yield from _reference({narrow: WIDTHS[narrow]} if quick else WIDTHS)


# --- the reference sweep


class Cell(NamedTuple):
    """Traced arguments, one or one per lane."""

    gamma: Any
    sigma: Any
    seed: Any


Build = Callable[..., js.Problem]


def problem_of(width: int, activation: str) -> Build:
    """Makes the problem of a cell."""
    data = js.data.digits(task="parity", n_train=SAMPLES, n_test=0, pca=10, key=jax.random.key(0))

    def build(gamma: Array, sigma: Array, seed: Array) -> js.Problem:
        scaling = js.nets.Scaling.lazy(gamma, sigma=sigma)
        net = js.nets.MLP(
            in_size=10,
            out_size=1,
            width_size=width,
            depth=1,
            activation=activation,
            scaling=scaling,
            key=jax.random.key(seed),
        )
        return js.Problem(net, *data.train, centered=True)

    return build


def by_hand(build: Build, ts: Array) -> Callable[[Cell], tuple[Array, Array]]:
    """A single solve by `diffeqsolve`: losses at the times, and steps."""

    def single(cell: Cell) -> tuple[Array, Array]:
        problem = build(*cell)
        start, unravel = ravel_pytree(problem.params)
        spread = lambda eta, w: jnp.broadcast_to(eta, w.shape)
        rates, _ = ravel_pytree(jax.tree.map(spread, problem.eta, problem.params))
        objective = lambda y: problem.objective(unravel(y))
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: -rates * jax.grad(objective)(y)),
            diffrax.Tsit5(),
            0.0,
            ts[-1],
            None,
            start,
            saveat=diffrax.SaveAt(ts=ts, fn=lambda t, y, args: objective(y)),
            stepsize_controller=diffrax.PIDController(rtol=RTOL, atol=ATOL, pcoeff=0.3, icoeff=0.4),
            adjoint=diffrax.ForwardMode(),
            max_steps=MAX_STEPS,
            throw=False,
        )
        return jnp.asarray(solution.ys), solution.stats["num_steps"]

    return single


def grid(seeds: int) -> Group:
    """All cells, as one group."""
    (group,) = groups(read_axes({"gamma": GAMMAS, "sigma": SIGMAS, "seed": range(seeds)}))
    return group


class Sides(NamedTuple):
    """Functions that run all cells and return their losses, compiled beforehand."""

    ours: Callable[[], np.ndarray]
    vmapped: Callable[[], np.ndarray]
    one_by_one: Callable[[], np.ndarray]


def sides(build: Build, group: Group, notes: dict[str, float]) -> Sides:
    """Ours, all lanes in one vmap, and a Python loop over warm single solves.

    Arguments:
        build: makes the problems.
        group: their cells.
        notes: takes useful and executed steps.
    """
    ts = jnp.asarray(TIMES)
    flow = js.GradientFlow(diffrax.Tsit5(), rtol=RTOL, atol=ATOL, max_steps=MAX_STEPS)
    program = trace_group(build, group, flow, (js.observe.loss(),), ts, None)
    program.runner.compile()
    cells = Cell(**{name: jnp.asarray(values) for name, values in group.cells.items()})
    single = by_hand(build, ts)
    first = jax.tree.map(lambda values: values[0], cells)
    batch, alone = jax.jit(jax.vmap(single)).lower(cells).compile(), jax.jit(single).lower(first).compile()
    rows = [Cell(*row) for row in zip(*(np.asarray(values) for values in cells), strict=True)]

    def ours() -> np.ndarray:
        done = list(run_group(program))
        notes.update(useful=sum(item.useful for item in done), executed=sum(item.executed for item in done))
        order = np.argsort(np.concatenate([item.lanes for item in done]))
        return np.concatenate([item.rows["loss"] for item in done])[order]

    def vmapped() -> np.ndarray:
        losses, steps = jax.block_until_ready(batch(cells))
        notes.update(vmap_useful=float(np.sum(steps)), vmap_executed=float(np.size(steps) * np.max(steps)))
        return np.asarray(losses)

    return Sides(ours, vmapped, lambda: np.array([np.asarray(alone(row)[0]) for row in rows]))


def _reference(widths: dict[int, int]) -> Iterator[Row]:
    kinds = "useful", "executed", "vmap_useful", "vmap_executed"
    total = dict.fromkeys(kinds, 0.0)
    for width, seeds in widths.items():
        for activation in ACTIVATIONS:
            notes: dict[str, float] = {}
            group = grid(seeds)
            all_sides = sides(problem_of(width, activation), group, notes)
            losses = [side() for side in all_sides]
            times = in_turns(all_sides, REPEATS, SECONDS)
            ours, vmapped, single = (float(np.median(part)) for part in times)
            total = {kind: total[kind] + notes[kind] for kind in kinds}
            efficiency = notes["vmap_useful"] / notes["vmap_executed"]
            print(
                f"\nwidth {width}, {activation}: {len(group.lanes)} lanes ({seeds} of {SEEDS} seeds), {len(times[0])} "
                f"turns; {notes['useful'] / len(group.lanes):.0f} steps a lane; ours {ours:.2f} s, vmap {vmapped:.2f} "
                f"s (lane efficiency {100 * efficiency:.0f} %), one by one {single:.2f} s; losses differ by "
                f"{difference(losses[0], losses[2]):.1e}"
            )
            what = f"width {width}, {activation}: vmap(diffeqsolve) / ours, time"
            note = f"{notes['useful'] / len(group.lanes):.0f} steps a lane, {ours:.2g} s"
            yield Row(what, vmapped / ours, ">=", 3, peer="jax.vmap(diffeqsolve)", note=note)
            what, goal = f"width {width}, {activation}: warm single solves / ours, time", 3 if width <= 64 else 1
            yield Row(what, single / ours, ">=", goal, peer="warm single solves")
    vmap = Beside("that of jax.vmap(diffeqsolve)", total["vmap_useful"] / total["vmap_executed"])
    efficiency = total["useful"] / total["executed"]
    goal = math.nan if jax.default_backend() == "cpu" else 0.85  # a loop has no idle lanes
    yield Row("lane efficiency of all", efficiency, ">=", goal, beside=(vmap,))


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of curves, relative to the largest value of each."""
    return float(np.nanmax(np.abs(a - b) / np.nanmax(np.abs(b), axis=1, keepdims=True)))


# --- closed forms


def _closed_form(counts: tuple[int, ...]) -> Iterator[Row]:
    def build(gamma: Array, sigma: Array, seed: Array) -> js.Problem:
        scaling = js.nets.Scaling.ntk(gamma, sigma=sigma)
        net = js.nets.TwoLayerLinear(in_size=1, width_size=8, scaling=scaling, key=jax.random.key(seed))
        return js.Problem(net, jnp.array([[1.0], [-0.5]]), jnp.array([[1.0], [0.25]]))

    gammas, sigmas, seeds = counts
    axes = {"gamma": np.geomspace(1e-2, 1e2, gammas), "sigma": np.geomspace(0.1, 10, sigmas), "seed": range(seeds)}
    cells = int(np.prod(counts))
    for name, observed in (
        ("loss", [js.observe.loss()]),
        ("loss and alignment", [js.observe.loss(), js.observe.layer_alignment()]),
    ):
        begin = time.perf_counter()
        data = js.sweep(
            build, axes, js.theory.TwoLayerLine(), np.geomspace(1e-2, 1e3, 50), observe=observed, progress=False
        )
        seconds, held = time.perf_counter() - begin, psutil.Process().memory_info().rss
        print(
            f"\n{cells} cells of TwoLayerLine (width 8) x 50 times, {name}: {data.nbytes / 1e9:.2f} GB of results, "
            f"{held / 1e9:.2f} GB resident; the batches alone took {_cores_of(data):.1f} s of a core"
        )
        what, note = (
            f"{cells} cells of TwoLayerLine, {name}: seconds, with compilation",
            f"{held / 1e9:.2f} GB resident",
        )
        batches = Beside("its batches alone", _cores_of(data) / read_devices(None).streams)
        copy = Beside("a copy of its results in memory", _copied(data.nbytes))
        goal = 10.0 if counts == CELLS else math.nan
        yield Row(what, seconds, "<=", goal, beside=(batches, copy), note=note)


def _cores_of(data: Any) -> float:
    """Seconds of all streams together."""
    return float(data["wall"].sum())


def _copied(size: int) -> float:
    """Seconds to copy so many bytes, into memory that has been used before."""
    source = np.ones(size, np.uint8)
    target = source.copy()
    (seconds,) = in_turns([lambda: np.copyto(target, source)], REPEATS)
    return float(np.median(seconds))
