"""Table 1: the phases of twenty scalings, found by training networks of growing width."""

from math import inf
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ..._results import FIRST_FAILURE
from ...dynamics import Descent
from ...nets import Padded, Scaling, TwoLayerLinear
from ...observe import kernel_change, loss, Regime
from ...plot import REGIME_COLORS
from ...sweeps import Zip
from ...theory import table_1
from .._claim import Claim, exponent, Measured
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs


KAPPAS = by_scale([1e2, 1e3, 1e4], [1e2, 1e3, 1e4, 1e5])
SEEDS = by_scale(8, 32)
LAZY_WIDTH = 10
STEP, STEPS = 0.05, 200  # the learning rates of the table, times this
TARGET = 2.0
VANISHES = -0.25  # the exponent below which something vanishes as kappa grows


class _Cell(NamedTuple):
    diverged: float  # the share of the networks with the largest kappa
    fall: Measured  # exponent of kappa in the share of the loss that is learnt
    change: Measured  # and in the relative change of the kernel

    @property
    def regime(self) -> Regime:
        if self.diverged > 0.5:
            return Regime.UNSTABLE
        if self.fall.value < VANISHES:
            return Regime.FROZEN
        return Regime.KERNEL if self.change.value < VANISHES else Regime.FEATURE_LEARNING

    @property
    def said(self) -> str:
        if self.regime in (Regime.UNSTABLE, Regime.FROZEN):
            frozen = rf"loss falls $\sim\kappa^{{{self.fall.value:.1f}}}$"
            return frozen if self.regime == Regime.FROZEN else f"{self.diverged:.0%} diverge"
        return rf"$\Delta K \sim \kappa^{{{round(self.change.value, 1) + 0.0:.1f}}}$"


class Figure(AbstractFigure):
    title = "Table 1: phases of five scalings, as they stand and as Corollaries 1 to 3 change them"
    ours = (
        f"One input of size 1 with target {TARGET:g}, {STEPS} steps of {STEP:g} times the rates, kappa from 1e2 up. "
        f"Lazy networks have width {LAZY_WIDTH} and start from zero output; with Corollary 2 their exponents are all "
        "0, so that every kappa has the same network, and no claim is made. The paper derives the table."
    )
    size = (6.8, 2.9)
    hours = by_scale(0.02, 0.5)

    def run(self, runs: Runs) -> Data:
        kappas, ts, found = KAPPAS[runs.scale], [0.0, STEP * STEPS], {}
        for lazy in (False, True):
            entries = [entry.exponents for entry in table_1() if (entry.scaling == "lazy") == lazy]
            columns = {name: np.array([getattr(e, name) for e in entries], float) for name in ("gamma", "u", "w")}
            rates = np.array([e.eta_u for e in entries], float)
            axes = [Zip(**columns, eta=rates), {"kappa": kappas, "seed": range(SEEDS[runs.scale])}]
            name, make = "lazy" if lazy else "wide", _Problems(int(max(kappas)), lazy)
            found[name] = runs.sweep(name, make, axes, Descent(optax.sgd(STEP)), ts, observe=[loss(), kernel_change()])
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        from matplotlib.patches import Patch, Rectangle

        ax = figure.subplots()
        entries = table_1()
        columns, rows = (list(dict.fromkeys(str(e[field]) for e in entries)) for field in (0, 1))
        for entry, cell in zip(entries, _cells(data), strict=True):
            at = columns.index(entry[0]), rows.index(entry[1])
            ax.add_patch(Rectangle((at[0] - 0.48, at[1] - 0.46), 0.96, 0.92, color=REGIME_COLORS[cell.regime]))
            agrees = "" if cell.regime == entry.regime else f"\npaper: {entry.regime.label}"
            ink = "white" if cell.regime in (Regime.KERNEL, Regime.UNSTABLE) else "black"
            said = cell.said if any(entry.exponents) else r"same at any $\kappa$"
            ax.text(*at, f"{said}{agrees}", ha="center", va="center", fontsize=7, color=ink)
        ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        ax.set_xticks(range(len(columns)), columns)
        ax.set_yticks(range(len(rows)), rows)
        patches = [Patch(color=REGIME_COLORS[regime], label=regime.label) for regime in Regime]
        figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    def claims(self, data: Data) -> list[Claim]:
        # Scalings that are one network in other units have one number between them, which is one claim.
        names: dict[tuple[Regime, str], list[str]] = {}
        found: dict[tuple[Regime, str], Claim] = {}
        for entry, cell in zip(table_1(), _cells(data), strict=True):
            if any(entry.exponents):  # else every kappa has the same network: no law of kappa could fail
                claim = _claim(entry.regime, cell)
                number = entry.regime, f"{claim.ours:.4g}"
                names.setdefault(number, []).append(f"{entry.scaling}, {entry.chosen_by}")
                found[number] = claim
        return [one._replace(statement=f"{'; '.join(names[at])}: {one.statement}") for at, one in found.items()]


class _Problems(NamedTuple):
    """One input, one output; every hyperparameter a power of kappa."""

    largest: int
    lazy: bool

    def __call__(self, gamma: Array, u: Array, w: Array, eta: Array, kappa: Array, seed: Array) -> Problem:
        width = LAZY_WIDTH if self.lazy else Padded(jnp.round(kappa).astype(int), self.largest)
        scaling = Scaling(
            multiplier=jnp.ones(2),
            sigma=jnp.stack([kappa ** (w / 2), kappa ** (u / 2)]),
            eta=jnp.stack([kappa**eta, kappa**eta]),
            gamma=kappa**gamma,
        )
        net = TwoLayerLinear(in_size=1, width_size=width, scaling=scaling, key=jax.random.key(seed))
        return Problem(net, jnp.ones((1, 1)), jnp.full((1, 1), TARGET), centered=self.lazy)


def _cells(data: Data) -> list[_Cell]:
    found, rows = [], {"wide": 0, "lazy": 0}
    for entry in table_1():
        name = "lazy" if entry.scaling == "lazy" else "wide"
        runs = data[name].isel(gamma_u_w_eta=rows[name]).transpose("seed", "kappa", ...)
        rows[name] += 1
        fall = (1 - runs["loss"].isel(t=-1) / runs["loss"].isel(t=0)).values
        laws = [exponent(runs["kappa"], share) for share in (fall, runs["kernel_change"].isel(t=-1).values)]
        ended = runs["result"].isel(kappa=-1)
        found.append(_Cell(float((ended >= FIRST_FAILURE).where(ended >= 0).mean()), *laws))
    return found


def _claim(regime: Regime, cell: _Cell) -> Claim:
    if regime == Regime.UNSTABLE:
        return Claim("unstable. Share of networks that diverge.", "1", (0.95, 1.0), cell.diverged)
    if regime == Regime.FROZEN:
        said = "frozen. Exponent of kappa in the share of the loss that is learnt."
        return Claim(said, "< 0", (-inf, VANISHES), *cell.fall)
    accepted, paper = ((-inf, VANISHES), "< 0") if regime == Regime.KERNEL else ((VANISHES, -VANISHES), "0")
    said = f"{regime.label}. Exponent of kappa in the relative change of the kernel."
    learns = cell.regime in (Regime.KERNEL, Regime.FEATURE_LEARNING)
    return Claim(said, paper, accepted, *(cell.change if learns else Measured(inf, 0.0)))
