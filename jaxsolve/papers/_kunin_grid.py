"""The grid of Kunin et al., figures 1, 5 and 10: two-layer ReLU students over both scales of initialization."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from .._core import Problem
from ..data import Dataset, teacher_student
from ..dynamics import Descent
from ..nets import Mirrored, MLP, Scaling, Sphere
from ..observe import hamming_distance, kernel_distance, loss, parameter_distance, test_loss
from ..plot import value_map
from ._claim import mean_over, Measured
from ._figure import Panel, Runs, Scale, Table, Values


TEACHER_WIDTH = 3
MEASURES = {
    "test_loss": "test error",
    "kernel_distance": "kernel distance",
    "hamming_distance": "Hamming distance",
    "parameter_distance": "parameter distance",
}


class Sizes(NamedTuple):
    """The sizes of a grid and of its networks, and the step and end of its runs."""

    in_size: int
    width: int
    samples: int
    tests: int
    taus: int
    deltas: int
    seeds: int
    step: float
    end: float

    @property
    def times(self) -> np.ndarray:
        """Checkpoints: the start, then one per decade."""
        return np.array([0.0, *self.end * 10.0 ** np.arange(-3, 1)])


PAPER = Sizes(100, 50, 1000, 10_000, taus=17, deltas=17, seeds=16, step=5e-3, end=500.0)
SIZES = {
    Scale.SMALL: Sizes(in_size=10, width=20, samples=100, tests=1000, taus=5, deltas=5, seeds=24, step=5e-3, end=20.0),
    Scale.MEDIUM: PAPER._replace(taus=2, deltas=3, seeds=6, end=100.0),
    Scale.PAPER: PAPER,
}


class Students(NamedTuple):
    """Students with Kunin's initialization: rows of length tau/alpha, read-outs +-alpha tau, zero output.

    tau^2 (alpha^2 - alpha^-2) = delta. Rates are 2/tau^2, since their loss is twice ours. Each seed has its own teacher
    and samples.
    """

    in_size: int
    width: int
    samples: int
    tests: int

    def __call__(self, tau: Array, delta: Array, seed: Array) -> Problem:
        return student(self.data(seed), self.width, tau, delta, jax.random.key(seed))

    def teacher(self, seed: Array | int) -> MLP:
        """The teacher of a seed: three neurons with read-outs 1 or -1."""
        teacher_scale = Scaling(multiplier=jnp.ones(2), sigma=jnp.ones(2), eta=jnp.ones(2))
        return MLP(
            in_size=self.in_size,
            out_size=1,
            width_size=TEACHER_WIDTH,
            depth=1,
            activation="relu",
            scaling=teacher_scale,
            init=Sphere(),
            key=jax.random.fold_in(jax.random.key(15), seed),
        )

    def data(self, seed: Array | int) -> Dataset:
        """The samples of a seed."""
        key = jax.random.fold_in(jax.random.key(201), seed)
        request = {"n_test": self.tests, "sphere": True, "key": key}
        return teacher_student(self.teacher(seed), self.in_size, self.samples, **request)


def student(data: Dataset, width: int, tau: Array, delta: Array, key: Array) -> Problem:
    """One of `Students`, on given data."""
    size = jnp.sqrt(delta**2 + 4 * tau**4)
    sigma = jnp.stack([jnp.sqrt((size - delta) / 2), jnp.sqrt((size + delta) / 2)])
    scaling = Scaling(multiplier=jnp.ones(2), sigma=sigma, eta=jnp.full(2, 2.0) / tau**2)
    net = MLP(
        in_size=data.x.shape[1],
        out_size=1,
        width_size=width,
        depth=1,
        activation="relu",
        scaling=scaling,
        init=Mirrored(Sphere()),
        key=key,
    )
    return Problem(net, *data.train, test=data.test)


def grid(runs: Runs) -> Table:
    """All students of a scale under gradient descent, stored beside the figures, since several figures use them.

    `mixed` tells for each seed whether its teacher's read-outs have both signs.
    """
    sizes, shared = SIZES[runs.scale], runs._replace(folder=runs.folder.parent)
    axes = {
        "tau": np.logspace(-1, 0.3, sizes.taus),
        "delta": np.linspace(-1, 1, sizes.deltas),
        "seed": range(100, 100 + sizes.seeds),
    }
    watched = [loss(), test_loss(), kernel_distance(), hamming_distance(), parameter_distance()]
    students, descent = Students(*sizes[:4]), Descent(optax.sgd(sizes.step))
    found = shared.sweep("grid", students, axes, descent, sizes.times, observe=watched)
    signs = [np.sign(np.asarray(students.teacher(seed).weights[-1])).ravel() for seed in axes["seed"]]
    return found.assign(mixed=("seed", [bool(np.ptp(row)) for row in signs]))


def of_size(scale: Scale) -> str:
    """The size of a scale's grid, in words."""
    s = SIZES[scale]
    return (
        f"{s.taus} x {s.deltas} x {s.seeds} networks of {s.width} neurons, {s.samples} samples in "
        f"{s.in_size} dimensions, {s.end / s.step:.0f} steps of {s.step:g}/tau^2"
    )


def draw_map(ax: Panel, values: Values, title: str, *, log: bool = False) -> None:
    """Draws the mean over seeds of a measure, over both scales."""
    value_map(values.mean("seed").rename(None), "tau", "delta", logarithmic=log, ax=ax)
    ax.set(xlabel="", ylabel="")
    ax.set_title(title, fontsize=9)


def across_delta(measure: Values, low: float, high: float, *, tau: int = 0) -> Measured:
    """The measure at delta = high minus the measure at delta = low, averaged over seeds, at one tau of the grid."""
    at = lambda delta: measure.isel(tau=tau).sel(delta=delta, method="nearest")
    return mean_over(at(high) - at(low))
