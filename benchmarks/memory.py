"""Peak memory: kernels against full Jacobians, flows and the rich limit against other ways, a sweep against its store.

Each number is of a process of its own, since a peak never falls: what it holds at most (of the device, where that is
an accelerator) above what it held before the first call, compilation included.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import psutil

import jaxsolve as js
from jaxsolve.kernels import neural_tangents, NeuralTangentsUnavailable

from . import kernels, limits
from ._flow_rivals import reference_problem
from ._neural_tangents_server import ntk
from ._said import Beside, peak_memory, Row
from ._timing import own_process


SAMPLES, LANES, BATCH, UNIT = 1000, 1000, 64, 1e6
NTK = kernels.Case(SAMPLES, 10, 2, 256, 1)
FUNCTION_SPACE = js.integrators.FunctionSpace()
REPEATS = 3
LINEAR = limits.Setting(5, 20, 40, 100, 0.025, 1.5)


def main(*, quick: bool) -> Iterator[Row]:
    """All of them, in the quick part as well."""
    rivals = {"the full Jacobian by jax.vmap(jax.grad)": "jacobian"}
    try:
        neural_tangents()
        rivals["JACOBIAN_CONTRACTION of neural-tangents"] = "contraction"
    except NeuralTangentsUnavailable as error:
        print(f"neural-tangents was not measured: {error}")
    limit = _limit("kernel + activations", SAMPLES * (SAMPLES + sum(NTK.sizes[:-1])))
    yield from _beside(f"NTK, n = {SAMPLES}, two hidden layers of 256", "empirical", rivals, limit)
    what, problem = "FunctionSpace, reference problem, n = 200, gamma = 1, to t = 100", reference_problem(1.0)
    weights = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    limit = _limit("parameters + kernel", weights + len(problem.x) ** 2)
    yield from _beside(what, "FunctionSpace", {"Tsit5": "Tsit5"}, limit)
    # What of the past it must keep depends on how smooth the training is: no limit is known.
    rivals = {"the fixed point over all times": "fixed point"}
    yield from _beside("RichLimit, linear, L = 5, P = 20, T = 100", "RichLimit", rivals)
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / f"{lanes}.zarr" for lanes in (BATCH, LANES)]
        few, held = (measure("memory", "sweep", str(store)) for store in stores)
        sizes = [[file.stat().st_size / UNIT for file in store.rglob("*") if file.is_file()] for store in stores]
        less, size = map(sum, sizes)
    what = f"sweep of {LANES} networks of width 16 with a store"
    beside = (Beside("what is written", size),)
    yield Row(f"{what}: MB held, imports of a first sweep included", held, beside=beside)
    note = f"{size - less:.3g} MB more are written"
    yield Row(f"{what}: MB held beyond those of a sweep of {BATCH}", held - few, note=note)


def _limit(name: str, numbers: int) -> Beside:
    """Megabytes of so many numbers."""
    return Beside(name, 8 * numbers / UNIT)


def _beside(what: str, ours: str, rivals: dict[str, str], *limits: Beside) -> Iterator[Row]:
    """What ours holds, and the ratio to it of each rival."""
    held, *others = (measure("memory", way) for way in (ours, *rivals.values()))
    found = dict(zip(rivals, others, strict=True))
    yield Row(f"{what}: MB held", held, beside=(*(Beside(*one) for one in found.items()), *limits))
    for name, theirs in found.items():
        yield Row(f"{what}: {name} / jaxsolve, memory", theirs / held, peer=name, note=f"{theirs:.3g} MB")


def measure(module: str, way: str, *arguments: Any) -> float:
    """The peak of one of the `WAYS` of a benchmark in a process of its own, in megabytes: the median of some."""
    code = f"from benchmarks import memory, {module}; memory.hold({module}.WAYS[{way!r}], *{arguments!r})"
    run = lambda: own_process(code, JAX_ENABLE_X64="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")[0]
    return statistics.median(run() for _ in range(REPEATS)) / UNIT


def hold(way: Callable[..., object], *arguments: Any) -> None:
    """Prints how many bytes this process holds at most while it calls it."""
    jax.block_until_ready(jnp.ones(()) + 1)  # what the first program of all takes is not of the function
    stats = lambda: jax.devices()[0].memory_stats() or {}
    before = stats().get("bytes_in_use", psutil.Process().memory_info().rss)
    jax.block_until_ready(way(*arguments))
    print(stats().get("peak_bytes_in_use", peak_memory()) - before)


def _net() -> tuple[js.nets.MLP, list[jax.Array], jax.Array]:
    return kernels.sides(NTK, "float64")


def _empirical() -> object:
    net, _, x = _net()
    return js.kernels.empirical(net, x).ntk


def _jacobian() -> object:
    net, _, x = _net()
    problem = js.Problem(net, x, jnp.zeros((SAMPLES, 1)))

    def kernel(params: object) -> jax.Array:
        one = lambda params, sample: problem.network(params)(sample)[0]  # sample by sample, as one would
        parts = jax.tree.leaves(jax.vmap(jax.grad(one), (None, 0))(params, problem.x))
        flat = [part.reshape(SAMPLES, -1) for part in parts]
        return sum((part @ part.T for part in flat), jnp.zeros(()))

    return jax.jit(kernel)(problem.params)


def _sweep(store: str) -> object:
    x = jax.random.normal(jax.random.key(0), (20, 4))

    def problem(seed: jax.Array) -> js.Problem:
        net = js.nets.MLP(
            in_size=4,
            out_size=1,
            width_size=16,
            depth=1,
            activation="tanh",
            scaling=js.nets.Scaling.ntk(),
            key=jax.random.key(seed),
        )
        return js.Problem(net, x, jnp.sin(x[:, :1]))

    ts = jnp.linspace(0.0, 10.0, 11)
    axes, watched = {"seed": range(int(Path(store).stem))}, [js.observe.loss(), js.observe.outputs()]
    shutil.rmtree(store, ignore_errors=True)  # of the process before
    js.sweep(problem, axes, js.GradientFlow(), ts, observe=watched, store=store, progress=False)


WAYS: dict[str, Callable[..., object]] = {
    "empirical": _empirical,
    "jacobian": _jacobian,
    "contraction": lambda: jax.jit(ntk(neural_tangents(), "JACOBIAN_CONTRACTION", vmap_axes=0))(*_net()[1:]),
    "FunctionSpace": lambda: js.solve(reference_problem(1.0), js.GradientFlow(FUNCTION_SPACE), 100.0).observed,
    "Tsit5": lambda: js.solve(reference_problem(1.0), js.GradientFlow(diffrax.Tsit5()), 100.0).observed,
    "RichLimit": lambda: LINEAR.solve(LINEAR.problem("linear")),
    "fixed point": lambda: limits.fixed_point(LINEAR, LINEAR.problem("linear"), 1),
    "sweep": _sweep,
}
