"""How time and memory grow with width, depth, samples, lanes and devices: fitted exponents."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsolve as js

from . import memory
from ._said import Beside, Row
from ._timing import in_turns, own_process


RATE, STEPS = 0.1, 100
REPEATS, SECONDS = 5, 60.0
DEVICES = 2  # of a processor, which share its cores


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; at half of the sizes in the quick part."""
    sizes = (lambda values: values[:-1]) if quick else (lambda values: values)
    large, lanes = sizes((128, 256, 512, 1024)), sizes((256, 1024, 4096))
    hidden, samples = "descent, 2 hidden layers, n = 100: width", "descent, 2 hidden layers of 128: samples"
    yield _time(hidden, large, lambda w: train(w, 2, 100), 2)
    yield _time("descent, width 128, n = 100: hidden layers", sizes((2, 4, 8, 16)), lambda d: train(128, d, 100), 1)
    yield _time(samples, large, lambda n: train(128, 2, n), 1)
    yield _time("NTK, 2 hidden layers of 128: samples", sizes((128, 256, 512, 1024, 2048)), kernel, 2)
    yield _time("sweep of flows, width 32, n = 20: lanes", lanes, sweep, 1)
    yield _devices(lanes[-1])
    for what, kind, at, grown, alone in (
        (hidden, "train", lambda w: (w, 2, 100, 2), (1024, 2048, 4096), 2),
        ("descent, width 1024, n = 100: hidden layers", "train", lambda d: (1024, d, 100, 2), (8, 16, 32), 1),
        (samples, "train", lambda n: (128, 2, n, 2), (8192, 32768, 131072), 1),
        ("NTK, 2 hidden layers of 128: samples", "kernel", lambda n: (n,), (1024, 2048, 4096), 2),
        ("sweep of flows, width 32, n = 20: lanes", "sweep", lambda count: (count,), lanes, 1),
    ):
        held = [memory.measure("scaling", kind, *at(size)) for size in sizes(grown)]
        yield _memory(what, sizes(grown), held, alone)


def train(width: int, depth: int, n: int, steps: int = STEPS) -> Callable[[], Any]:
    """Descent of a network, to be called."""
    problem, ts, descent = _problem(width, depth, n), [0.0, RATE * steps], js.Descent(optax.sgd(RATE))
    return lambda: js.solve(problem, descent, ts)["loss"]


def kernel(n: int) -> Callable[[], Any]:
    """The kernel of so many samples, to be called."""
    problem = _problem(128, 2, n)
    return lambda: js.kernels.empirical(problem.net, problem.x).ntk


def sweep(count: int, devices: Sequence[Any] | None = None) -> Callable[[], Any]:
    """A sweep of so many small networks, to be called."""
    axes, flow, ts = {"seed": range(count)}, js.GradientFlow(), [0.0, 10.0]
    return lambda: js.sweep(_lane, axes, flow, ts, devices=devices, progress=False)["loss"].values


WAYS = {of.__name__: lambda *sizes, of=of: of(*sizes)() for of in (train, kernel, sweep)}


def _problem(width: int, depth: int, n: int) -> js.Problem:
    x = jax.random.normal(jax.random.key(0), (n, 10))
    net = js.nets.MLP(
        in_size=10,
        out_size=1,
        width_size=width,
        depth=depth,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(1),
    )
    return js.Problem(net, x, x[:, :1] * x[:, 1:2])


def _lane(seed: Any) -> js.Problem:
    x = jax.random.normal(jax.random.key(0), (20, 4))
    net = js.nets.MLP(
        in_size=4,
        out_size=1,
        width_size=32,
        depth=1,
        activation="tanh",
        scaling=js.nets.Scaling.ntk(),
        key=jax.random.key(seed),
    )
    return js.Problem(net, x, jnp.sin(x[:, :1]))


def _time(what: str, sizes: Sequence[int], make: Callable[[int], Callable[[], Any]], alone: float) -> Row:
    """Beside that of the multiplications alone in the limit of large sizes; the goal is hardly more."""
    medians = _medians([make(size) for size in sizes])
    note = ", ".join(f"{size}: {1e3 * one:.3g} ms" for size, one in zip(sizes, medians, strict=True))
    beside = Beside("multiplications alone", alone)
    return _exponent(f"{what}: exponent of the time between the largest two", sizes, medians, beside, note)


def _medians(ways: Sequence[Callable[[], Any]]) -> list[float]:
    for way in ways:
        jax.block_until_ready(way())
    return [float(np.median(part)) for part in in_turns(ways, REPEATS, SECONDS)]


def _memory(what: str, sizes: Sequence[int], held: Sequence[float], alone: float) -> Row:
    """Beside that of the weights, activations, kernels or results themselves; each in a process of its own."""
    note = ", ".join(f"{size}: {one:.3g} MB" for size, one in zip(sizes, held, strict=True))
    beside = Beside("what must be held", alone)
    return _exponent(f"{what}: exponent of the memory between the largest two", sizes, held, beside, note)


def _exponent(what: str, sizes: Sequence[int], numbers: Sequence[float], beside: Beside, note: str) -> Row:
    # Of the larger half: small ones are bound by what every call costs.
    fitted = np.polyfit(np.log(np.asarray(sizes[-2:], float)), np.log(numbers[-2:]), 1)[0]
    return Row(what, float(fitted), "<=", beside.value + 0.1, beside=(beside,), note=note)


def _devices(lanes: int) -> Row:
    """Of a sweep: accelerators share its lanes; a processor is cut into devices, which share its cores."""
    processor = jax.default_backend() == "cpu"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    code = f"from benchmarks import scaling; scaling.on_devices({lanes})"
    medians = own_process(code, JAX_ENABLE_X64="1", **({"XLA_FLAGS": flags} if processor else {}))
    counts = range(1, len(medians) + 1)
    note = ", ".join(f"{count}: {1e3 * one:.3g} ms" for count, one in zip(counts, medians, strict=True))
    what = "sweep of flows, width 32, n = 20: devices: exponent of the time between one and all"
    if len(medians) == 1:
        return Row(what, np.nan, note=f"one device only, {note}")
    beside = Beside("cores shared" if processor else "lanes shared", 0.0 if processor else -1.0)
    ends = (counts[0], counts[-1]), (medians[0], medians[-1])
    return _exponent(what, *ends, beside, note)


def on_devices(lanes: int) -> None:
    """Prints the seconds of a sweep on one device, two, and so on."""
    devices = jax.local_devices()
    print(*_medians([sweep(lanes, devices[: 1 + index]) for index in range(len(devices))]))
