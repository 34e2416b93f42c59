"""What the first minute costs: imports, first and later calls, the command line; each in a process of its own."""

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ._said import Row
from ._timing import own_process


REPEATS = 3
START = """
import time
begin = time.perf_counter()
import jax, jax.numpy as jnp
import jaxsolve as js
print(time.perf_counter() - begin)
"""
# Seconds of the first call of a problem, of the next one, and of one with another observable.
CALLS = """
def problem(width):
    net = js.nets.{net}, key=jax.random.key(0))
    return js.Problem(net, jnp.array([[1.0], [-0.5]]), jnp.array([[1.0], [0.25]]))
def timed(call):
    begin = time.perf_counter(); jax.block_until_ready(call().observed); return time.perf_counter() - begin
one, ts = problem(8), [0.0, 1.0, 10.0]
print(timed(lambda: js.solve(one, {dynamics}, ts)))
print(min(timed(lambda: js.solve(one, {dynamics}, ts)) for _ in range(20)))
print(timed(lambda: js.solve(one, {dynamics}, ts, observe=js.observe.kernel_norm())))
"""
TWO_LAYERS = "TwoLayerLinear(1, width, scaling=js.nets.Scaling.ntk()"
DEEP = "MLP(1, width, 2, 1, 'tanh', scaling=js.nets.Scaling.ntk()"
WAYS = {
    "closed form": (TWO_LAYERS, "js.theory.TwoLayerLine()", 5e-4),
    "gradient flow, two linear layers": (TWO_LAYERS, "js.GradientFlow()", math.nan),
    "gradient flow, two hidden layers of tanh": (DEEP, "js.GradientFlow()", math.nan),
    "momentum": (DEEP, "js.MomentumFlow(tau=1.0)", math.nan),
    "descent": (DEEP, "js.Descent(optimizer)", math.nan),
}


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; only imports and the closed form in the quick part."""
    yield Row(
        "import jax and jaxsolve: seconds", statistics.median(own_process(START)[0] for _ in range(REPEATS)), "<=", 2
    )
    for name, (net, dynamics, goal) in list(WAYS.items())[: 1 if quick else None]:
        code = START + "import optax; optimizer = optax.sgd(0.1)" + CALLS.format(net=net, dynamics=dynamics)
        runs = [own_process(code)[1:] for _ in range(1 if quick else REPEATS)]
        first, warm, other = (statistics.median(part) for part in zip(*runs, strict=True))
        yield Row(f"{name}: seconds of the first call", first)
        yield Row(f"{name}: milliseconds of a later call", 1e3 * warm, "<=", 1e3 * goal)
        yield Row(f"{name}: seconds of a first call with another observable", other)
    if quick:
        return
    with tempfile.TemporaryDirectory() as cache:
        first, second = (_command(cache) for _ in range(2))
    yield Row("jaxsolve quickstart: seconds, first time", first)
    yield Row("jaxsolve quickstart: second time / first time", second / first, "<=", 0.5)


def _command(cache: str) -> float:
    begin = time.perf_counter()
    command = [str(Path(sys.executable).with_name("jaxsolve")), "quickstart", "made", "--quiet"]
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    subprocess.run(command, capture_output=True, text=True, check=True, cwd=cache, env=environment)
    return time.perf_counter() - begin
