"""Figures 1 (d), (e) and I.1: a wide residual network under Adam."""

from math import inf
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset
from ...dynamics import Descent
from ...nets import Scaling, WideResNet
from ...observe import cross_kernel, kernel, loss, outputs, test_outputs
from .._claim import ABOVE_ONE, Claim, Claims, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Images, Picture, Runs, Scale, Table
from .._images import draw_of, pictures, whitened
from .._silent import draw_machines, draw_run, machine_correlations, machine_errors, rise_time, TARGETS, turned_before


SAMPLES = by_scale(20, 100)
WIDENING = by_scale(1, 4)
RATE = by_scale(5e-4, 1e-5)
STEPS = by_scale(120, 8000)
SEEDS = by_scale(6, 5)
SIGMA = 0.3
FIRST = 6.0  # the first convolution's
FIRSTS = [0.6, FIRST]
PANELS = {"whitened": "(d), (e): whitened", "plain": "I.1: not whitened"}


class Figure(AbstractFigure):
    title = "Figures 1 (d), (e) and I.1: silent alignment of a wide residual network under Adam"
    ours = (
        "The number of steps. Both figures on the first two classes. At small scale "
        f"{SAMPLES[Scale.SMALL]} images of 8 x 8 pixels in place of 100 of 32 x 32, no widening (k = 1) in place of "
        f"k = 4, and Adam at {RATE[Scale.SMALL]:g} for {STEPS[Scale.SMALL]} steps in place of 1e-5, float32."
    )
    size = (7.0, 4.6)
    hours = by_scale(0.04, 3.0)
    images = (Images.CIFAR10,)

    def run(self, runs: Runs) -> Data:
        plain = pictures(Images.CIFAR10, runs.scale, SAMPLES, SAMPLES, halvings=2, draws=SEEDS[runs.scale], task=(0, 1))
        rate, steps = RATE[runs.scale], STEPS[runs.scale]
        descent = Descent(optax.adam(rate), rate=1.0)  # times are counts of steps
        # Which images is an axis, so that all networks share one program, which takes long to compile.
        axes = {"panel": np.arange(2), "first": np.array(FIRSTS), "seed": range(SEEDS[runs.scale])}
        make = _Networks(WIDENING[runs.scale], (whitened(plain), plain))
        times = np.linspace(0, steps, 17)
        watched = (loss(), outputs(), test_outputs(), kernel(), cross_kernel(), TARGETS)
        return {"runs": _of_kernels(runs.sweep("runs", make, axes, descent, times, observe=watched))}

    def draw(self, figure: Picture, data: Data) -> None:
        axes = figure.subplots(2, 2, width_ratios=[1.3, 1])
        for (curves, machines), (name, title) in zip(axes, PANELS.items(), strict=True):
            lane = _lanes(data, name).isel(seed=0)
            draw_run(curves, lane)
            draw_machines(machines, lane)
            curves.set(title=title, xlabel="steps of Adam")
        axes[0, 0].legend(frameon=False, fontsize=7)
        axes[0, 1].legend(frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        for name, panel in PANELS.items():
            run = _lanes(data, name)
            if name == "whitened":
                said = (
                    f"{panel}. The kernel does not grow before it has turned: share of the alignment's rise that is "
                    "done when |K| has grown by a tenth of its growth."
                )
                yield Claim(said, "about 1", (0.8, 1.2), *mean_over(_turned_before_growth(run)))
                said = f"{panel}. The final kernel is strongly correlated with the network: on test points."
                yield Claim(said, "near 1", (0.9, inf), *mean_over(machine_correlations(run)))
            better = machine_errors(run, 0) / machine_errors(run)
            said = f"{panel}. The final kernel is the better model: the first one's error on test points over its."
            yield Claim(said, *ABOVE_ONE, *mean_over(better))
        run = _lanes(data, "plain")
        turned = turned_before(run["t"], run["loss"].values, run["kernel_alignment"].values, 0.5)
        said = "I.1. The loss falls before the alignment is final: share of its rise that is done at half the loss."
        yield Claim(said, "< 1", (-inf, 1.0), *mean_over(turned))
        said = "I.1. So the final kernel is not perfectly correlated with the network: correlation on test points."
        yield Claim(said, "< 1", (0.0, 0.99), *mean_over(machine_correlations(run)))
        for name, panel in PANELS.items():
            large, small = (_lanes(data, name, first)["kernel_alignment"].isel(t=-1) for first in (FIRST, FIRSTS[0]))
            said = (
                f"{panel}. Small weights in the first layer give worse final alignment: that at {FIRST:g} less that "
                f"at {FIRSTS[0]:g}."
            )
            yield Claim(said, *POSITIVE, *mean_over(large - small))


def _lanes(data: Data, name: str, first: float = FIRST) -> Table:
    return data["runs"].isel(panel=list(PANELS).index(name)).sel(first=first).transpose("seed", "t", ...)


def _of_kernels(runs: Table) -> Table:
    """With norm and alignment of the kernels."""
    matrix, y = runs["kernel"].isel(output=0, output_2=0), runs["targets"].isel(output=0)
    norm = (matrix**2).sum(["sample", "sample_2"]) ** 0.5
    moved = (matrix * y * y.rename(sample="sample_2")).sum(["sample", "sample_2"])
    return runs.assign(kernel_norm=norm, kernel_alignment=moved / (norm * (y**2).sum("sample")))


def _turned_before_growth(run: Table) -> np.ndarray:
    norm, alignment = run["kernel_norm"].values, run["kernel_alignment"].values
    grown = rise_time(run["t"], norm - norm[:, :1], 0.1 * (norm[:, -1] - norm[:, 0]))
    at = np.array([np.interp(t, run["t"], row) for t, row in zip(grown, alignment, strict=True)])
    return (at - alignment[:, 0]) / (alignment[:, -1] - alignment[:, 0])


class _Networks(NamedTuple):
    """Every layer but the first from the same scale over the root of its fan-in."""

    widening: int
    both: tuple[Dataset, Dataset]

    def __call__(self, panel: Array, first: Array, seed: Array) -> Problem:
        data = jax.tree.map(lambda *parts: jnp.stack(parts)[panel], *(draw_of(data, seed) for data in self.both))
        sigma = jnp.full(_ARRAYS - (self.widening == 1), SIGMA).at[0].set(first)
        _, *size = data.x.shape
        options = {"scaling": Scaling.standard(sigma=sigma), "key": jax.random.key(seed), "dtype": data.x.dtype}
        net = WideResNet(in_shape=(size[0], size[1], size[2]), out_size=1, k=self.widening, b=1, **options)
        return Problem(net, *data.train, test=data.test)


_ARRAYS = 11  # of one block a group; unless it is widened, the first needs no convolution of 1 x 1
