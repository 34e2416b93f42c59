"""Figure 4: Muon from orthogonal layers: two steps align them, then halved rates reach the target."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import Descent
from ...nets import Given
from ...observe import loss, parameters
from ...plot import COLORS
from .._claim import Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs
from .._rhee import factorization, muon, products


N, SIZE, STEPS = 25, 1e-4, 16
STRENGTHS = 5 / np.arange(5, N + 5)
RATES = np.append(SIZE, 2.0 ** -np.arange(STEPS - 1))
SEEDS = by_scale(60, 200)


class Figure(AbstractFigure):
    title = "Figure 4: Muon from orthogonal layers, with a rate that halves"
    ours = (
        f"n = {N}, strengths 1/(4 + i) over the largest, size {SIZE:g} of the orthogonal start, {STEPS} steps and "
        "rates of the authors' notebook `fig4`, from many starts. The first step leaves both layers with the same "
        "matrix, a multiple of P + Q^T but for an orthogonal factor; it is singular where det(PQ) < 0, for half of all "
        "starts, and there the second step has no polar factor: rounding decides it."
    )
    size = (7.0, 2.6)
    hours = by_scale(0.01, 0.02)

    def run(self, runs: Runs) -> Data:
        ts = np.append(0.0, np.cumsum(RATES))
        descent = Descent(muon(_rate), rate=_rate)
        seeds = {"seed": range(SEEDS[runs.scale])}
        return {"muon": runs.sweep("muon", _orthogonal, seeds, descent, ts, observe=[parameters(), loss()])}

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3)
        modes, regular = _modes(data["muon"]), _regular(data["muon"])
        shown = next(iter(np.flatnonzero(regular)), 0)
        for color, mode in zip(COLORS, (0, 2, 5, 12, 24), strict=False):
            panels[0].plot(modes[shown, :, mode], color=color, label=f"$s = {STRENGTHS[mode]:.2g}$")
            panels[0].axhline(STRENGTHS[mode], color=color, ls=":", lw=0.8)
        panels[0].set(xlabel="step", ylabel="modes: diagonal of $PQ$", ylim=(0, 1.4))
        panels[0].legend(frameon=False, fontsize=6, ncols=2)
        losses = data["muon"]["loss"].transpose("seed", "t").values
        for kind, color, line, label in ((~regular, COLORS[1], "-", "< 0"), (regular, COLORS[0], "--", "> 0")):
            panels[1].semilogy(losses[kind].T, line, color=color, lw=0.5)
            panels[1].plot([], [], line, color=color, label=rf"$\det PQ {label}$")
        panels[1].set(xlabel="step", ylabel="loss")
        panels[1].legend(frameon=False, fontsize=7)
        panels[2].semilogy(RATES, "o-", ms=3, color=COLORS[2])
        panels[2].set(xlabel="step", ylabel=r"rate $\eta$")

    def claims(self, data: Data) -> Claims:
        matrices, regular = products(data["muon"], N, N), _regular(data["muon"])
        size = lambda parts: np.linalg.norm(parts, axis=(-2, -1))
        aligned = matrices[regular, 2]
        off = size(aligned - aligned * np.eye(N)) / size(aligned)
        said = "Two steps align layers and target, det(PQ) > 0 at the start: share of PQ off the target's frame then."
        yield Claim(said, "0", (0.0, 0.01), *mean_over(off))
        roots = np.sqrt(np.maximum(_modes(data["muon"])[regular], 0))
        errors = np.abs(roots - STRENGTHS**0.5).max(-1)
        said = "Then errors of the layers' modes halve with the rate: mean ratio of the largest over steps 3 to 12."
        yield Claim(said, "1/2", (0.45, 0.55), *mean_over((errors[:, 12] / errors[:, 3]) ** (1 / 9)))
        losses = data["muon"]["loss"].transpose("seed", "t").values
        fits = np.where(np.isnan(losses[:, -1]), np.nan, losses[:, -1] < 1e-5 * losses[:, 0])
        said = f"The target is fitted in {STEPS} steps, det(PQ) > 0: share of starts."
        yield Claim(said, "1", (1.0, 1.0), _share(fits[regular]))
        said = f"The target is fitted in {STEPS} steps, det(PQ) < 0: share of starts."
        yield Claim(said, "1", (1.0, 1.0), *mean_over(fits[~regular]))


def _rate(step: ArrayLike) -> Array:
    return jnp.asarray(RATES)[step]


def _orthogonal(seed: Array) -> Problem:
    first, second = (_haar(key) for key in jax.random.split(jax.random.key(seed)))
    layers = Given([SIZE * first, SIZE * second])
    return factorization(jnp.asarray(STRENGTHS), N, layers, 1.0, jax.random.key(0))


def _haar(key: Array) -> Array:
    """A random orthogonal matrix."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (N, N)))
    return q * jnp.sign(jnp.diagonal(r))[None, :]


def _modes(run: Any) -> np.ndarray:
    """The entries of PQ in the frame of the target, of shape (seeds, times, n)."""
    return np.diagonal(products(run, N, N), axis1=-2, axis2=-1)


def _regular(run: Any) -> np.ndarray:
    """Whether det(PQ) is positive at the start, by seed."""
    return np.linalg.slogdet(products(run, N, N)[:, 0])[0] > 0


def _share(fits: np.ndarray) -> float:
    return float(np.mean(fits)) if fits.size else float("nan")
