"""Throughput on accelerators: networks trained per second, and the time of a large kernel.

In single precision, as researchers use accelerators, without TF32. An accelerator gets the whole grids, a processor a
part of them: rates per network and step are comparable.
"""

import statistics
from collections.abc import Iterator

import diffrax
import jax
import numpy as np
import optax

import jaxsolve as js
from jaxsolve.papers._kunin_grid import PAPER, Students
from jaxsolve.sweeps.running._builder import read_devices

from ._said import Beside, Row
from ._timing import in_turns
from .kernels import Case, of_case


STEPS = 1000  # of the 100,000 that the paper takes
PHASES = 32, 32  # output scales, rates
PHASE_TIMES = np.array([0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
FLOW_TIMES = np.array([0.0, 0.1, 1.0, 3.0])
PHASE_SAMPLES, PHASE_INPUTS, PHASE_WIDTH = 512, 10, 256
STAGES = 6  # gradients of a step of Tsit5, whose last one the next step takes over
BARE = "bare matrix products of its gradients"
ONE = "JACOBIAN_CONTRACTION of neural-tangents"
LOST = "it was slower on accelerators wherever it was measured"
LOSERS = (
    "JACOBIAN_CONTRACTION, vmap_axes=None",
    "NTK_VECTOR_PRODUCTS, vmap_axes=0",
    "NTK_VECTOR_PRODUCTS, vmap_axes=None",
)
KERNELS = {"1,000 samples": Case(1000, 64, 3, 512, 1), "1,000 samples of 10 outputs": Case(1000, 64, 2, 256, 10)}


def main(*, quick: bool) -> Iterator[Row]:
    """All of it; the quick part leaves the larger kernel out."""
    whole = jax.default_backend() != "cpu"
    with jax.enable_x64(False):
        yield from _students(whole=whole)
        yield from _phases(whole=whole)
    for name in list(KERNELS)[: 1 if quick or not whole else None]:
        for dtype in ("float32", "float64") if whole else ("float32",):
            rest: dict[str, str] = dict.fromkeys(LOSERS, LOST)
            yield from of_case(name, KERNELS[name], dtype, "it has no server here", rest, ONE)


def _students(*, whole: bool) -> Iterator[Row]:
    """Kunin et al., figure 1: 17 x 17 x 16 students, here one seed of them in a batch."""
    steps = STEPS if whole else STEPS // 5
    taus, deltas = (PAPER.taus, PAPER.deltas) if whole else (4, 4)
    watched = [js.observe.loss(), js.observe.test_loss(), js.observe.kernel_distance()]
    axes = {"tau": np.logspace(-1, 0.3, taus), "delta": np.linspace(-1, 1, deltas), "seed": [100]}
    descent, students = js.Descent(optax.sgd(PAPER.step)), Students(*PAPER[:4])
    times = PAPER.step * np.array([0.0, steps])
    streams = read_devices(None).streams  # which take lanes of their own
    step = float(js.sweep(students, axes, descent, times, progress=False)["wall"].mean()) / steps / streams
    flop = 4 * PAPER.in_size * PAPER.width * PAPER.samples  # forward, and backward by the weights
    note = f"{1e6 * step:.3g} microseconds, {flop / step / 1e12:.3g} TFLOP/s, {taus * deltas} at once"
    bare = _products(taus * deltas, PAPER.samples, PAPER.in_size, PAPER.width)
    what = "Kunin's students (100-50-1, 1,000 samples), float32: students x steps a second"
    yield Row(what, 1 / step, beside=(Beside(BARE, 1 / bare),), note=note)
    begin = PAPER.step * np.array([0.0, 10.0])
    walls = [
        float(js.sweep(students, axes, descent, begin, observe=those, progress=False)["wall"].mean()) / streams
        for those in (watched[:1], watched)
    ]
    measures = (walls[1] - walls[0]) / len(begin)
    total = PAPER.taus * PAPER.deltas * PAPER.seeds
    hours = total * (PAPER.end / PAPER.step * step + len(PAPER.times) * measures) / 3600
    beside = (Beside(BARE, total * PAPER.end / PAPER.step * bare / 3600),)
    note = f"extrapolated from {steps:,} steps; test error and the kernel of 1,000 samples take {1e3 * measures:.3g} ms"
    yield Row(f"Kunin's whole grid, {total:,} students for 100,000 steps, hours", hours, beside=beside, note=note)


def _products(networks: int, samples: int, inputs: int, width: int) -> float:
    """Seconds for each of so many networks, with one hidden layer, that a gradient's matrix products alone take.

    Forward and backward, less what is no product of two matrices: the output itself and the signal that starts at it.
    All networks look at the same samples, so that their weights side by side are one matrix.
    """
    keys, units = jax.random.split(jax.random.key(0), 3), networks * width
    shapes = (samples, inputs), (inputs, units), (units, samples)
    multiply = jax.jit(lambda x, weights, signals: (x @ weights, signals @ x))
    drawn = [jax.random.normal(*one) for one in zip(keys, shapes, strict=True)]
    jax.block_until_ready(multiply(*drawn))
    (seconds,) = in_turns([lambda: multiply(*drawn)], 20)
    return statistics.median(seconds) / networks


def _phases(*, whole: bool) -> Iterator[Row]:
    """The map of regimes that notebooks/accelerator.py draws, and the same networks under gradient flow."""
    digits = js.data.digits(task="parity", n_train=PHASE_SAMPLES, n_test=0, pca=PHASE_INPUTS, key=jax.random.key(0))

    def problem(gamma: jax.Array, eta: jax.Array) -> js.Problem:
        scaling = js.nets.Scaling.ntk(gamma, eta=eta / gamma**2)
        net = js.nets.MLP(
            in_size=PHASE_INPUTS,
            out_size=1,
            width_size=PHASE_WIDTH,
            depth=1,
            activation="tanh",
            scaling=scaling,
            key=jax.random.key(0),
        )
        return js.Problem(net, *digits.train)

    scales, rates = PHASES if whole else (4, 4)
    axes = {"gamma": np.geomspace(0.03, 30, scales), "eta": np.geomspace(1e-4, 1e2, rates)}
    watched = [js.observe.loss(), js.observe.kernel_change()]
    flow = js.GradientFlow(diffrax.Tsit5(), rtol=1e-3, atol=1e-6)
    for what, dynamics, times, etas, gradients in (
        ("300 steps of descent", js.Descent(optax.sgd(1.0)), PHASE_TIMES, axes["eta"], 1),
        ("gradient flow", flow, FLOW_TIMES, np.ones(1), STAGES),
    ):
        runs = js.sweep(problem, axes | {"eta": etas}, dynamics, times, observe=watched, progress=False)
        count, steps = runs["result"].size, float(runs["steps"].mean())
        rate = count / float(runs["wall"].sum()) * read_devices(None).streams
        failed = int((runs["result"] >= 3).sum())
        bare = gradients * steps * _products(count, PHASE_SAMPLES, PHASE_INPUTS, PHASE_WIDTH)
        note = f"{count} of width 256, 512 samples, float32, {failed} ended early"
        note += "" if what != "gradient flow" else f", {steps:.0f} steps on average"
        what = f"phase diagram by {what}, with the kernel's change: networks a second"
        yield Row(what, rate, beside=(Beside(BARE, 1 / bare),), note=note)
