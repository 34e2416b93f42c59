"""Figure 1: silent alignment of relu networks on whitened images."""

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import silent_alignment
from .._claim import ABOVE_ONE, Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, legend_below, Picture, Runs
from .._images import name_used
from .._silent import (
    balanced_alignment,
    draw_machines,
    draw_run,
    ImageTask,
    machine_claims,
    machine_errors,
    MLPOnImages,
    WATCHED,
)


WIDTH = 100
SIZES = by_scale((60, 100), (1000, 1000))
RANKS = {"mnist": by_scale(59, 450), "cifar": by_scale(59, 999)}
SEEDS = by_scale(12, 8)
SIGMAS = {"mnist": [0.1, 0.03], "cifar": [0.1]}  # the first is the paper's
TIMES = np.linspace(0.0, 20.0, 41)
PANELS = {"mnist": Images.MNIST, "cifar": Images.CIFAR10}


class Figure(AbstractFigure):
    title = "Figure 1: silent alignment of two-layer relu networks on whitened images of two classes"
    ours = (
        "At small scale 60 images in place of 1000. All 59 or 999 of their principal components, but 450 of the 472 "
        "that 1000 zeros and ones of MNIST have. Gradient flow. Panels (a) and (b) also from "
        "sigma = 0.03. Panels (d) and (e), a wide residual network, are in atanasov/figi1."
    )
    size = (7.0, 2.7)
    hours = by_scale(0.04, 1.0)
    images = (Images.MNIST, Images.CIFAR10)

    def run(self, runs: Runs) -> Data:
        flow = GradientFlow(Tsit5(), rtol=1e-5, atol=1e-8)
        seeds, found = SEEDS[runs.scale], {}
        for name, collection in PANELS.items():
            samples, tests = SIZES[runs.scale]
            sizes = samples, tests, RANKS[name][runs.scale]
            task = ImageTask.here(collection, runs.scale, (0, 1), sizes, seeds)
            axes = {"sigma": np.array(SIGMAS[name]), "seed": range(seeds)}
            run = runs.sweep(name, MLPOnImages(task, WIDTH), axes, flow, TIMES, observe=WATCHED)
            found[name] = run.assign(limit=balanced_alignment(task, 0))
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        a, b, c = figure.subplots(1, 3)
        first = {name: data[name].isel(sigma=0, seed=0) for name in PANELS}
        draw_run(a, first["mnist"], float(first["mnist"]["limit"]))
        draw_machines(b, first["mnist"])
        draw_run(c, first["cifar"], float(first["cifar"]["limit"]))
        mnist, cifar = map(name_used, PANELS.values())
        for ax, title in ((a, f"(a) {mnist}, 0 and 1"), (b, f"(b) {mnist}"), (c, f"(c) {cifar}")):
            ax.set_title(title, fontsize=9)
        b.legend(frameon=False, fontsize=7)
        legend_below(figure, a, 4)

    def claims(self, data: Data) -> Claims:
        for name, panel in (("mnist", "(a) MNIST"), ("cifar", "(c) CIFAR-10")):
            run = data[name].isel(sigma=0).transpose("seed", "t", ...)
            found = silent_alignment(run)
            said = f"{panel}: share of the alignment's rise that is done when the loss has fallen by 10 %."
            yield Claim(said, "about 1", (0.9, 1.1), *mean_over(found.share))
            said = f"{panel}: kernel and loss move together: ratio of the times of their first 10 %."
            yield Claim(said, "about 1", (0.7, 1.3), *mean_over(found.grown / found.learnt))
            yield from machine_claims(panel, run)
            said = f"{panel}: the first kernel is no good model: its error over that of the final one."
            yield Claim(said, *ABOVE_ONE, *mean_over(machine_errors(run, 0) / machine_errors(run)))
        every = data["mnist"].transpose("seed", "sigma", "t", ...)
        law = exponent(SIGMAS["mnist"], machine_errors(every))
        yield Claim("The error falls with the start: exponent of sigma, MNIST.", *POSITIVE, *law)
