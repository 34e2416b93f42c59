"""Figure 6 (c): upstream starts need fewer samples of data that are made of parts of parts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from ..._core import Problem
from ...data import Dataset, random_hierarchy
from ...dynamics import Descent
from ...losses import CrossEntropy
from ...nets import MLP, Scaling
from ...observe import accuracy, test_accuracy
from ...plot import COLORS, MARKERS
from .._claim import Claim, Claims, mean_over, NEGATIVE, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Scale


ALPHAS = by_scale([0.1, 1.0, 3.0, 10.0], [0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
SAMPLES = by_scale([1000, 4000], [1000, 2000, 4000, 8000, 16_000, 32_000])
SEEDS = by_scale(3, 6)
EPOCHS = by_scale(40, 250)
TESTS = by_scale(2000, 20_000)
WIDTH, BATCH, RATE, MOMENTUM = 64, 128, 0.02, 0.9


class Figure(AbstractFigure):
    title = "Figure 6 (c): test error on the Random Hierarchy Model against the number of samples, at several alpha"
    ours = (
        f"Kaiming's start at width {WIDTH} and the rate {RATE:g} in place of their parametrization with a rate of 6.4; "
        f"the numbers of samples. At small scale {EPOCHS[Scale.SMALL]} epochs, {TESTS[Scale.SMALL]} test samples, "
        f"{SEEDS[Scale.SMALL]} starts, float32."
    )
    size = (3.8, 2.8)
    hours = by_scale(0.025, 5.0, 12.0)

    def run(self, runs: Runs) -> Data:
        found = {}
        for samples in SAMPLES[runs.scale]:
            texts = random_hierarchy(samples, n_test=TESTS[runs.scale], key=jax.random.key(0))
            steps = EPOCHS[runs.scale] * (samples // BATCH)
            rate = optax.cosine_decay_schedule(RATE, int(0.8 * steps))
            sgd = optax.sgd(rate, momentum=MOMENTUM)
            descent = Descent(sgd, rate=1.0, batch_size=BATCH, key=jax.random.key(1))  # times are counts of steps
            axes = {"alpha": ALPHAS[runs.scale], "seed": range(SEEDS[runs.scale])}
            watched = [accuracy(), test_accuracy()]
            name = f"of_{samples}"
            found[name] = runs.sweep(name, _Networks(texts), axes, descent, [0.0, float(steps)], observe=watched)
        return found

    def draw(self, figure: Picture, data: Data) -> None:
        ax = figure.subplots()
        sizes = [int(name.removeprefix("of_")) for name in data]
        for alpha, color, marker in zip(_errors(data)["alpha"].values, COLORS, MARKERS, strict=False):
            mean, bar = zip(*(mean_over(_errors(data, name).sel(alpha=alpha)) for name in data), strict=True)
            style = {"color": color, "marker": marker, "ms": 4, "lw": 1.0, "label": rf"$\alpha = {alpha:g}$"}
            ax.errorbar(sizes, mean, bar, **style)
        ax.axhline(100 * 7 / 8, color="0.6", lw=0.8, ls=":")
        ax.set(xscale="log", xlabel="training samples", ylabel="test error (%)", ylim=(0, None))
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
        figure.legend(*ax.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=7)

    def claims(self, data: Data) -> Claims:
        most = _errors(data)
        upstream = float(most["alpha"].max())
        for name in data:
            error = _errors(data, name)
            size = name.removeprefix("of_")
            said = f"With {size} samples, test error at alpha = {upstream:g} less that at 1, in points."
            yield Claim(said, *NEGATIVE, *mean_over(error.sel(alpha=upstream) - error.sel(alpha=1.0)))
        said = "With most samples, test error at alpha = 0.1 (downstream) less that at 1, in points."
        yield Claim(said, *POSITIVE, *mean_over(most.sel(alpha=0.1) - most.sel(alpha=1.0)))
        steps = most.diff("alpha").max("alpha")
        said = "The error falls with alpha all the way: largest step from one alpha to the next, in points."
        yield Claim(said, *NEGATIVE, *mean_over(steps))


def _errors(data: Data, name: str = ""):
    """In per cent at the end of training; of the most samples if not said."""
    return 100 * (1 - data[name or list(data)[-1]]["test_accuracy"].isel(t=-1))


class _Networks(NamedTuple):
    """Three hidden layers; the first one's start over alpha, the last one's times alpha."""

    texts: Dataset

    def __call__(self, alpha: Array, seed: Array) -> Problem:
        half = lambda pair: tuple(part.astype("float32") for part in pair)
        one = jnp.ones(())
        scaling = Scaling.kaiming(sigma=jnp.stack([1 / alpha, one, one, alpha]))
        into, out, key = self.texts.x.shape[1], self.texts.y.shape[1], jax.random.key(seed)
        made = {"scaling": scaling, "key": key, "dtype": "float32"}
        net = MLP(in_size=into, out_size=out, width_size=WIDTH, depth=3, **made)
        assert self.texts.test is not None
        return Problem(net, *half(self.texts.train), test=half(self.texts.test), loss=CrossEntropy())
