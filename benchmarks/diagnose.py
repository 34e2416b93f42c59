"""How often the verdict of `js.diagnose` is that of a full training: eight networks, output scales over six decades.

Prints the table of docs/diagnose.md. A cell shows the regime that full training measures: K (the kernel moves by less
than 0.1) or F, small where it moves by 0.1/3 to 0.3, - where it learns nothing; and an x where the verdict of the short
training differs.
"""

import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._said import Beside, Row


GAMMAS = tuple(10.0**k for k in range(-3, 4))
SAMPLES, SHORT, FULL = 48, 100, 2000
NEAR = 3.0


class Scaled(js.losses.AbstractLoss):
    """MSE of gamma f: the output scale as an array, so that one program serves every gamma."""

    gamma: jax.Array

    def pointwise(self, f, y):
        return jnp.sum((self.gamma * f - y) ** 2) / 2

    def targets(self, y, out_size):
        return jnp.reshape(y, (-1, out_size))


class Residual(eqx.Module):
    """Two residual blocks between an embedding and a read-out."""

    first: eqx.nn.Linear
    blocks: list
    last: eqx.nn.Linear

    def __init__(self, key):
        keys = jr.split(key, 6)
        self.first, self.last = eqx.nn.Linear(8, 32, key=keys[0]), eqx.nn.Linear(32, 1, key=keys[1])
        self.blocks = [
            [eqx.nn.Linear(32, 32, key=keys[2 + 2 * k]), eqx.nn.Linear(32, 32, key=keys[3 + 2 * k])] for k in range(2)
        ]

    def __call__(self, x):
        h = self.first(x)
        for one, two in self.blocks:
            h = h + two(jax.nn.gelu(one(h)))
        return self.last(h)


class Transformer(eqx.Module):
    """One pre-norm block of attention and a dense part on four tokens, read out from their mean."""

    embed: eqx.nn.Linear
    place: jax.Array
    attention: eqx.nn.MultiheadAttention
    dense: eqx.nn.MLP
    norms: list
    read: eqx.nn.Linear

    def __init__(self, key):
        keys = jr.split(key, 5)
        self.embed, self.read = eqx.nn.Linear(2, 16, key=keys[0]), eqx.nn.Linear(16, 1, key=keys[1])
        self.place = 0.5 * jr.normal(keys[2], (4, 16))
        self.attention = eqx.nn.MultiheadAttention(2, 16, key=keys[3])
        self.dense = eqx.nn.MLP(16, 16, 32, 1, jax.nn.gelu, key=keys[4])
        self.norms = [eqx.nn.LayerNorm(16), eqx.nn.LayerNorm(16)]

    def __call__(self, x):
        h = jax.vmap(self.embed)(x.reshape(4, 2)) + self.place
        seen = jax.vmap(self.norms[0])(h)
        h = h + self.attention(seen, seen, seen)
        h = h + jax.vmap(lambda token: self.dense(self.norms[1](token)))(h)
        return self.read(jnp.mean(h, axis=0))


def _layer_norm(key):
    keys = jr.split(key, 3)
    parts = [eqx.nn.Linear(8, 48, key=keys[0]), eqx.nn.LayerNorm(48), eqx.nn.Lambda(jax.nn.relu)]
    parts += [eqx.nn.Linear(48, 48, key=keys[1]), eqx.nn.LayerNorm(48), eqx.nn.Lambda(jax.nn.relu)]
    return eqx.nn.Sequential([*parts, eqx.nn.Linear(48, 1, key=keys[2])])


def _conv(key):
    keys = jr.split(key, 3)
    look = eqx.nn.Lambda(lambda x: x.reshape(1, 8))
    parts = [look, eqx.nn.Conv1d(1, 8, 3, key=keys[0]), eqx.nn.Lambda(jax.nn.relu)]
    parts += [eqx.nn.Conv1d(8, 8, 3, key=keys[1]), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Lambda(jnp.ravel)]
    return eqx.nn.Sequential([*parts, eqx.nn.Linear(32, 1, key=keys[2])])


KINDS = {
    "eqx.nn.MLP, tanh": lambda key: eqx.nn.MLP(8, 1, 48, 2, jnp.tanh, key=key),
    "eqx.nn.MLP, relu": lambda key: eqx.nn.MLP(8, 1, 48, 2, jax.nn.relu, key=key),
    "js.nets.MLP, NTK scaling": lambda key: js.nets.MLP(
        in_size=8, out_size=1, width_size=48, depth=2, activation="tanh", scaling=js.nets.Scaling.ntk(), key=key
    ),
    "convolutions": _conv,
    "residual, gelu": Residual,
    "layer norm, relu": _layer_norm,
    "transformer": Transformer,
    "deep linear": lambda key: eqx.nn.MLP(8, 1, 48, 2, lambda h: h, key=key),
}


def data(kind: str) -> tuple[jax.Array, jax.Array]:
    """Gaussian inputs, and a target with a linear and a quadratic part (a linear one for what can learn no other)."""
    x = jr.normal(jr.key(0), (SAMPLES, 8))
    quadratic = 0.0 if "linear" in kind else 1.0
    y = x[:, :1] + quadratic * x[:, 1:2] * x[:, 2:3]
    return x, y / jnp.std(y)


def measured(problem: js.Problem, optimizer) -> tuple[float, float]:
    """The kernel's change by a full training, and the share of the loss that is left."""
    descent = js.Descent(optimizer, rate=1.0, until=js.until.loss_fraction(0.01))
    watched = [js.observe.loss(), js.observe.kernel_change()]
    run = js.solve(problem, descent, [0.0, float(FULL)], observe=watched, throw=False)
    return float(run["kernel_change"][-1]), float(run["loss"][-1] / run["loss"][0])


def cell(gamma: float, net, x, y) -> dict[str, float]:
    """One network at one output scale: the truth, and what the diagnosis finds."""
    # The step of f is that of gamma = 1 for large gamma; for small gamma weights must grow, at a pace of their own.
    optimizer, loss = optax.adam(jnp.asarray(3e-3 / max(1.0, gamma))), Scaled(jnp.asarray(gamma))
    truth, left = measured(js.Problem(net, x, y, loss=loss, centered=True), optimizer)
    report = js.diagnose(net, x, y, loss=loss, optimizer=optimizer, steps=SHORT, centered=True, probes=SAMPLES)
    known = {key: found.value for key, found in report.findings.items()}
    return known | {"truth": truth, "left": left, "regime": int(report.regime)}


def main(*, quick: bool) -> Iterator[Row]:
    """The table, and how often each number is on the side of its limit that full training is on; two kinds if quick."""
    print(f"{SAMPLES} samples, {SHORT} steps against up to {FULL}")
    cells = []
    print("\n| network | " + " | ".join(f"{gamma:g}" for gamma in GAMMAS) + " |")
    print("|---|" + "---|" * len(GAMMAS))
    for kind, make in list(KINDS.items())[: 2 if quick else None]:
        net, (x, y) = make(jr.key(1)), data(kind)
        found = [cell(gamma, net, x, y) for gamma in GAMMAS]
        cells += found
        print(f"| {kind} | " + " | ".join(map(letter, found)) + " |", flush=True)
        for gamma, one in zip(GAMMAS, found, strict=True):
            _detail(kind, gamma, one)
    yield from _summary(cells)


def letter(found: dict[str, float]) -> str:
    """A cell of the table."""
    if not np.isfinite(found["truth"]) or found["left"] > 0.5:
        return "-"
    rich = found["truth"] >= js.observe.KERNEL_REGIME_LIMIT
    near = js.observe.KERNEL_REGIME_LIMIT / NEAR < found["truth"] < js.observe.KERNEL_REGIME_LIMIT * NEAR
    said = "F" if rich else "K"
    wrong = found["regime"] != (js.observe.Regime.FEATURE_LEARNING if rich else js.observe.Regime.KERNEL)
    return (said.lower() if near else said) + ("x" if wrong else "")


def _summary(cells: list[dict[str, float]]) -> Iterator[Row]:
    limit = js.observe.KERNEL_REGIME_LIMIT
    known = [c for c in cells if np.isfinite(c["truth"]) and c["left"] <= 0.5]
    away = [c for c in known if not limit / NEAR < c["truth"] < limit * NEAR]
    rich = np.array([c["truth"] >= limit for c in away])
    said = np.array([c["regime"] == js.observe.Regime.FEATURE_LEARNING for c in away])
    print(f"\n{len(cells)} cells, {len(known)} of them learn, {len(away)} of these away from the boundary")
    what = "verdict of cells away from the boundary: right"
    alone = list[Row]()
    for name in ("expected_kernel_change", "nonlinearity", "crossover_multiplier", "chizat_ratio"):
        values = np.array([c[name] for c in away])
        seen = ~np.isnan(values)
        limits = np.geomspace(1e-6, 1e4, 401)
        scores = [np.mean((values[seen] >= trial) == rich[seen]) for trial in limits]
        best = limits[np.flatnonzero(np.isclose(scores, max(scores)))]
        note = f"known for {seen.sum()}, with any limit from {best[0]:.2g} to {best[-1]:.2g}"
        beside = (Beside("the verdict on the same cells", float(np.mean((rich == said)[seen]))),)
        alone.append(Row(f"{name} alone, at its best limit: right", max(scores), ">=", 0.95, beside=beside, note=note))
    single = Beside("the best single number, at the best limit for these cells", max(row.measured for row in alone))
    commoner = Beside("always the commoner verdict", float(max(np.mean(rich), np.mean(~rich))))
    note = f"{len(away)} of {len(cells)} cells"
    yield Row(what, float(np.mean(rich == said)), ">=", 0.95, beside=(single, commoner), note=note)
    yield from alone


def _detail(kind: str, gamma: float, found: dict[str, float]) -> None:
    """Everything that was found, for who wants to look closer: on the error stream, beside the table."""
    numbers = " ".join(f"{key}={value:.3g}" for key, value in found.items())
    print(f"{kind}, gamma {gamma:g}: {numbers}", file=sys.stderr, flush=True)
