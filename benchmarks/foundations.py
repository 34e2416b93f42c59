"""The numbers of the foundations: accuracy and speed of the closed form, and the certificate of a flow."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxsolve as js
from jaxsolve.theory import ReducedLine, TwoLayerLine

from ._said import Beside, rounding, Row
from ._timing import in_turns


WIDTHS = (1, 2, 5, 10, 30, 100, 300, 1000)
LANES = 25  # per width: 200 cases
RTOL = 1e-10  # of the reference


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; with fewer cases in the quick part."""
    yield from _closed_form_against_flow(WIDTHS[::3] if quick else WIDTHS)
    yield from _limits()
    yield from _speed()
    yield from _certificate()
    yield from _import_time()


def _problem(width: int, case: dict) -> js.Problem:
    keys = jax.random.split(jax.random.key(case["seed"]), 3)
    direction = jax.random.normal(keys[0], (5,))
    along = jax.random.normal(keys[1], (8,))
    x = along[:, None] * (direction / jnp.linalg.norm(direction))[None, :]
    y = case["slope"] * along + 0.3 * jnp.sin(3 * along)
    scaling = js.nets.Scaling.ntk(case["gamma"], sigma=case["sigma"], eta=case["eta"])
    return js.Problem(js.nets.TwoLayerLinear(in_size=5, width_size=width, scaling=scaling, key=keys[2]), x, y)


def _closed_form_against_flow(widths: Sequence[int]) -> Iterator[Row]:
    closed = TwoLayerLine()
    flow = js.GradientFlow(diffrax.Dopri8(), rtol=RTOL, atol=1e-14, land_on_ts=True)
    watched = [js.observe.outputs(), js.observe.layer_alignment(), js.observe.kernel(), js.observe.loss()]

    def errors(width: int, case: dict):
        problem = _problem(width, case)
        ts = closed.reduce(problem).timescale.t_c * jnp.concatenate([jnp.zeros(1), jnp.geomspace(0.01, 30, 19)])
        exact, run = (js.solve(problem, d, ts, observe=watched, throw=False) for d in (closed, flow))
        gap = lambda a, b: jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))
        observed = jax.tree.map(gap, exact.observed, run.observed)
        weights = jax.tree.map(gap, exact.final.params, run.final.params)
        return jnp.max(jnp.stack(jax.tree.leaves((observed, weights)))), run.result == js.RESULTS.successful

    worst, count = 0.0, 0
    for width in widths:
        rng = np.random.default_rng(width)
        ratio = 10 ** rng.uniform(-1.5, 1.5, LANES)  # eta_w/eta_u from 1e-3 to 1e3
        cases = {
            "seed": jnp.arange(LANES),
            "gamma": jnp.asarray(10 ** rng.uniform(-1, 1, LANES) * rng.choice([-1, 1], LANES)),
            "sigma": jnp.asarray(10 ** rng.uniform(-1, 0.5, LANES)),
            "eta": jnp.asarray(np.stack([ratio, 1 / ratio], axis=1)),
            "slope": jnp.asarray(10 ** rng.uniform(-1, 0.5, LANES) * rng.choice([-1, 1], LANES)),
        }
        gaps, fine = eqx.filter_jit(jax.vmap(lambda case, width=width: errors(width, case)))(cases)
        assert bool(jnp.all(fine))
        worst, count = max(worst, float(jnp.max(gaps))), count + LANES
    what = f"TwoLayerLine against Dopri8 at rtol 1e-10, {count} random cases, largest error"
    yield Row(what, worst, "<=", 1e-8, ".1e", beside=(Beside("the tolerance of Dopri8", RTOL),))


def _limits() -> Iterator[Row]:
    problem = _problem(50, {"seed": 0, "gamma": 0.7, "sigma": 1.0, "eta": jnp.array([0.1, 10.0]), "slope": -1.3})
    line = TwoLayerLine().reduce(problem)
    f = np.asarray(line.f(jnp.array([0.0, 1e-300, 1e300, jnp.inf])))
    start = float(line.k * line.product)
    exact = max(abs(f[0] - start), abs(f[1] - start), abs(f[2] - float(line.y)), abs(f[3] - float(line.y)))
    what = "TwoLayerLine at t = 0, 1e-300, 1e300, inf: largest error"
    yield Row(what, exact, "<=", 1e-15, ".1e", beside=(rounding(float),))


def _speed() -> Iterator[Row]:
    # A process of its own: XLA takes its number of threads from the cores it may use when it starts.
    code = "from benchmarks.foundations import time_closed_form; print(*time_closed_form())"
    pinned = ["taskset", "-c", "0"] if sys.platform == "linux" else []
    command = [*pinned, sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "JAX_ENABLE_X64": "1"})
    seconds, sums = map(float, out.stdout.split())
    what, limit = "1e6 evaluations of (zeta, f, NTK) on one core, median of 15: seconds", "sums of the same numbers"
    yield Row(what, seconds, "<=", 0.2, beside=(Beside(limit, sums),))


def time_closed_form() -> tuple[float, float]:
    """Median seconds of 10^6 evaluations of (zeta, f, NTK) from (P, Q, phi, k, y, t), and of three sums of the six."""
    keys, n = jax.random.split(jax.random.key(0), 6), 10**6
    P, Q = jnp.exp(jax.random.normal(keys[0], (n,))), jnp.exp(jax.random.normal(keys[1], (n,)))
    phi = 2 * jnp.sqrt(P * Q) * jax.random.uniform(keys[2], (n,), minval=-1, maxval=1)
    k, y = jnp.exp(jax.random.normal(keys[3], (n,))), jax.random.normal(keys[4], (n,))
    t = jnp.exp(3 * jax.random.normal(keys[5], (n,)))
    evaluate = jax.jit(lambda *arguments: ReducedLine.from_pq(*arguments[:5]).observe(arguments[5]))
    # As many numbers come from memory and go there: what its bandwidth leaves.
    add = jax.jit(lambda a, b, *others: tuple(sum(others, start) for start in (a + b, a - b, b - a)))
    ways = [lambda: evaluate(P, Q, phi, k, y, t), lambda: add(P, Q, phi, k, y, t)]
    in_turns(ways, 1)
    ours, sums = map(statistics.median, in_turns(ways, 15))
    return ours, sums


def _certificate() -> Iterator[Row]:
    # Every kink of a relu that a sample crosses costs steps at this tolerance, hence the shorter time.
    for activation, end in (("linear", 20.0), ("relu", 0.5)):
        data = js.data.digits(task="parity", n_train=100, pca=10, key=jax.random.key(0))
        scaling = js.nets.Scaling.ntk(0.5, eta=jnp.array([4.0, 1.0, 2.0]))
        net = js.nets.MLP(
            in_size=10,
            out_size=1,
            width_size=32,
            depth=2,
            activation=activation,
            scaling=scaling,
            key=jax.random.key(1),
        )
        problem = js.Problem(net, *data.train)
        run = js.solve(problem, js.GradientFlow(rtol=1e-8, atol=1e-11), end)
        assert run.certificate is not None
        drift, note = float(run.certificate.conserved_drift), f"{int(run.stats.steps)} steps"
        what, beside = f"Drift of a flow at rtol 1e-8, {activation} MLP", (Beside("the tolerance", 1e-8),)
        yield Row(what, drift, "<=", 1e-7, ".1e", beside=beside, note=note)


def _import_time() -> Iterator[Row]:
    jaxs = Beside("import jax", _seconds_to_run("import jax"))
    yield Row("import jaxsolve, median of 5: seconds", _seconds_to_run("import jaxsolve"), beside=(jaxs,))
    used = _seconds_to_run("import jaxsolve as js; js.solve, js.GradientFlow, js.nets")
    below = Beside("import jax, equinox, diffrax and optax", _seconds_to_run("import jax, equinox, diffrax, optax"))
    yield Row("import jaxsolve and touch solve, GradientFlow and nets: seconds", used, beside=(below,))


def _seconds_to_run(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    run = lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return statistics.median(float(run()) for _ in range(5))
