"""Training that is no gradient flow on a fixed set: how far formulas and limits are from runs, and what they cost.

Muon against its closed form, fresh samples at ten thousand dimensions, the best schedule beside usual ones, attention
and small starts against gradient flow, the rod against the means of two steps of Adam.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsolve as js

from ._said import Beside, Row
from .edge import tanh


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; the quick part leaves out what takes minutes."""
    yield from _fresh_samples(quick)
    yield _attention()
    yield _saddles()
    if not quick:
        yield _muon()
        yield _rod()


def _fresh_samples(quick: bool) -> Iterator[Row]:
    size, steps = (1000, 10_000) if quick else (10_000, 100_000)
    spectrum = lambda d: (jnp.arange(1.0, d + 1) ** -1.5, jnp.arange(1.0, d + 1) ** -1.2)
    rates = jnp.linspace(0.25, 0.0, steps, endpoint=False)
    loss = jax.jit(lambda rates: js.theory.online_sgd(*spectrum(size), rates, batch_size=4)[-1])
    gradient = jax.jit(jax.grad(loss))
    for what, call, goal in (("", loss, 5.0), (", its gradient by rates", gradient, float("nan"))):
        jax.block_until_ready(call(rates))
        start = time.perf_counter()
        jax.block_until_ready(call(rates))
        took = time.perf_counter() - start
        yield Row(f"online_sgd, d = {size}, {steps} steps{what}: seconds", took, "<=" if goal == goal else "", goal)
    needs: Any = gradient.lower(rates).compile().memory_analysis()
    what = f"online_sgd, d = {size}, {steps} steps, its gradient by rates: GB held by the program"
    yield Row(what, needs.temp_size_in_bytes / 1e9, "<=", 2.0)
    problem, count = spectrum(1000), 2000
    options = {"batch_size": 4, "noise_variance": 0.1}
    start = time.perf_counter()
    _, best = js.theory.optimal_schedule(*problem, count, **options)
    best, took = float(best), time.perf_counter() - start
    of = lambda rates: float(js.theory.online_sgd(*problem, rates, **options)[-1])
    left = 1 - jnp.arange(count) / count
    shapes = {"constant": jnp.ones(count), "linear": left, "cosine": (1 + jnp.cos(jnp.pi * (1 - left))) / 2}
    usual = {name: min(of(peak * shape) for peak in np.geomspace(0.01, 1, 41)) for name, shape in shapes.items()}
    beside = tuple(Beside(f"the best {name} one", value) for name, value in usual.items())
    yield Row(
        "optimal_schedule, d = 1000, 2000 steps: loss", best, beside=beside, note=f"{took:.1f} s with compilation"
    )


def _scaling(size: float, arrays: int = 2) -> js.nets.Scaling:
    return js.nets.Scaling([1.0] * arrays, [size] * arrays, [1.0] * arrays)


def _attention() -> Row:
    """The lowest slope of the loss between drops is where a plateau is."""
    eigenvalues = jnp.array([0.4, 0.3, 0.2, 0.1])
    data = js.data.in_context_moments(eigenvalues, 31)
    net = js.nets.LinearAttention(
        in_shape=data.x.shape[1:], heads=6, rank=1, scaling=_scaling(1e-3, 3), key=jax.random.key(0)
    )
    ts = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e2, 1e8, 2000)])
    losses = 2 * np.asarray(js.solve(js.Problem(net, *data.train), js.GradientFlow(), ts)["loss"])
    printed = np.asarray(js.theory.in_context_losses(eigenvalues, 31))
    off = max(float(np.abs(losses / level - 1).min()) for level in printed)
    return Row("attention with six heads: plateaus of gradient flow against theory", off, "<=", 0.01, shown=".1e")


def _saddles() -> Row:
    """The times at which a quarter of a drop is left, from starts of size 1e-6."""
    keys = jax.random.split(jax.random.key(0))
    net = js.nets.TwoLayerLinear(in_size=4, out_size=4, width_size=10, scaling=_scaling(1e-6), key=keys[0])
    problem = js.Problem(net, 2 * jnp.eye(4), jax.random.normal(keys[1], (4, 4)))
    start = time.perf_counter()
    found = js.AlternatingFlow().drops(problem)
    times, losses = np.asarray(found.times), np.asarray(found.losses)
    took, times = time.perf_counter() - start, times[np.isfinite(times)]
    worst = 0.0
    for drop, time_of in enumerate(times):
        quarter = losses[drop + 1] + 0.25 * (losses[drop] - losses[drop + 1])
        run = js.solve(problem, js.GradientFlow(until=js.until.loss_below(quarter)), jnp.inf)
        worst = max(worst, abs(float(time_of) / float(run.t_end) - 1))
    note = f"{times.size} drops; {took:.0f} s with compilation"
    return Row("AlternatingFlow, linear 4-10-4 from 1e-6: largest error of a time", worst, "<=", 0.05, note=note)


def _muon() -> Row:
    scaling = js.nets.Scaling([1.0] * 3, [1.0] * 3, [1.0] * 3)
    init = js.nets.Given([0.1 * jnp.eye(3)] * 3)
    net = js.nets.DeepLinear(
        in_size=3, out_size=3, width_size=3, depth=2, scaling=scaling, init=init, key=jax.random.key(0)
    )
    problem = js.Problem(net, 3**0.5 * jnp.eye(3), 3**0.5 * jnp.diag(jnp.array([3.0, 1.0, 0.3])))
    watched = js.observe.parameters()
    exact, flow = (
        js.solve(problem, dynamics, [0.3, 0.7, 2.0], observe=watched)
        for dynamics in (js.theory.MuonModes(), js.MuonFlow(eps=4e-7, rtol=1e-6))
    )
    off = float(jnp.abs(exact["parameters"] - flow["parameters"]).max())
    return Row("MuonFlow, eps 4e-7, against MuonModes: largest error", off, "<=", 1e-6, shown=".1e")


def _rod() -> Row:
    problem, optimizer, watched = tanh(4, 7, 30, 1), optax.adam(0.005, b1=0.5), js.observe.parameters()
    descent, flow = js.Descent(optimizer), js.RodFlow(optimizer)
    steps = np.array([50, 200, 499])
    both = np.sort(np.concatenate([[0], steps, steps + 1])) * float(np.asarray(descent.rate))
    w = np.asarray(js.solve(problem, descent, both, observe=watched)["parameters"])
    means = (w[1::2] + w[2::2]) / 2
    middle = np.asarray(js.solve(problem, flow, (both[1::2] + both[2::2]) / 2, observe=watched)["parameters"])
    off = np.linalg.norm(means - middle, axis=1) / np.linalg.norm(means - w[0], axis=1)
    return Row("RodFlow of Adam (b1 = 0.5), means of two steps: error of the way gone", float(off.max()), "<=", 0.05)
