"""Figure 5: ten classes, learnt mode by mode."""

from typing import Any

import numpy as np
from diffrax import Tsit5

from ...dynamics import GradientFlow
from ...observe import kernel_alignment, kernel_norm, loss
from ...theory import phase_times
from .._claim import ABOVE_ONE, Claim, Claims, mean_over
from .._figure import AbstractFigure, by_scale, Data, Images, legend_below, Picture, Runs
from .._silent import balanced_alignment, draw_run, ImageTask, MLPOnImages, rise_time, turned_before


WIDTH = 50
PANELS = {  # hidden layers, activation, and the paper's sigma
    "two": (1, "linear", 1e-2, "(a) two linear layers"),
    "deep": (2, "linear", 1e-1, "(b) three linear layers"),
    "tanh": (1, "tanh", 1e-2, "(c) two layers, tanh"),
}
SIZES = by_scale((40, 1, 39), (500, 1, 499), (1000, 1, 550))
SEEDS = by_scale(12, 8)
TIMES = np.concatenate([[0.0], np.geomspace(0.3, 200.0, 100)])


class Figure(AbstractFigure):
    title = "Figure 5: silent alignment with ten classes of whitened MNIST"
    ours = (
        "Widths, and three layers in panel (b): the paper's are lost. Times are of gradient flow. Images and "
        "one-hot targets are centered, so that ten classes have nine modes. At small scale 40 images, in all of "
        "their 39 components."
    )
    size = (7.0, 2.7)
    hours = by_scale(0.015, 1.0, 4.0)
    images = (Images.MNIST,)

    def run(self, runs: Runs) -> Data:
        seeds, found = SEEDS[runs.scale], {}
        task = ImageTask.here(Images.MNIST, runs.scale, "classes", SIZES[runs.scale], seeds)
        watched, flow = [loss(), kernel_alignment(), kernel_norm()], GradientFlow(Tsit5(), rtol=1e-5, atol=1e-9)
        for name, (depth, activation, sigma, _) in PANELS.items():
            axes = {"sigma": np.array([sigma]), "seed": range(seeds)}
            problems = MLPOnImages(task, WIDTH, depth, activation)
            found[name] = runs.sweep(name, problems, axes, flow, TIMES, observe=watched)
            found[name] = found[name].assign(_theory(task)) if name == "two" else found[name]
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        panels = figure.subplots(1, 3, sharey=True)
        for ax, (name, (*_, title)) in zip(panels, PANELS.items(), strict=True):
            draw_run(ax, data[name].isel(sigma=0, seed=0), float(data["two"]["limit"][0]) if name == "two" else None)
            ax.set(xscale="log", xlim=(0.3, TIMES[-1]))
            ax.set_title(title, fontsize=9)
        legend_below(figure, panels[0], 4)

    def claims(self, data: Data) -> Claims:
        runs = {name: data[name].isel(sigma=0).transpose("seed", "t") for name in PANELS}
        curves = {name: (run["loss"].values, run["kernel_alignment"].values) for name, run in runs.items()}
        # What whitened components cannot fit is no part of the fall.
        curves = {name: (losses - losses[:, -1:], turned) for name, (losses, turned) in curves.items()}
        rank = f"at rank {int(data['two']['rank'])}"
        for name, label in (("two", "(a)"), ("tanh", "(c)")):
            share = mean_over(turned_before(TIMES, *curves[name]))
            said = f"{label} Share of the alignment's rise that is done when the loss has fallen by 10 % of its fall"
            said += f", {rank}."
            yield Claim(said, "about 1", (0.9, 1.1), *share)
        share = mean_over(turned_before(TIMES, *curves["deep"]))
        said = "(b) In the deeper network it has not settled by then: the same share."
        yield Claim(said, "below 1", (0.0, 0.9), *share)
        ends = curves["two"][1][:, -1] - data["two"]["limit"].values
        said = "(a) The final alignment is that of balanced layers: difference."
        yield Claim(said, "0", (-0.02, 0.02), *mean_over(ends))
        early, late = ({n: rise_time(TIMES, 1 - c[0] / c[0][:, :1], f) for n, c in curves.items()} for f in (0.1, 0.9))
        spread = {name: late[name] / early[name] for name in PANELS}
        said = "(b) Depth separates the modes: time from 10 % to 90 % of the fall, as a ratio, over that of two layers."
        yield Claim(said, *ABOVE_ONE, *mean_over(spread["deep"] / spread["two"]))
        said = "(b) A drop for each mode: how often the loss of the deeper network falls faster than before and after"
        said += f", {rank}."
        accepted = 8.5, 10.5  # or the nine of centered images
        yield Claim(said, "10", accepted, *mean_over(_drops(curves["deep"][0])))
        said = "Two layers: time constant of the slowest mode's alignment over the time of the first mode's learning"
        said += f", by theory alone, {rank}."
        # With equal modes it is about 0.2 at this sigma, the least that data can have.
        yield Claim(said, "much less than 1", (0.0, 0.5), *mean_over(data["two"]["phases"]))


def _drops(losses: np.ndarray) -> np.ndarray:
    """Local maxima of the speed at which each loss falls, but for what is below 1 % of its greatest."""
    speed = -np.diff(losses) / np.diff(TIMES)
    inner = speed[:, 1:-1]
    drops = (inner > speed[:, :-2]) & (inner >= speed[:, 2:]) & (inner > 0.01 * speed.max(1)[:, None])
    return np.where(np.isfinite(losses).all(1), drops.sum(1), np.nan)


def _theory(task: ImageTask) -> dict[str, Any]:
    """The alignment of two balanced layers after training, and the condition of section 4.2."""
    phases = []
    for seed in range(task.draws):
        data = task.data(seed)
        x, y = np.asarray(data.x), np.asarray(data.y)
        s = np.linalg.svd(y.T @ x / len(x), compute_uv=False)
        start = PANELS["two"][2] ** 2 * (1 + WIDTH / x.shape[1]) / 4
        phases.append(float(phase_times(s[s > 1e-6 * s[0]], start=start).ratio))
    limits = [balanced_alignment(task, seed) for seed in range(task.draws)]
    return {"limit": ("seed", np.array(limits)), "phases": ("seed", np.array(phases)), "rank": task.rank}
