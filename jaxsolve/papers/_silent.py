"""Shared parts of the figures of silent alignment: initialization, whitened data and images, and rise times."""

import functools
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._core import Problem, Quantity
from ..data import Dataset
from ..kernels import regression
from ..nets import MLP, Scaling
from ..observe import cross_kernel, kernel, kernel_alignment, kernel_norm, loss, Observable, outputs, test_outputs
from ..observe._internal import rise_time as rise_time, turned_before as turned_before
from ..plot import COLORS, MARKERS
from ._claim import Claim, Claims, mean_over
from ._figure import Images, Panel, Scale, Table
from ._images import draw_of, drawn, images, images_used, principal


LOSS, SIZE, TURN = COLORS[0], COLORS[1], COLORS[2]  # blue, orange and green, as in the paper
TIME = "time $t$ (flow units)"


def whitened_task(n: int, d: int, key: PRNGKeyArray) -> tuple[Float[Array, "n d"], Float[Array, "n 1"]]:
    """Inputs with X^T X/n = I, and the targets of a teacher of norm 1."""
    inputs, teacher = jax.random.split(key)
    x = n**0.5 * jnp.linalg.qr(jax.random.normal(inputs, (n, d)))[0]
    beta = jax.random.normal(teacher, (d, 1))
    return x, x @ (beta / jnp.linalg.norm(beta))


def draw_silence(ax: Panel, ts: Any, loss: Any, norm: Any, alignment: Any, limit: float | None = None) -> None:
    """Loss and kernel norm as shares of their largest values, the alignment, and its final value in theory."""
    ax.plot(ts, loss / loss[0], color=LOSS, label="loss")
    ax.plot(ts, norm / np.max(norm), color=SIZE, ls="-.", label=r"$|K|$")
    ax.plot(ts, alignment, color=TURN, ls="--", label="alignment")
    if limit is not None:
        ax.axhline(limit, color=TURN, lw=0.8, ls=":", label="final alignment of linear networks, theory")
    ax.set(xlabel=TIME, ylabel="share of the largest", ylim=(-0.03, 1.08))


def draw_machine(ax: Panel, outputs: Any, predictions: dict[str, Any]) -> None:
    """Predictions of kernel regressions against the network's outputs on test points."""
    ends = np.array([np.min(outputs), np.max(outputs)])
    ax.plot(ends, ends, color="0.6", lw=0.8)
    for (label, found), color, marker in zip(predictions.items(), (TURN, SIZE), MARKERS, strict=False):
        ax.plot(outputs, found, ls="", marker=marker, ms=2.5, mfc="none", color=color, label=label)
    ax.set(xlabel="network, test points", ylabel="kernel regression")


def relative_error(outputs: Any, predictions: Any) -> Float[np.ndarray, "*lanes"]:
    """|f - g|/|f| over the last two axes, test points and outputs."""
    difference = np.asarray(outputs, float) - np.asarray(predictions, float)
    return np.linalg.norm(difference, axis=(-2, -1)) / np.linalg.norm(np.asarray(outputs, float), axis=(-2, -1))


# Images, in the coordinates of their principal components


class ImageTask(NamedTuple):
    """Draws of images in their leading principal components.

    The law of a dense network with Gaussian weights is invariant to rotations of the inputs, so components serve as
    well as pixels. With fewer than all n - 1 components, part of the targets cannot be fitted.

    Arguments:
        found: the images that were found, so that a store of digits is not resumed with MNIST.
    """

    collection: Images
    scale: Scale
    task: str | tuple[int, int]
    samples: int
    tests: int
    rank: int
    draws: int
    found: str

    @staticmethod
    def here(
        collection: Images, scale: Scale, task: str | tuple[int, int], sizes: tuple[int, int, int], draws: int
    ) -> "ImageTask":
        """A task with the images that are found; sizes are (samples, tests, rank)."""
        return ImageTask(collection, scale, task, *sizes, draws, images_used(collection, scale))

    def data(self, seed: Any, gamma: Any = 0.0) -> Dataset:
        """X_gamma = U S^gamma V^T in principal coordinates: whitened at gamma = 0, unchanged at 1.

        Scaled to |X_gamma|^2 = n rank at every gamma, so that times can be compared. (`js.data.partial_whiten` has the
        power 1 - gamma instead.)
        """
        components = draw_of(_components(self), seed)
        sizes = jnp.sqrt(jnp.mean(components.x**2, axis=0))
        factor = sizes ** (gamma - 1)
        factor = factor / jnp.sqrt(jnp.mean((factor * sizes) ** 2))
        test = components.x_test if components.x_test is None else components.x_test * factor[None]
        return Dataset(components.x * factor[None], components.y, test, components.y_test)


@functools.cache
def _components(task: ImageTask) -> Dataset:
    """Principal components of each draw."""
    request = {"task": task.task, "n_train": task.samples, "n_test": task.tests}

    def draw(key: PRNGKeyArray) -> Dataset:
        data = principal(images(task.collection, task.scale, key=key, **request), task.rank)
        # Inputs are centered. Of one-hot targets a linear network could then not fit the mean.
        y = data.y - jnp.mean(data.y, axis=0, keepdims=True) if task.task == "classes" else data.y
        return Dataset(data.x, y, data.x_test, data.y_test, source=data.source)

    with jax.ensure_compile_time_eval():  # problems are made in traces, which need not hold all images
        return drawn(task.draws, draw)


def balanced_alignment(task: ImageTask, seed: int) -> float:
    """The alignment of kernel and targets once two balanced linear layers have fit whitened images: eq. 53, corrected.

    What the components cannot fit is a part of the targets, which holds it down.
    """
    data = task.data(seed)
    x, y = np.asarray(data.x), np.asarray(data.y)
    n, classes = y.shape
    left, s, right = np.linalg.svd(y.T @ x / n, full_matrices=False)
    first, last = right.T * s @ right, left * s @ left.T
    kernel = np.einsum("ij,cd->icjd", x @ first @ x.T, np.eye(classes)) + np.einsum("ij,cd->icjd", x @ x.T, last)
    return float(y.ravel() @ kernel.reshape(n * classes, -1) @ y.ravel() / np.linalg.norm(kernel) / np.sum(y**2))


class MLPOnImages(NamedTuple):
    """Dense networks in standard parametrization on such images.

    Arguments:
        depth: number of hidden layers.
    """

    images: ImageTask
    width: int
    depth: int = 1
    activation: str = "relu"

    def __call__(self, sigma: Array, seed: Array, gamma: Any = 0.0) -> Problem:
        data = self.images.data(seed, gamma)
        net = MLP(
            in_size=data.x.shape[1],
            out_size=data.y.shape[1],
            width_size=self.width,
            depth=self.depth,
            activation=self.activation,
            scaling=Scaling.standard(sigma=sigma),
            key=jax.random.key(seed),
        )
        return Problem(net, *data.train, test=data.test)


INPUTS = Observable("inputs", lambda view: view.problem.x @ view.problem.x.T, Quantity.PARAMS, ("sample", "sample_2"))
TARGETS = Observable("targets", lambda view: view.problem.y, Quantity.PARAMS, ("sample", "output"))
WATCHED = (loss(), kernel_alignment(), kernel_norm(), outputs(), test_outputs(), kernel(), cross_kernel(), TARGETS)


def regressions(run: Table, at: int) -> np.ndarray:
    """Test predictions of regression with the kernels at time index `at`, shape (*lanes, points, outputs).

    NaN for lanes that failed.
    """
    now = [run[name].isel(t=at).values for name in ("kernel", "cross_kernel", "targets")]
    start = [run[name].isel(t=0).values for name in ("outputs", "test_outputs")]
    lanes = now[-1].shape[:-2]
    rows = zip(*(array.reshape(-1, *array.shape[len(lanes) :]) for array in (*now, *start)), strict=True)
    found = np.full_like(start[1], np.nan).reshape(-1, *start[1].shape[len(lanes) :])
    for one, (matrix, cross, y, f0, g0) in zip(found, rows, strict=True):
        if np.isfinite(matrix).all():
            one[:] = regression(matrix, y, start=f0).predict(cross, g0)
    return found.reshape(start[1].shape)


def machine_errors(run: Table, at: int = -1) -> np.ndarray:
    """Relative error of kernel regression with the kernel at time index `at` against the final network."""
    return relative_error(run["test_outputs"].isel(t=-1), regressions(run, at))


def machine_correlations(run: Table, at: int = -1) -> np.ndarray:
    """The correlation of kernel regression with the final network, lane by lane."""
    finals, found = run["test_outputs"].isel(t=-1).values, regressions(run, at)
    pairs = zip(finals, found, strict=True)
    return np.array([np.corrcoef(f.ravel(), g.ravel())[0, 1] for f, g in pairs])


def machine_claims(panel: str, run: Table) -> Claims:
    """The claims that the final network is kernel regression with its final kernel."""
    said = f"{panel}: the final network is kernel regression with its final kernel: relative error on test points."
    yield Claim(said, "small", (0.0, 0.15), *mean_over(machine_errors(run)))
    yield Claim(f"{panel}: correlation of the two.", "near 1", (0.99, inf), *mean_over(machine_correlations(run)))


def draw_run(ax: Panel, run: Table, limit: float | None = None) -> None:
    """The three curves of one lane."""
    losses, norms, alignment = (run[name].values for name in ("loss", "kernel_norm", "kernel_alignment"))
    draw_silence(ax, run["t"].values, losses, norms, alignment, limit)


def draw_machines(ax: Panel, run: Table) -> None:
    """Regressions with the final and with the first kernel, of one lane."""
    final, first = (regressions(run, at).ravel() for at in (-1, 0))
    draw_machine(ax, run["test_outputs"].isel(t=-1).values.ravel(), {"final kernel": final, "first kernel": first})
