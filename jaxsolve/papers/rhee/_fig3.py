"""Figure 3: how layers of three widths align with each other and with the target in the first steps of Muon."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._core import Problem
from ...dynamics import Descent
from ...nets import Gaussian
from ...plot import COLORS
from .._claim import Claim, Claims, exponent, mean_over
from .._figure import AbstractFigure, by_scale, Data, legend_below, Picture, Runs
from .._rhee import factorization, muon
from .._rhee_overlaps import alignment, IMBALANCE


N, PLANTED, SIGNAL, LEAST = 128, 32, 4.0, 2.0
WIDTHS = {"under": N // 4, "exact": N, "over": 4 * N}
TITLES = {"under": "under-parameterized", "exact": "exactly parameterized", "over": "over-parameterized"}
SIZES = (1e-5, 1e-4, 1e-3)
STEPS = {1e-5: 10_000, 1e-4: 1000, 1e-3: 100}  # of the narrow layers; 100 for others
SEEDS = by_scale(6, 10)


class Figure(AbstractFigure):
    title = "Figure 3: alignment in the first steps of Muon, by the width d of the layers"
    ours = (
        f"n = {N}, {PLANTED} planted modes, sizes alpha, rates alpha/5, steps and scores of the authors' notebook "
        "`fig3`; every start has a target of its own. A score a is the mean square overlap of singular vectors, within "
        "blocks of close singular values, and is 1 by definition in a block of all modes: left and right where "
        "d >= n, inner where d < n and, in the end, where d = n. So the claim of every width is about balance, without "
        "blocks. t_end is sqrt(s_1), the time of the strongest mode. Powers are fitted over the last tenth of the "
        "steps in the narrow case, and over steps 25 to 100 else."
    )
    size = (7.0, 2.8)
    hours = by_scale(0.06, 0.1)

    def run(self, runs: Runs) -> Data:
        seeds, found = {"seed": range(SEEDS[runs.scale])}, {}
        for name, kind, size in _cases():
            steps, rate = _log_steps(kind, size), size / 5
            problems, descent = _Problems(WIDTHS[kind], size), Descent(muon(rate), rate=rate)
            found[name] = runs.sweep(name, problems, seeds, descent, steps * rate, observe=[alignment(size), IMBALANCE])
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        panels = dict(zip(WIDTHS, figure.subplots(1, 3, sharey=True), strict=True))
        for name, kind, size in _cases():
            ax, color = panels[kind], COLORS[SIZES.index(size)]
            far = _misaligned(data[name], 0 if kind == "under" else 2)
            share = _log_steps(kind, size) * size / 5 / _strengths(data[name])[:, :1] ** 0.5
            ax.plot(share.T, far.T, color=color, lw=0.6)
            ax.plot([], [], color=color, label=rf"$\alpha = 10^{{{np.log10(size):.0f}}}$")
        for kind, ax in panels.items():
            side = "left" if kind == "under" else "inner"
            ax.set(xscale="log", yscale="log", xlabel=r"$t/t_\mathrm{end}$", ylim=(1e-5, 1.5))
            ax.set_title(f"{TITLES[kind]}: {side}", fontsize=9)
        panels["under"].set_ylabel("$1 - a^2$")
        legend_below(figure, panels["under"], 3)

    def claims(self, data: Data) -> Claims:
        least = SIZES[0]
        narrow, wide = data[f"under_{least:g}"], data[f"over_{least:g}"]
        steps = _log_steps("under", least)
        late = steps >= steps[-1] / 10
        strengths = _strengths(narrow)
        power = -2 * (1 - 1 / (strengths[:, :PLANTED] / strengths[:, PLANTED, None]).mean(1))
        found = [_powers(steps[late], _misaligned(narrow, side)[:, late]) for side in (0, 1)]
        said = (
            "d = n/4: 1 - a^2 (left, right) falls as t^(-2(1 - 1/g)), g the mean ratio of planted to other modes. "
            "Measured power over this one, mean of both sides."
        )
        yield Claim(said, "1", (0.9, 1.1), *mean_over(np.mean(found, 0) / power))
        steps = _log_steps("over", least)
        late = steps >= 25
        said = "d = 4n: 1 - a^2 (inner) falls as t^-4. Power."
        yield Claim(said, "-4", (-4.4, -3.6), *exponent(steps[late], _misaligned(wide, 2)[:, late]))
        for kind, title in TITLES.items():
            at = _log_steps(kind, SIZES[-1])
            late = at >= 25
            found = data[f"{kind}_{SIZES[-1]:g}"]["imbalance"].transpose("seed", "t").values
            said = f"Layers become balanced, {title}: power of t in |P^T P - Q Q^T|/|P^T P|."
            yield Claim(said, "-1", (-1.1, -0.9), *exponent(at[late], found[:, late]))
        times = [_crossing(data[f"over_{size:g}"], 0.5) for size in SIZES]
        said = "d = 4n: the steps that 1 - a^2 (inner) takes to 1/2 do not depend on alpha. Its power in them."
        yield Claim(said, "0", (-0.05, 0.05), *exponent(SIZES, np.transpose(times)))


def _cases() -> Iterator[tuple[str, str, float]]:
    """Store, kind and size of the start."""
    for kind in WIDTHS:
        for size in SIZES:
            yield f"{kind}_{size:g}", kind, size


def _log_steps(kind: str, size: float) -> np.ndarray:
    steps = STEPS[size] if kind == "under" else 100
    return np.unique(np.append(0, np.geomspace(1, steps, 40).round().astype(int)))


def _spectrum(key: Array) -> Float[Array, " n"]:
    """The singular values of the planted modes plus noise."""
    planted = jnp.diag(jnp.where(jnp.arange(N) < PLANTED, SIGNAL, 0.0))
    noisy = planted + jax.random.normal(key, (N, N)) / N**0.5
    return jnp.maximum(10 * jnp.linalg.svd(noisy, compute_uv=False), LEAST)


def _strengths(run: Any) -> np.ndarray:
    """The strengths of all seeds' modes."""
    return np.stack([np.asarray(_spectrum(_keys(seed)[0])) for seed in run["seed"].values])


def _keys(seed: Any) -> Array:
    return jax.random.split(jax.random.key(seed))


class _Problems(NamedTuple):
    """Normal layers of the size alpha, and a planted target."""

    width: int
    size: float

    def __call__(self, seed: Array) -> Problem:
        target, start = _keys(seed)
        sigma = self.size / max(N, self.width) ** 0.5
        return factorization(_spectrum(target), self.width, Gaussian(), sigma, start)


def _misaligned(run: Any, side: int) -> np.ndarray:
    """1 - a^2 of one of left, right and inner, of shape (seeds, times)."""
    return 1 - run["alignment"].isel(side=side).transpose("seed", "t").values ** 2


def _powers(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The power of x in each row of y."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.array([exponent(x, row[None]).value for row in y])


def _crossing(run: Any, level: float) -> np.ndarray:
    """The steps after which 1 - a^2 (inner) is at a level, by start."""
    steps = _log_steps("over", SIZES[0])
    return np.array([np.interp(-level, -row, steps) for row in _misaligned(run, 2)])
