"""A linear model of random features under gradient flow: losses that time, width and data limit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import Problem
from ...dynamics import FrozenKernel
from ...nets import Function
from ...observe import loss, test_loss
from ...plot import COLORS
from .._claim import Claim, Claims, exponent, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Values


MODES, SPECTRUM, TASK = 2000, 2.0, 2.0  # lambda_k = k^-b and lambda_k w_k^2 = k^-a
WIDTHS = np.array([8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
SAMPLES = [8, 16, 32, 64, 128]
TIMES = np.append(np.geomspace(1, 1e6, 61), np.inf)
SEEDS = by_scale(32, 64)
RISING = TIMES[(TIMES >= 3) & (TIMES <= 300)]  # of the law in time
BUDGETS = np.geomspace(3e3, 3e5, 21)  # of width times time
NEAR = 0.1  # what counts as the same exponent


class Figure(AbstractFigure):
    title = "Losses of a random-feature model against time, width, data and compute"
    ours = (
        f"All settings: {MODES} Gaussian modes of variance k^-{SPECTRUM:g} and power k^-{TASK:g} in the target, whose "
        "weights have random signs, random Gaussian features, gradient flow. Only the abstract of the paper was read: "
        "exponents beside its statements are those of sums of these powers, derived here for a - 1 < b."
    )
    size = (7.0, 2.6)
    hours = by_scale(0.05, 0.2)

    def run(self, runs: Runs) -> Data:
        seeds, flow = range(SEEDS[runs.scale]), FrozenKernel()
        both = [loss(), test_loss()]
        return {
            "all": runs.sweep("all", _all, {"seed": np.array([0])}, flow, TIMES),
            "widths": runs.sweep("widths", _by_width, {"width": WIDTHS, "seed": seeds}, flow, TIMES),
            "samples": runs.sweep(
                "samples", _by_samples, {"samples": SAMPLES, "seed": seeds}, flow, TIMES, observe=both
            ),
        }

    def draw(self, figure: Picture, data: Data) -> None:
        widths, samples = (2 * data[name].mean("seed") for name in ("widths", "samples"))
        left, middle, right = figure.subplots(1, 3)
        for color, width in zip(COLORS, WIDTHS, strict=False):
            left.plot(TIMES[:-1], widths["loss"].sel(width=width)[:-1], color=color, label=f"{width:g}")
        left.plot(TIMES[:-1], 2 * data["all"]["loss"][0, :-1], "k--", lw=1)
        left.set(xscale="log", yscale="log", xlabel="time $t$ (gradient-flow units)", ylabel="mean squared error")
        left.legend(title="width $N$", frameon=False, fontsize=6, title_fontsize=6, ncols=2)
        middle.plot(WIDTHS, widths["loss"].isel(t=-1), "o-", ms=3, label="width $N$")
        middle.plot(SAMPLES, samples["test_loss"].isel(t=-1), "s-", ms=3, label="samples $P$")
        middle.plot(WIDTHS, WIDTHS ** (1 - TASK), "k:", lw=1, label=f"power {1 - TASK:g}")
        middle.set(xscale="log", yscale="log", xlabel="width, or samples", ylabel="error at $t = \\infty$")
        middle.legend(frameon=False, fontsize=6)
        best = _best_width(data["widths"]["loss"].mean("seed"))
        right.plot(BUDGETS, best, "o-", ms=3)
        right.plot(BUDGETS, best[0] * (BUDGETS / BUDGETS[0]) ** (1 / (1 + SPECTRUM)), "k:", lw=1, label="power 1/3")
        right.legend(frameon=False, fontsize=6)
        right.set(xscale="log", yscale="log", xlabel="compute $N t$", ylabel="best width")

    def claims(self, data: Data) -> Claims:
        # From one curve, as it is the same for all signs.
        in_time = exponent(RISING, data["all"]["loss"].sel(t=RISING).values).value
        limited = {
            "widths": data["widths"]["loss"].isel(t=-1).transpose("seed", "width").values[:, :-1],
            "samples": data["samples"]["test_loss"].isel(t=-1).transpose("seed", "samples").values,
        }
        slow, law = (TASK - 1) / SPECTRUM, TASK - 1
        said = f"No limit but time, t = {RISING[0]:.3g} to {RISING[-1]:.3g}: exponent of t in the loss."
        yield Claim(said, f"a power law; -{slow:g}", (-slow - NEAR, -slow + NEAR), in_time)
        for name, values in limited.items():
            said = (
                f"The end of training, {name} from {SAMPLES[0]} to {SAMPLES[-1]}: exponent of their number in the loss."
            )
            yield Claim(said, f"a power law; -{law:g}", (-law - NEAR, -law + NEAR), *exponent(SAMPLES, values))
        in_width = exponent(SAMPLES, limited["widths"])
        said = "Time and width have different exponents: that of width less that of time."
        yield Claim(said, *NEGATIVE, in_width.value - in_time, in_width.uncertainty)
        shares = np.stack([_best_width(one) for one in data["widths"]["loss"].transpose("seed", "width", "t")])
        said = (
            "At a given compute steps increase faster than parameters: exponent of compute in the best width, of draws "
        )
        said += "where all of these lie within those that were run."
        yield Claim(said, "< 1/2", (0.0, 0.5), *exponent(BUDGETS, shares))
        run = data["samples"].sel(samples=32)
        share = (1 - run["loss"] / run["test_loss"]).transpose("seed", "t").values
        said = (
            "Reuse of 32 samples: growth, from t = 1 to 100, of the share of the test loss that training does not see."
        )
        yield Claim(said, *POSITIVE, *mean_over(share[:, np.searchsorted(TIMES, 100)] - share[:, 0]))


def _best_width(losses: Values) -> Float[np.ndarray, " budgets"]:
    """The width of the least loss at time compute/width, by a parabola through the best three, in logs; NaN at ends."""
    logs, grid = np.log(losses.transpose("width", "t").values[:, :-1]), np.log(TIMES[:-1])
    at = np.stack([np.interp(np.log(BUDGETS / width), grid, row) for width, row in zip(WIDTHS, logs, strict=True)])
    middle = np.clip(at.argmin(0), 1, len(WIDTHS) - 2)
    low, least, high = (np.take_along_axis(at, (middle + step)[None], 0)[0] for step in (-1, 0, 1))
    best = WIDTHS[middle] * (WIDTHS[1] / WIDTHS[0]) ** ((low - high) / (2 * (low - 2 * least + high)))
    return np.where(middle == at.argmin(0), best, np.nan)


def _task(seed: Array) -> tuple[Float[Array, " modes"], Float[Array, " modes"], Array]:
    """Deviations of the modes, the target's weights, and a key for what else is drawn."""
    k = jnp.arange(1.0, MODES + 1)
    signs, other = jax.random.split(jax.random.key(seed))
    return k ** (-SPECTRUM / 2), jax.random.rademacher(signs, (MODES,), k.dtype) * k ** ((SPECTRUM - TASK) / 2), other


def _linear(size: int) -> Function:
    return Function(lambda weights, x: weights @ x, jnp.zeros((1, size)))


def _all(seed: Array) -> Problem:
    deviations, weights, _ = _task(seed)
    few = slice(MODES // 2)
    x = jnp.diag(deviations[few]) * (MODES // 2) ** 0.5  # a sample for each mode: the population's moments
    return Problem(_linear(MODES // 2), x, x @ weights[few, None])


def _by_width(width: Array, seed: Array) -> Problem:
    """The population, as so many samples as there are features, and one."""
    deviations, weights, key = _task(seed)
    most = int(WIDTHS[-1])
    features = jax.random.normal(key, (MODES, most)) / jnp.sqrt(width)
    features = jnp.where(jnp.arange(float(most))[None, :] < width, features, 0)
    moments = jnp.linalg.qr(deviations[:, None] * jnp.concatenate([features, weights[:, None]], axis=1), mode="r")
    samples = moments * len(moments) ** 0.5
    return Problem(_linear(most), samples[:, :-1], samples[:, -1:])


def _by_samples(samples: int, seed: Array) -> Problem:
    deviations, weights, key = _task(seed)
    x = jax.random.normal(key, (samples, MODES)) * deviations[None, :]
    test: Any = jnp.diag(deviations) * MODES**0.5
    return Problem(_linear(MODES), x, x @ weights[:, None], test=(test, test @ weights[:, None]))
