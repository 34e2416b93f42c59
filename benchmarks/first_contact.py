"""What the first minute costs: imports, first and later calls, the command line; each in a process of its own.

All but the very first minute after an installation: Python has its bytecode.
"""

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ._said import Beside, Row
from ._timing import as_installed, own_process


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
# The same as one would write it by hand, for which jaxsolve is not imported: flows by diffrax, descent by optax.
BY_HAND = """
import time
import jax, jax.numpy as jnp, diffrax, optax
x, y, ts = jnp.array([[1.0], [-0.5]]), jnp.array([[1.0], [0.25]]), jnp.array([0.0, 1.0, 10.0])
sizes = {sizes}
keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
start = [jax.random.normal(key, shape) for key, shape in zip(keys, zip(sizes, sizes[1:]))]
def outputs(ws):
    z = x
    for w in ws[:-1]:
        z = {activation}(z @ w / len(w)**0.5)
    return z @ ws[-1] / len(ws[-1])**0.5
loss = lambda ws: jnp.mean((outputs(ws) - y) ** 2) / 2
def norm(ws):
    rows = jnp.concatenate([part.reshape(2, -1) for part in jax.jacobian(outputs)(ws)], axis=1)
    return jnp.linalg.norm(rows @ rows.T)
down = lambda ws: jax.tree.map(jnp.negative, jax.grad(loss)(ws))
def flow(velocity, start, watch):
    steps = diffrax.PIDController(rtol=1e-4, atol=1e-6, pcoeff=0.3, icoeff=0.4)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(velocity), diffrax.Tsit5(), 0.0, ts[-1], None, start, stepsize_controller=steps,
        saveat=diffrax.SaveAt(ts=ts, fn=lambda t, y, args: watch(y)), max_steps=10_000,
    ).ys
def descend(start, watch):
    optimizer = optax.sgd(0.1)
    def step(carry, _):
        ws, state = carry
        updates, state = optimizer.update(jax.grad(loss)(ws), state, ws)
        return (optax.apply_updates(ws, updates), state), watch(ws)
    return jax.lax.scan(step, (start, optimizer.init(start)), None, length=101)[1]
def run(start, watch):
    return {run}
def timed(call):
    begin = time.perf_counter(); jax.block_until_ready(call()); return time.perf_counter() - begin
one, other = jax.jit(lambda start: run(start, loss)), jax.jit(lambda start: run(start, norm))
print(timed(lambda: one(start)))
print(min(timed(lambda: one(start)) for _ in range(20)))
print(timed(lambda: other(start)))
"""
FLOW = "flow(lambda t, ws, args: down(ws), start, watch)"
MOMENTUM = (
    "flow(lambda t, s, args: (s[1], jax.tree.map(jnp.subtract, down(s[0]), s[1])), "
    "(start, jax.tree.map(jnp.zeros_like, start)), lambda s: watch(s[0]))"
)
TWO_LAYERS = "TwoLayerLinear(1, width, scaling=js.nets.Scaling.ntk()"
DEEP = "MLP(1, width, 2, 1, 'tanh', scaling=js.nets.Scaling.ntk()"
SHALLOW, TANH = ("[1, 8, 1]", ""), ("[1, 8, 8, 1]", "jnp.tanh")
# The network, the dynamics, the goal of a later call in seconds, and what is written by hand for it.
WAYS = {
    "closed form": (TWO_LAYERS, "js.theory.TwoLayerLine()", 5e-4, SHALLOW, FLOW),
    "gradient flow, two linear layers": (TWO_LAYERS, "js.GradientFlow()", math.nan, SHALLOW, FLOW),
    "gradient flow, two hidden layers of tanh": (DEEP, "js.GradientFlow()", math.nan, TANH, FLOW),
    "momentum": (DEEP, "js.MomentumFlow(tau=1.0)", math.nan, TANH, MOMENTUM),
    "descent": (DEEP, "js.Descent(optimizer)", math.nan, TANH, "descend(start, watch)"),
}


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; only imports and the closed form in the quick part."""
    kinds = list(WAYS.items())[: 1 if quick else None]
    for _, (net, dynamics, *_) in kinds:  # so that Python has kept the bytecode of all that they import
        own_process(_calls(net, dynamics))
    of_imports = lambda code: statistics.median(own_process(code)[0] for _ in range(REPEATS))
    jaxs = Beside("import jax", of_imports(START.replace("import jaxsolve as js\n", "")))
    yield Row("import jax and jaxsolve: seconds", of_imports(START), "<=", 2, beside=(jaxs,))
    for name, (net, dynamics, goal, (sizes, activation), run) in kinds:
        code = _calls(net, dynamics)
        by_hand = BY_HAND.format(sizes=sizes, activation=activation, run=run)
        both = [(own_process(code)[1:], own_process(by_hand)) for _ in range(1 if quick else REPEATS)]
        ours, theirs = (list(map(statistics.median, zip(*side, strict=True))) for side in zip(*both, strict=True))
        peer = "a loop of optax" if name == "descent" else "plain Tsit5 of diffrax"
        of = lambda index, unit=1.0, peer=peer, theirs=theirs: (Beside(peer, unit * theirs[index]),)
        yield Row(f"{name}: seconds of the first call", ours[0], beside=of(0))
        yield Row(f"{name}: milliseconds of a later call", 1e3 * ours[1], "<=", 1e3 * goal, beside=of(1, 1e3))
        yield Row(f"{name}: seconds of a first call with another observable", ours[2], beside=of(2))
    if quick:
        return
    with tempfile.TemporaryDirectory() as unmeasured, tempfile.TemporaryDirectory() as cache:
        _, first, second = (_command(folder) for folder in (unmeasured, cache, cache))
    kept = "a second time, with compiled programs kept"
    yield Row("jaxsolve quickstart: seconds, first time", first, beside=(Beside(kept, second),))
    yield Row("jaxsolve quickstart: second time / first time", second / first, "<=", 0.5, limit="the first time")


def _calls(net: str, dynamics: str) -> str:
    return START + "import optax; optimizer = optax.sgd(0.1)" + CALLS.format(net=net, dynamics=dynamics)


def _command(cache: str) -> float:
    begin = time.perf_counter()
    command = [str(Path(sys.executable).with_name("jaxsolve")), "quickstart", "made", "--quiet"]
    environment = {**as_installed(), "XDG_CACHE_HOME": cache}
    subprocess.run(command, capture_output=True, text=True, check=True, cwd=cache, env=environment)
    return time.perf_counter() - begin
