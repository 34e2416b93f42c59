"""How well the flows at the edge of stability describe runs of descent: the tables of docs/edge-of-stability.md.

Averages of descent are over 41 steps, in long runs over 101. Its oscillation is what alternates from step to step,
(w_(n-1) - 2 w_n + w_(n+1))/4, so that the path itself drops out; of its covariance in that window the trace and the
largest eigenvalue are compared with those of Sigma, averaged over the same steps.

And what the central flow costs: in gradients, and beside the same steps with Hessians formed whole.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import jaxsolve as js
from jaxsolve.dynamics.edge import _central_step
from jaxsolve.dynamics.edge._edge_pairs import Pairs, Product

from ._said import Beside, Row
from ._timing import forget_programs, in_turns, timed


REPEATS = 5
DIGITS_RATE = 0.05
# Hardly stiff below the edge, and as long as the runs are: the explicit method that any size can afford.
FLOW = js.GradientFlow(js.integrators.RungeKuttaChebyshev())
WEIGHTS = js.observe.parameters()


class Case(NamedTuple):
    """A problem, the optimizer, its rate, the steps of which the table has rows, and half the steps averaged over."""

    name: str
    problem: js.Problem
    optimizer: optax.GradientTransformation
    rate: float
    rows: tuple[int, ...]
    half: int = 20
    most: int = 6  # eigenvalues at the edge together


def cases() -> list[Case]:
    """Runs of gradient descent, on digits for 2,000 steps, and one of each optimizer that divides by past gradients."""
    small, own = tanh(4, 7, 30, 1), tanh(6, 16, 60, 0)
    rms = lambda rate: optax.rmsprop(rate, decay=0.99, eps=1e-8, initial_scale=0.01)
    scalar = lambda rate: js.dynamics.scalar_rmsprop(rate, decay=0.99, initial_scale=1.0)
    descents = [
        Case("tanh 4-7-7-1, n = 30", small, optax.sgd(0.5), 0.5, (40, 80, 160, 240)),
        Case("tanh 6-16-16-1, n = 60", own, optax.sgd(0.5), 0.5, (80, 160, 240, 320, 400)),
    ]
    long = [
        Case(f"digits, {name}", problem, optax.sgd(rate), rate, (500, 1000, 1500, 2000), half=50, most=most)
        for name, problem, rate, most in (
            ("tanh", digits("tanh", 32, 200), 0.05, 6),
            ("gelu", digits("gelu", 32, 200), 0.13, 6),
            ("relu", digits("relu", 32, 200), 0.1, 6),
            ("gelu, cross entropy", noisy(), 0.1, 12),
        )
    ]
    others = [
        Case(f"{kind}, {name}", problem, make(rate), rate, (100, 200, 300, 400))
        for name, problem in (("tanh 4-7-7-1, n = 30", small), ("tanh 6-16-16-1, n = 60", own))
        for kind, make, rate in (("scalar RMSProp", scalar, 0.1), ("RMSProp", rms, 0.005))
    ]
    return descents + long + others


def tanh(size: int, width: int, n: int, seed: int) -> js.Problem:
    """A tanh network that learns the sign of x_1 x_2 + 0.3 x_3."""
    keys = jr.split(jr.key(seed), 3)
    x = jr.normal(keys[0], (n, size))
    net = js.nets.MLP(
        in_size=size,
        out_size=1,
        width_size=width,
        depth=2,
        activation="tanh",
        bias=True,
        scaling=js.nets.Scaling.xavier(),
        key=keys[2],
    )
    return js.Problem(net, x, jnp.sign(x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]))


def digits(activation: str, width: int, n: int) -> js.Problem:
    """A network of two hidden layers that learns which digits are odd."""
    data = js.data.digits(task="parity", n_train=n, key=jr.key(0))
    net = js.nets.MLP(
        in_size=64,
        out_size=1,
        width_size=width,
        depth=2,
        activation=activation,
        bias=True,
        scaling=js.nets.Scaling.xavier(),
        key=jr.key(1),
    )
    return js.Problem(net, *data.train)


def noisy() -> js.Problem:
    """A gelu network that learns ten classes, with 30 % of the labels drawn at random, by cross entropy."""
    data = js.data.digits(task="classes", n_train=200, key=jr.key(0))
    net = js.nets.MLP(
        in_size=64,
        out_size=10,
        width_size=32,
        depth=2,
        activation="gelu",
        bias=True,
        scaling=js.nets.Scaling.xavier(),
        key=jr.key(1),
    )
    x, y = data.train
    wrong = jax.nn.one_hot(jr.randint(jr.key(7), (len(y),), 0, 10), 10, dtype=y.dtype)
    y = jnp.where(jr.uniform(jr.key(8), (len(y), 1)) < 0.3, wrong, y)
    return js.Problem(net, x, y, loss=js.losses.CrossEntropy())


def table(case: Case) -> Iterator[Row]:
    """Runs one case, prints its table, and judges its last line."""
    name, problem, optimizer, rate, rows, half, most = case
    # All steps of the windows, and one before and after for what alternates.
    steps = np.unique([row + np.arange(-half - 1, half + 2) for row in rows])
    ts = rate * jnp.asarray(steps, float)
    plain = name.split(",")[0] not in ("scalar RMSProp", "RMSProp")
    watched = [WEIGHTS, js.observe.loss(), js.observe.averaged_loss(), js.observe.sharpness()]
    descent = js.solve(problem, js.Descent(optimizer, rate=rate), ts, observe=watched)
    begin = time.perf_counter()
    known = [*watched, js.observe.oscillation(), js.observe.edge_eigenvalues()]
    central = js.solve(problem, js.CentralFlow(optimizer, max_unstable=most), ts, observe=known)
    wall = time.perf_counter() - begin
    flow = js.solve(problem, FLOW, ts, observe=watched) if plain else None
    rod = js.solve(problem, js.RodFlow(rate=rate), ts, observe=[*watched, js.observe.oscillation()]) if plain else None
    others = {} if flow is None or rod is None else {"gradient flow": flow, "rod flow": rod}
    w = np.asarray(descent["parameters"])
    swing = (w[:-2] - 2 * w[1:-1] + w[2:]) / 4
    print(f"\n{name}, rate {rate:g}: {central.stats.steps} steps, {wall:.0f} s with compilation")
    print(f"{central.certificate}\n")
    print(
        "| step | distance of central | gradient flow | rod | averaged loss, descent | central | rod | sharpness, "
        "descent | central | at the edge | tr Sigma, descent | central | largest, descent | central |"
    )
    print("|---" * 14 + "|")
    found = list[Row]()
    for row in rows:
        at = int(np.searchsorted(steps, row))
        window = slice(at - half, at + half + 1)
        apart = [
            np.linalg.norm(w[at] - run["parameters"][at]) if run is not None else np.nan for run in (central, flow, rod)
        ]
        losses = [
            np.mean(run[key][window]) if run is not None else np.nan
            for run, key in ((descent, "loss"), (central, "averaged_loss"), (rod, "averaged_loss"))
        ]
        sharp = [np.mean(run["sharpness"][window]) * rate / 2 for run in (descent, central)]
        values = np.mean(central["edge_eigenvalues"][window], axis=0)
        swings = swing[at - half - 1 : at + half]
        spread = np.linalg.svd(swings, compute_uv=False) ** 2 / (2 * half + 1)
        sigma = np.mean(central["oscillation"][window], axis=0)
        cells = [
            *(f"{v:.3f}" for v in apart),
            *(f"{v:.4f}" for v in losses),
            *(f"{v:.3f}" for v in sharp),
            f"{np.sum(values > 0.999)}",
            *(f"{v:.2e}" for v in (spread.sum(), sigma.sum(), spread[0], sigma[0])),
        ]
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
        beside = _errors(descent["loss"][window], "averaged_loss", others, window)
        what = f"{name}: averaged loss, relative error"
        found = [Row(what, _off(losses[0], losses[1]), "<=", 0.05, beside=beside)]
        if np.any(values > 0.999):  # else nothing oscillates
            beside = _errors(descent["sharpness"][window], "sharpness", others, window)
            found.append(Row(f"{name}: sharpness, relative error", _off(sharp[0], sharp[1]), "<=", 0.02, beside=beside))
            beside = _errors(np.sum(swings**2, axis=1), "oscillation", others, window)
            what = f"{name}: tr Sigma, relative error"
            found.append(Row(what, _off(spread.sum(), sigma.sum()), "<=", 0.2, beside=beside))
        if plain:
            what = f"{name}: distance from descent, gradient flow / central flow"
            found.append(Row(what, float(apart[1] / apart[0]), ">=", 2, peer="gradient flow"))
    yield from found


def _off(measured: Any, predicted: Any) -> float:
    return float(abs(predicted / measured - 1))


def _errors(series: Any, quantity: str, others: dict[str, js.Trajectory], window: slice) -> tuple[Beside, ...]:
    """How far others are off the average of what descent does in a window; without others, how far its half is."""
    if not others:
        half = len(series) // 2
        return (
            Beside("descent, half of the window off the other", _off(np.mean(series[:half]), np.mean(series[-half:]))),
        )
    found = list[Beside]()
    for name, run in others.items():
        if quantity in run.observed:
            found.append(Beside(name, _off(np.mean(series), np.mean(run[quantity][window]))))
        else:  # only the gradient flow, which has none
            found.append(Beside(f"{name} (no {quantity})", 1.0))
    return tuple(found)


def _whole(hessian: Product, d: Float[Array, " params"], pairs: Pairs, above: float, tol: float) -> Pairs:
    """The eigenpairs that `follow` finds, by forming the Hessian."""
    del above, tol
    columns = lambda basis: jax.lax.map(lambda v: hessian(d * v), basis.T, batch_size=64).T
    matrix = d[:, None] * columns(jnp.eye(d.size, dtype=d.dtype))
    vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)[1][:, ::-1][:, : pairs.values.size]
    images = columns(vectors)
    values = jnp.sum(d[:, None] * vectors * images, axis=0)
    return pairs._replace(values=values, vectors=vectors, images=images)


def _after(problem: js.Problem, rate: float, steps: int) -> js.Problem:
    """The problem from where its central flow is after so many steps of descent."""
    begun = js.solve(problem, js.CentralFlow(rate=rate), rate * steps, observe=WEIGHTS)
    params = ravel_pytree(problem.params)[1](begun["parameters"])
    return js.Problem(problem.network(params), problem.x, problem.y, loss=problem.loss)


def below() -> Iterator[Row]:
    """Steps where no eigenvalue comes to the edge, beside those of gradient flow by the integrator that it chooses."""
    problem, rate, steps = tanh(6, 16, 60, 0), 0.1, 400
    run = lambda dynamics: js.solve(problem, dynamics, rate * steps, observe=js.observe.stability(optax.sgd(rate)))
    central, flow = run(js.CentralFlow(rate=rate)), run(js.GradientFlow())
    gradients = [f"{int(one.stats.gradient_evaluations)} gradients of {one.dynamics}" for one in (central, flow)]
    note = f"{' and '.join(gradients)}; ends at {float(central['stability']):.2f} of the edge"
    what = f"tanh 6-16-16-1, {steps} steps of descent below the edge: steps of the central flow"
    beside = (Beside("gradient flow", int(flow.stats.steps)),)
    yield Row(what, int(central.stats.steps), "<=", 99, beside=beside, note=note)


def costs(*, quick: bool) -> Iterator[Row]:
    """A step's price in gradients, by how many eigenvalues are at the edge; whole Hessians; digits."""
    problem, rate, steps = tanh(6, 16, 60, 0), 0.5, 20
    gradient = eqx.filter_jit(lambda problem: jax.grad(problem.objective)(problem.params))
    watched = [WEIGHTS, js.observe.edge_eigenvalues()]
    run = lambda problem, rate: js.solve(problem, js.CentralFlow(rate=rate), rate * steps, observe=watched)
    for after in (0, 60, 200, 400):
        here = _after(problem, rate, after)
        found = run(here, rate)
        flow, one = np.median(in_turns([partial(run, here, rate), partial(gradient, problem)], REPEATS), axis=1)
        held, taken = int(np.sum(found["edge_eigenvalues"] > 0.999)), int(found.stats.steps)
        gradients = int(found.stats.gradient_evaluations) / taken
        note = f"{gradients:.0f} gradients in each of {taken} steps, {steps / taken:.1f} steps of descent long"
        what = (
            f"tanh 6-16-16-1 from step {after}, {held} at the edge: a step of the flow / a call of the gradient, time"
        )
        beside = (Beside("its gradients, one call each", gradients),)
        yield Row(what, flow / taken / one, beside=beside, note=note)
    if not quick:
        few = _after(digits("tanh", 24, 100), DIGITS_RATE, 500)
        found = run(few, DIGITS_RATE)
        mine = np.median(in_turns([lambda: run(few, DIGITS_RATE)], REPEATS))
        with mock.patch.object(_central_step, "follow", _whole):
            jax.clear_caches()  # the same types and shapes are another program now
            run(few, DIGITS_RATE)
            whole, theirs = timed(lambda: run(few, DIGITS_RATE))
        jax.clear_caches()
        apart = np.linalg.norm(found["parameters"] - whole["parameters"]) / np.linalg.norm(found["parameters"])
        note = f"{int(found.stats.steps)} and {int(whole.stats.steps)} steps; parameters {apart:.1e} apart"
        what = f"{found['parameters'].size} parameters: whole Hessians / products with them, time"
        yield Row(what, theirs / mine, ">=", 5, peer="whole Hessians", note=note)
    many = digits("tanh", 64, 200)
    ways = js.CentralFlow(rate=DIGITS_RATE), js.Descent(optax.sgd(DIGITS_RATE))
    ours, plain = (timed(lambda way=way: js.solve(many, way, 1000 * DIGITS_RATE).observed)[1] for way in ways)
    what = "digits, 64-64, n = 200: seconds to 1,000 steps of descent, with compilation"
    yield Row(what, ours, "<=", 180, beside=(Beside("descent itself", plain),))


def main(*, quick: bool) -> Iterator[Row]:
    """All tables; the first in the quick part."""
    for case in cases()[: 1 if quick else None]:
        yield from table(case)
        forget_programs()
    yield from below()
    yield from costs(quick=quick)
