"""How well the flows at the edge of stability describe runs of descent: the tables of docs/edge-of-stability.md.

Averages of descent are over 2 x HALF + 1 steps. Its oscillation is what alternates from step to step,
(w_(n-1) - 2 w_n + w_(n+1))/4, so that the path itself drops out; of its covariance in that window the trace and the
largest eigenvalue are compared with those of Sigma, averaged over the same steps.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import jaxsolve as js

from ._said import Row


HALF = 20
WEIGHTS = js.observe.Observable("weights", lambda view: ravel_pytree(view.params)[0], dims=("param",))


class Case(NamedTuple):
    """A problem, the optimiser, its rate, and the steps of which the table has rows."""

    name: str
    problem: js.Problem
    optimizer: optax.GradientTransformation
    rate: float
    rows: tuple[int, ...]


def cases() -> list[Case]:
    """Three runs of gradient descent, and one of each optimiser that divides by past gradients."""
    small, own, classes = tanh(4, 7, 30, 1), tanh(6, 16, 60, 0), gelu()
    rms = lambda rate: optax.rmsprop(rate, decay=0.99, eps=1e-8, initial_scale=0.01)
    scalar = lambda rate: js.dynamics.scalar_rmsprop(rate, decay=0.99, initial_scale=1.0)
    descents = [
        Case("tanh 4-7-7-1, n = 30", small, optax.sgd(0.5), 0.5, (40, 80, 160, 240)),
        Case("tanh 6-16-16-1, n = 60", own, optax.sgd(0.5), 0.5, (80, 160, 240, 320, 400)),
        Case("gelu 6-16-16-3, cross entropy, n = 60", classes, optax.sgd(1.0), 1.0, (40, 80, 160)),
    ]
    others = [
        Case(f"{kind}, tanh 4-7-7-1, n = 30", small, make(rate), rate, (100, 200, 300, 400))
        for kind, make, rate in (("scalar RMSProp", scalar, 0.1), ("RMSProp", rms, 0.005))
    ]
    return descents + others


def tanh(size: int, width: int, n: int, seed: int) -> js.Problem:
    """A tanh network that learns the sign of x_1 x_2 + 0.3 x_3."""
    keys = jr.split(jr.key(seed), 3)
    x = jr.normal(keys[0], (n, size))
    net = js.nets.MLP(size, width, 2, 1, "tanh", bias=True, scaling=js.nets.Scaling.xavier(), key=keys[2])
    return js.Problem(net, x, jnp.sign(x[:, :1] * x[:, 1:2] + 0.3 * x[:, 2:3]))


def gelu() -> js.Problem:
    """A gelu network that learns which of three products is largest."""
    keys = jr.split(jr.key(2), 2)
    x = jr.normal(keys[0], (60, 6))
    y = jnp.argmax(x[:, :3] * x[:, 3:], axis=1)
    net = js.nets.MLP(6, 16, 2, 3, "gelu", bias=True, scaling=js.nets.Scaling.xavier(), key=keys[1])
    return js.Problem(net, x, y, loss=js.losses.CrossEntropy())


def table(case: Case) -> Iterator[Row]:
    """Runs one case, prints its table, and judges its last line."""
    name, problem, optimizer, rate, rows = case
    ts = rate * jnp.arange(max(rows) + HALF + 2)
    plain = name.split(",")[0] not in ("scalar RMSProp", "RMSProp")
    watched = [WEIGHTS, js.observe.loss(), js.observe.averaged_loss(), js.observe.sharpness()]
    descent = js.solve(problem, js.Descent(optimizer, rate=rate), ts, observe=watched)
    begin = time.perf_counter()
    known = [*watched, js.observe.oscillation(), js.observe.edge_eigenvalues()]
    central = js.solve(problem, js.CentralFlow(optimizer), ts, observe=known)
    wall = time.perf_counter() - begin
    flow = js.solve(problem, js.GradientFlow(), ts, observe=WEIGHTS) if plain else None
    rod = js.solve(problem, js.RodFlow(rate), ts, observe=watched) if plain else None
    w = np.asarray(descent["weights"])
    swing = (w[:-2] - 2 * w[1:-1] + w[2:]) / 4
    print(f"\n{name}, rate {rate:g}: {central.stats.steps} steps, {wall:.0f} s with compilation")
    print(f"{central.certificate}\n")
    print(
        "| step | distance of central | gradient flow | rod | averaged loss, descent | central | rod | sharpness, "
        "descent | central | at the edge | tr Sigma, descent | central | largest, descent | central |"
    )
    print("|---" * 14 + "|")
    off, found = lambda measured, predicted: float(abs(predicted / measured - 1)), list[Row]()
    for row in rows:
        window = slice(row - HALF, row + HALF + 1)
        apart = [
            np.linalg.norm(w[row] - run["weights"][row]) if run is not None else np.nan for run in (central, flow, rod)
        ]
        losses = [
            np.mean(run[key][window]) if run is not None else np.nan
            for run, key in ((descent, "loss"), (central, "averaged_loss"), (rod, "averaged_loss"))
        ]
        sharp = [np.mean(run["sharpness"][window]) * rate / 2 for run in (descent, central)]
        values = np.mean(central["edge_eigenvalues"][window], axis=0)
        spread = np.linalg.svd(swing[row - HALF - 1 : row + HALF], compute_uv=False) ** 2 / (2 * HALF + 1)
        sigma = np.mean(central["oscillation"][window], axis=0)
        cells = [
            *(f"{v:.3f}" for v in apart),
            *(f"{v:.4f}" for v in losses),
            *(f"{v:.3f}" for v in sharp),
            f"{np.sum(values > 0.999)}",
            *(f"{v:.2e}" for v in (spread.sum(), sigma.sum(), spread[0], sigma[0])),
        ]
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
        found = [
            Row(f"{name}: averaged loss, relative error", off(losses[0], losses[1]), "<=", 0.05),
            Row(f"{name}: sharpness, relative error", off(sharp[0], sharp[1]), "<=", 0.02),
            Row(f"{name}: tr Sigma, relative error", off(spread.sum(), sigma.sum()), "<=", 0.2),
        ]
        if plain:
            what = f"{name}: distance from descent, gradient flow / central flow"
            found.append(Row(what, float(apart[1] / apart[0]), ">=", 2))
    yield from found


def main(*, quick: bool) -> Iterator[Row]:
    """All tables; the first in the quick part."""
    for case in cases()[: 1 if quick else None]:
        yield from table(case)
