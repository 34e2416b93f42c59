"""Figure 5 of the first version: which layers align under gradient descent, SGD and Adam, from two starts."""

from math import inf
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...dynamics import Descent
from ...nets import Scaling, TwoLayerLinear
from ...observe import layer_alignment, loss
from ...plot import COLORS
from ...sweeps import Zip
from ...theory import TwoLayerLine
from .._claim import Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Values


WIDTHS = by_scale(300, 10_000)
SEEDS = by_scale(8, 10)
STARTS = ["Xavier+", "Kaiming+"]
SAMPLES, BATCH, NOISE = 32, 1, 0.5
RATE, ADAM = 0.02, 0.002
ENDS = {"gd": 100.0, "sgd": 2000.0, "adam": 100.0}
TIMES = {of: np.array([0.0, *np.geomspace(0.1, end, 30)]) for of, end in ENDS.items()}
LABELS = {"gd": "gradient descent", "sgd": f"SGD, batch of {BATCH}", "adam": "Adam"}


class Figure(AbstractFigure):
    title = "Figure 5 of version 1: alignment under gradient descent, SGD and Adam from two starts"
    ours = (
        f"Width 300 in place of 10000 at small scale, {SAMPLES} inputs on a line, targets x + {NOISE:g} times noise, "
        f"so that batches of {BATCH} disagree; rates {RATE:g} times the scaling's own, and {ADAM:g} for Adam. The "
        "paper's values are lost."
    )
    size = (6.8, 2.7)
    hours = by_scale(0.03, 0.5)

    def run(self, runs: Runs) -> Data:
        width = float(WIDTHS[runs.scale])
        # Variances of u and w, output scale and rate: Kaiming's have the exponents of Corollary 2.
        starts = Zip(u=[1 / width, 1 / width], w=[1 / width, 1.0], gamma=[1.0, 1 / width], eta=[1.0, width])
        axes = [starts, {"seed": range(SEEDS[runs.scale])}]
        dynamics = {
            "gd": Descent(optax.sgd(RATE)),
            "sgd": Descent(optax.sgd(RATE), batch_size=BATCH, key=jax.random.key(0)),
            "adam": Descent(optax.adam(ADAM)),
        }
        found = {}
        for of, descent in dynamics.items():
            make = _Problems(int(width), adam=of == "adam")
            found[of] = runs.sweep(of, make, axes, descent, TIMES[of], observe=[layer_alignment(), loss()])
        make = _Problems(int(width), adam=False)
        theory = runs.sweep("theory", make, axes, TwoLayerLine(), TIMES["gd"], observe=layer_alignment())
        return found | {"theory": theory}

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for column, (ax, name) in enumerate(zip(panels, STARTS, strict=True)):
            for (of, label), color in zip(LABELS.items(), COLORS, strict=False):
                zeta = _zeta(data, of).isel(u_w_gamma_eta=column)
                ax.plot(TIMES[of], zeta.mean("seed"), ls="", marker="o", ms=3, mfc="none", color=color, label=label)
            line = _zeta(data, "theory").isel(u_w_gamma_eta=column).mean("seed")
            ax.plot(TIMES["gd"], line, color=COLORS[0], lw=1.2, label="gradient flow, theory (21)")
            ax.set_xscale("symlog", linthresh=0.1)
            ax.set(title=name, xlabel="time $t$ (steps times rate)")
        panels[0].set_ylabel(r"layer alignment $\zeta$")
        panels[1].legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        start, end = ({of: _zeta(data, of).isel(t=at) for of in TIMES} for at in (0, -1))
        learnt = {of: _when_learnt(data, of) for of in TIMES}
        xavier, kaiming = ({of: learnt[of].isel(u_w_gamma_eta=column) for of in learnt} for column in (0, 1))
        kept = {of: kaiming[of] - start[of].isel(u_w_gamma_eta=1) for of in kaiming}
        apart = float(np.abs(_zeta(data, "gd") - _zeta(data, "theory")).max())
        sgd, gd, adam = (end[of].isel(u_w_gamma_eta=0) for of in ("sgd", "gd", "adam"))
        late = "Xavier+: the same at the end of the runs, as Adam keeps its rate and goes on. Difference of zeta."
        said = (
            "Xavier+ (balanced): when they have learnt, Adam and gradient descent are aligned alike. Difference of "
            "zeta."
        )
        yield Claim(said, "0", (-0.1, 0.1), *mean_over(xavier["gd"] - xavier["adam"]))
        yield Claim(late, "0", (-0.1, 0.1), *mean_over(gd - adam))
        said = (
            "Kaiming+ (not balanced): gradient descent changes the alignment more than Adam. Difference of the "
            "change of zeta."
        )
        yield Claim(said, *POSITIVE, *mean_over(kept["gd"] - kept["adam"]))
        yield Claim("SGD aligns the layers perfectly (Xavier+). 1 - zeta.", "0", (-inf, 0.05), *mean_over(1 - sgd))
        said = (
            "Gradient descent stops at the alignment of its gradient flow, below that of SGD (Xavier+). Zeta of "
            "SGD less that of gradient descent."
        )
        yield Claim(said, "> 0", (0.05, inf), *mean_over(sgd - gd))
        yield Claim("Gradient descent follows equation (21). Largest difference of zeta.", "0", (0.0, 0.02), apart)


def _zeta(data: Data, of: str) -> Values:
    return data[of]["layer_alignment"].isel(pair=0)


def _when_learnt(data: Data, of: str) -> Values:
    """zeta when 99 % of the fall of the loss are behind; Adam, which keeps its rate, drifts on afterwards."""
    loss = data[of]["loss"]
    left = loss - loss.isel(t=-1) <= 0.01 * (loss.isel(t=0) - loss.isel(t=-1))
    return _zeta(data, of).isel(t=left.argmax("t"))


class _Problems(NamedTuple):
    """Noisy targets on a line. Adam's steps do not know the scale of gradients, so it takes one rate for all."""

    width: int
    adam: bool

    def __call__(self, u: Array, w: Array, gamma: Array, eta: Array, seed: Array) -> Problem:
        first, inputs, noise = jax.random.split(jax.random.key(seed), 3)
        x = jax.random.normal(inputs, (SAMPLES, 1))
        x = x * jnp.sign(x[jnp.argmax(jnp.abs(x))])  # the longest input says which direction zeta calls positive
        y = x + NOISE * jax.random.normal(noise, (SAMPLES, 1))
        rates = jnp.ones(2) if self.adam else eta * jnp.ones(2)
        sigma = jnp.sqrt(jnp.stack([w, u]))
        scaling = Scaling(multiplier=jnp.ones(2), sigma=sigma, eta=rates, gamma=gamma)
        return Problem(TwoLayerLinear(in_size=1, width_size=self.width, scaling=scaling, key=first), x, y)
