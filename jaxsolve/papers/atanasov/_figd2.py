"""Figure D.2: silent alignment of a relu network with three layers on whitened images."""

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import silent_alignment
from .._claim import ABOVE_ONE, Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs
from .._silent import (
    draw_machines,
    draw_run,
    ImageTask,
    machine_claims,
    machine_errors,
    MLPOnImages,
    WATCHED,
)


WIDTH, SIGMA = 100, 0.1
SIZES = by_scale((60, 100, 59), (1000, 1000, 450))
SEEDS = by_scale(12, 8)
TIMES = np.concatenate([[0.0], np.geomspace(1.0, 400.0, 40)])


class Figure(AbstractFigure):
    title = "Figure D.2: silent alignment of a relu network with three layers on whitened MNIST"
    ours = (
        "sigma = 0.1, width 100 and times of gradient flow: the paper's are lost. At small scale 60 images "
        "and all of their 59 principal components, at others 1000 and 450 of their 472."
    )
    size = (6.8, 2.8)
    hours = by_scale(0.04, 2.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        seeds = SEEDS[runs.scale]
        task = ImageTask.here(Images.MNIST, runs.scale, (0, 1), SIZES[runs.scale], seeds)
        problems, axes = MLPOnImages(task, WIDTH, 2), {"sigma": np.array([SIGMA]), "seed": range(seeds)}
        flow = GradientFlow(Tsit5(), rtol=1e-5, atol=1e-9)
        return {"runs": runs.sweep("runs", problems, axes, flow, TIMES, observe=WATCHED)}

    def draw(self, figure: Picture, data: Data) -> None:
        a, b = figure.subplots(1, 2)
        one = data["runs"].isel(sigma=0, seed=0)
        draw_run(a, one)
        draw_machines(b, one)
        a.set(xscale="log", xlim=(1.0, TIMES[-1]), title="(a)")
        b.set_title("(b)")
        for ax in (a, b):
            ax.legend(frameon=False, fontsize=8)

    def claims(self, data: Data) -> Claims:
        run = data["runs"].isel(sigma=0).transpose("seed", "t", ...)
        turned = mean_over(silent_alignment(run).share)
        said = "(a) Share of the alignment's rise that is done when the loss has fallen by 10 %."
        yield Claim(said, "about 1", (0.9, 1.1), *turned)
        yield from machine_claims("(b)", run)
        ratio = mean_over(machine_errors(run, 0) / machine_errors(run))
        yield Claim("The first kernel is a worse model: ratio of the errors.", *ABOVE_ONE, *ratio)
