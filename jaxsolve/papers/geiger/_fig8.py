"""Figure 8: how fast preactivations move at the start, layer by layer."""

import numpy as np
import optax

from ...dynamics import Descent
from ...observe import preactivation_velocity
from ...plot import COLORS, MARKERS
from ...sweeps import padded
from .._claim import bars, Claim, Claims
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale
from .._geiger import AtAlpha, guide, parity, power, SAMPLES, width_axis


WIDTHS = by_scale([256, 512, 1024], [30, 100, 300, 1000], [30, 100, 300, 1000, 3000])
SEEDS = by_scale(30, 10, 5)


class Figure(AbstractFigure):
    title = "Figure 8: velocity of the preactivations at the start, layer by layer"
    ours = (
        f"alpha = 1; {SAMPLES[Scale.SMALL]} training samples at small scale. The exact derivative under gradient flow, "
        "root mean square over samples and neurons, in place of one step of descent."
    )
    size = (4.4, 2.9)
    hours = by_scale(0.02, 0.1, 10.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        axes = {"width": WIDTHS[runs.scale], "alpha": np.ones(1), "seed": range(SEEDS[runs.scale])}
        start = padded(AtAlpha(parity(runs.scale, 1, SEEDS[runs.scale])), axes, "width")
        # Only the start is looked at, so that no step is taken.
        still, watched = Descent(optax.sgd(1.0)), preactivation_velocity()
        found = runs.sweep("start", *start, still, [0.0], observe=watched, batch_size=5)  # wide networks are large
        return {"start": found.isel(t=0, alpha=0)}

    def draw(self, figure: Picture, data: Data) -> None:
        velocity = data["start"]["preactivation_velocity"]
        ax = figure.subplots()
        for layer, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=False)):
            if layer >= velocity.sizes["hidden_layer"]:
                break
            cells = velocity.isel(hidden_layer=layer)
            style = {"color": color, "marker": marker, "ms": 4, "lw": 1.0, "label": f"layer {layer + 1}"}
            ax.errorbar(velocity["width"], *bars(cells), **style)
        ends = [float(velocity["width"][0]), float(velocity["width"][-1])]
        ax.set_yscale("log")
        width_axis(ax, velocity["width"].values)
        ax.set_ylabel(r"$|\dot{\tilde z}|$ at $t = 0$ (1/gradient-flow time)")
        guide(ax, ends, 1.3 * float(velocity.mean("seed").max()), -0.5, "$h^{-1/2}$")
        figure.legend(loc="outside right center", frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        velocity = data["start"]["preactivation_velocity"]
        for layer in range(velocity.sizes["hidden_layer"]):
            slope = power(velocity.isel(hidden_layer=layer), "width")
            said = f"Exponent of h in the velocity of the preactivations of hidden layer {layer + 1} (eq. 12)."
            yield Claim(said, "-1/2", (-0.6, -0.4), *slope)
