"""The best learning rates of a linear model that sees every sample once, for an easy and for a hard task."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from ...dynamics import Descent
from ...observe import parameters
from ...plot import COLORS
from ...theory import online_sgd, optimal_schedule
from .._claim import Claim, Claims, exponent, mean_over, NEGATIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Table
from .._power_laws import MODES, NOISE, PowerLaws


HORIZONS = np.array([400, 1600, 6400])
TASKS, RUNS = 6, by_scale(2000, 10_000)
CONSTANTS = np.geomspace(3e-3, 1.5, 40)
SHORT = int(HORIZONS[0])  # what is simulated


PHASES = {"easy": PowerLaws(task=3.0, spectrum=1.5), "hard": PowerLaws(task=1.5, spectrum=2.5)}


class Best(NamedTuple):
    """The best rates of tasks by horizon."""

    rates: dict[int, list[Float[np.ndarray, " steps"]]]
    losses: Float[np.ndarray, "tasks horizons"]
    constant: Float[np.ndarray, "tasks horizons"]  # the loss by the best constant rate

    def measured(self, what: Callable[[Float[np.ndarray, " steps"]], float]) -> Float[np.ndarray, "tasks horizons"]:
        """A number of each schedule."""
        return np.array([[what(rates) for rates in some] for some in self.rates.values()]).T


def _plateau(rates: Float[np.ndarray, " steps"]) -> float:
    """The rate after a quarter of the run, when it has warmed up."""
    return rates[len(rates) // 4]


def _decay(rates: Float[np.ndarray, " steps"]) -> float:
    """The share of the run that is left when the rate has fallen to half of that."""
    return float(np.sum(rates[len(rates) // 4 :] < _plateau(rates) / 2)) / len(rates)


class Figure(AbstractFigure):
    title = "Optimal learning rates of an easy and of a hard task, and the losses that they leave"
    ours = (
        f"All settings: {MODES} Gaussian modes, batches of one sample, noise of variance {NOISE:g}; variances k^-1.5 "
        "and powers k^-3 in the easy task, k^-2.5 and k^-1.5 in the hard one, random targets. Only the paper's "
        "abstract was read; that these tasks are easy and hard is measured, not taken from its condition. "
        f"`theory.optimal_schedule` finds the rates; simulations are of T = {SHORT}."
    )
    size = (7.0, 2.6)
    hours = by_scale(0.05, 0.1)

    def run(self, runs: Runs) -> Data:
        return {name: _simulated(runs, name) for name in PHASES}

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3)
        for ax, name in zip(panels, PHASES, strict=False):
            best = _best(name)
            for color, (steps, some) in zip(COLORS, best.rates.items(), strict=False):
                ax.plot(np.arange(steps) / steps, some[0], color=color, label=f"$T = {steps}$")
            ax.set(yscale="log", xlabel="share of the run $t/T$", title=name, ylim=(1e-3, 2))
        panels[0].set_ylabel("optimal learning rate")
        panels[0].legend(frameon=False, fontsize=6)
        for color, name in zip(COLORS, PHASES, strict=False):
            best = _best(name)
            panels[2].plot(HORIZONS, best.losses.mean(0), "o-", ms=3, color=color, label=f"{name}, optimal")
            panels[2].plot(HORIZONS, best.constant.mean(0), "s--", ms=3, color=color, label=f"{name}, constant")
            errors = _errors(name, data[name])
            panels[2].plot(SHORT, errors.mean(), "k+", ms=8, label="simulated" if name == "easy" else None)
        panels[2].set_xscale("log")
        panels[2].set_xticks(HORIZONS, HORIZONS)
        panels[2].minorticks_off()
        panels[2].set(yscale="log", xlabel="horizon $T$ (steps)", ylabel="loss at the end")
        panels[2].legend(frameon=False, fontsize=6)

    def claims(self, data: Data) -> Claims:
        for name, phase in PHASES.items():
            _, exact = optimal_schedule(*phase.draw(0), SHORT, batch_size=1, noise_variance=NOISE)
            off = _errors(name, data[name]) / float(exact) - 1
            said = f"{name}: mean loss of simulations over that of theory, less 1, at T = {SHORT}."
            yield Claim(said, "0", (-0.05, 0.05), *mean_over(off))
        easy, hard = (_best(name) for name in PHASES)
        said = "easy: the rate falls with the horizon. Exponent of T in the rate after a quarter of the run."
        yield Claim(said, *NEGATIVE, *exponent(HORIZONS, easy.measured(_plateau)))
        said = "easy: a polynomial of t/T. Exponent of T in the share of the run left when the rate has halved."
        yield Claim(said, "0", (-0.1, 0.1), *exponent(HORIZONS, easy.measured(_decay)))
        said = "hard: the rate stays. Exponent of T in the rate after a quarter of the run."
        yield Claim(said, "0", (-0.05, 0.05), *exponent(HORIZONS, hard.measured(_plateau)))
        said = (
            "hard: annealing takes a vanishing share of the run. Exponent of T in that left when the rate has halved."
        )
        yield Claim(said, *NEGATIVE, *exponent(HORIZONS, hard.measured(_decay)))
        for name, best in (("easy", easy), ("hard", hard)):
            gain = exponent(HORIZONS, best.losses / best.constant)
            said = f"{name}: a better law than the best constant rate's. Exponent of T in the ratio of losses."
            yield Claim(said, *NEGATIVE, *gain)


@functools.cache
def _best(name: str) -> Best:
    rates, losses, constant = {int(steps): [] for steps in HORIZONS}, [], []
    for seed in range(TASKS):
        variances, squares = PHASES[name].draw(seed)
        for steps in rates:
            found, loss = optimal_schedule(variances, squares, steps, batch_size=1, noise_variance=NOISE)
            rates[steps].append(np.asarray(found))
            losses.append(float(loss))
            last = lambda rate, v=variances, s=squares, n=steps: online_sgd(
                v, s, jnp.full(n, rate), batch_size=1, noise_variance=NOISE
            )[-1]
            constant.append(np.nanmin(jax.vmap(last)(jnp.asarray(CONSTANTS))))
    shape = TASKS, len(HORIZONS)
    return Best(rates, np.reshape(losses, shape), np.reshape(constant, shape))


def _simulated(runs: Runs, name: str) -> Table:
    phase = PHASES[name]
    rates, _ = optimal_schedule(*phase.draw(0), SHORT, batch_size=1, noise_variance=NOISE)
    schedule: Any = lambda step: rates[step]
    descent = Descent(optax.sgd(schedule), rate=schedule, batch_size=1, key=jax.random.key(1))
    ts = [0.0, float(jnp.sum(rates))]
    return runs.sweep(name, phase, {"seed": range(RUNS[runs.scale])}, descent, ts, observe=parameters())


def _errors(name: str, run: Table) -> Float[np.ndarray, " runs"]:
    """The losses of simulations at their end, by their weights."""
    variances, squares = PHASES[name].draw(0)
    found = run["parameters"].isel(t=-1).transpose("seed", ...).values
    return (found - np.sqrt(squares)) ** 2 @ np.asarray(variances)
