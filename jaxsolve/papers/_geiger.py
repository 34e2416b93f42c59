"""Shared parts of the figures of Geiger et al.: networks that learn the parity of digits at some output scale alpha."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._core import Problem
from ..data import Dataset
from ..dynamics import GradientFlow
from ..losses import SoftHinge
from ..nets import Activation, MLP, Padded, Scaling, softplus
from ..observe import loss, test_kernel_change, weight_change
from ..sweeps import ensemble_error, jackknife, padded, power_law
from ..until import margin_above
from ._claim import Measured
from ._figure import by_scale, Images, Panel, Runs, Scale, Table, Values
from ._images import draw_of, drawn, images


SAMPLES = by_scale(32, 1000, 10_000)
COMPONENTS = 10
BETA = 20.0  # the hinge is rounded over a margin of 1/BETA
SOFTPLUS = softplus(5.0)
SETTING = (
    f"Gradient flow in place of momentum with mu = 1000; the hinge rounded over a margin of 1/{BETA:g}; "
    f"{SAMPLES[Scale.SMALL]} training samples in place of 10000, and narrower networks, at small scale."
)


class AtAlpha(NamedTuple):
    """Problems by width and output scale: alpha (f - f_0) with the loss divided by alpha^2 (eqs. 4 and 5).

    Each seed has its own start and its own draw of the data from `parity`, unless `draw` selects one.
    """

    data: Dataset
    depth: int = 5
    activation: Activation = SOFTPLUS

    def __call__(self, width: int | Padded, alpha: Array, seed: Array, draw: Array | None = None) -> Problem:
        data = draw_of(self.data, seed if draw is None else draw)
        net = MLP(
            in_size=data.x.shape[1],
            out_size=1,
            width_size=width,
            depth=self.depth,
            activation=self.activation,
            bias=True,
            scaling=Scaling.lazy(alpha, gain=True),
            key=jax.random.key(seed),
        )
        return Problem(net, *data.train, test=data.test, loss=SoftHinge(BETA), centered=True)


class AtScale(NamedTuple):
    """Problems by width h and sqrt(h) alpha, which decides the regime."""

    data: Dataset
    depth: int = 5
    activation: Activation = SOFTPLUS

    def __call__(self, width: int | Padded, scale: Array, seed: Array, draw: Array | None = None) -> Problem:
        return AtAlpha(*self)(width, scale / width**0.5, seed, draw)


def parity(scale: Scale, n_test: int, draws: int) -> Dataset:
    """Odd and even digits in their first standardized principal components, with draws stacked along the first axis."""
    request = {"task": "parity", "pca": COMPONENTS, "n_train": SAMPLES[scale], "n_test": n_test}
    return drawn(draws, lambda key: images(Images.MNIST, scale, key=key, **request))


def flow() -> GradientFlow:
    """Gradient flow up to the time t_2, when all margins are met."""
    return GradientFlow(rtol=1e-3, until=margin_above(1.0))


def measure(runs: Runs, name: str, make: Callable, axes: dict[str, Any], ts: Any, observe: Any) -> Table:
    """A sweep of the flow in which all widths share a program."""
    return runs.sweep(name, *padded(make, axes, "width"), flow(), ts, observe=observe)


ALPHA_WIDTHS = by_scale([25, 50, 100], [10, 30, 100, 300], [10, 30, 100, 300, 1000])
ALPHAS = by_scale(10.0 ** np.array([-2.5, -2, -1, 0, 2, 3]), np.geomspace(1e-5, 1e5, 21))
ALPHA_SEEDS = by_scale(16, 10)
ALPHA_TESTS = 50
ALPHA_TIMES = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 49), [inf]])
FEATURE, LAZY = slice(0.0, 0.02), slice(9.0, inf)  # alpha of both regimes, at any of these widths


def over_alpha(runs: Runs) -> Table:
    """The runs by width and alpha that Figures 3 and 6 share, in the paper's folder."""
    axes = {
        "width": ALPHA_WIDTHS[runs.scale],
        "alpha": ALPHAS[runs.scale],
        "seed": range(ALPHA_SEEDS[runs.scale]),
    }
    tests = ALPHA_TESTS if runs.scale is Scale.SMALL else 20 * ALPHA_TESTS
    make = AtAlpha(parity(runs.scale, tests, ALPHA_SEEDS[runs.scale]))
    observed = [loss(), test_kernel_change(), weight_change()]
    shared = runs._replace(folder=runs.folder.parent)
    return measure(shared, "over_alpha", make, axes, ALPHA_TIMES, observed)


# Claims


def over_seeds(statistic: Callable, data: Values) -> Measured:
    """A statistic of all seeds with data, and its Student interval by the jackknife."""
    from scipy.stats import t

    alive = data.dropna("seed", how="all")
    if alive.sizes["seed"] < 2:
        return Measured(np.nan, np.nan)
    value, error = jackknife(statistic, alive)
    return Measured(float(value), float(t.ppf(0.975, alive.sizes["seed"] - 1) * error))


def errors(outputs: Values, targets: Values) -> tuple[Values, Values]:
    """For each draw of the data, the error of one network, averaged over starts, and of the averaged network.

    Arguments:
        outputs: with axes `draw`, `seed`, `test_sample`, `output` and others.
        targets: with axes `draw`, `test_sample` and `output`.
    """
    wrong = (outputs * targets <= 0).isel(output=0).where(outputs.notnull().all("output")).mean("test_sample")
    single = wrong.mean("seed").transpose("draw", ...)
    each = [ensemble_error(outputs.isel(draw=i), y) for i, y in enumerate(targets.values)]
    average = single.copy(data=np.stack([one.transpose(*single.dims[1:]).values for one in each]))
    return single, average


def logarithm(data: Values) -> Values:
    """The natural logarithm, with the same labels."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return data.copy(data=np.log(data.values))


def power(data: Values, axis: str) -> Measured:
    """b in data ~ axis^b."""
    return Measured(*power_law(data, axis)[:2])


def collapsing_power(curves: Values) -> float:
    """The p in [-1, 3/2] for which curves of all widths lie closest together over h^p alpha.

    Arguments:
        curves: with axes `width` and `alpha`, interpolated linearly over log alpha. The mean square distance between
            widths is measured over their common range, in units of the variance of all values.
    """
    values = curves.transpose("width", "alpha").values
    shifts, x = np.log(curves["width"].values / curves["width"].values[0]), np.log(curves["alpha"].values)

    def distance(p: float) -> float:
        common = np.linspace(x[0] + (p * shifts).max(), x[-1] + (p * shifts).min(), 100)
        rows = np.array([np.interp(common, x + p * shift, row) for shift, row in zip(shifts, values, strict=True)])
        return float(np.var(rows, axis=0).mean() / np.var(rows))

    powers = np.linspace(-1.0, 1.5, 251)
    return float(powers[np.argmin([distance(p) for p in powers])])


def when(ts: Float[ArrayLike, " times"], values: Values, times: Values) -> Values:
    """Values at one time per lane, interpolated along `t` linearly in logarithms; ts and values are positive."""
    ordered = values.transpose(*times.dims, "t")
    rows, at = ordered.values.reshape(-1, len(np.asarray(ts))), times.values.ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.interp(np.log(t), np.log(ts), np.log(row)) for t, row in zip(at, rows, strict=True)]
    return times.copy(data=np.exp(np.reshape(logs, times.shape)))


# Pictures


def width_axis(ax: Panel, widths: Iterable[int]) -> None:
    """Sets a logarithmic axis with a label at every width."""
    ax.set_xscale("log")
    widths = list(widths)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.minorticks_off()
    ax.set_xlabel("width $h$")


def guide(ax: Panel, x: Sequence[float], start: float, slope: float, label: str, *, above: bool = True) -> None:
    """Draws a dashed line of a given slope in a log-log plot, from x[0] to x[1], with its label above or below."""
    y = [start, start * (x[1] / x[0]) ** slope]
    ax.plot(x, y, color="0.3", ls="--", lw=1.0)
    middle, sign = (float(np.sqrt(x[0] * x[1])), float(np.sqrt(y[0] * y[1]))), 1 if above else -1
    aside = "left" if (slope < 0) == above else "right"
    style: Any = {"ha": aside, "va": "bottom" if above else "top", "fontsize": 7, "color": "0.3"}
    ax.annotate(label, middle, xytext=(0, 2 * sign), textcoords="offset points", **style)
