"""Soft committees that see every sample once: fluctuations in d dimensions, and how long a plateau lasts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ..._core import Problem, Stream
from ...dynamics import Descent, OrderParameters, SoftCommittee
from ...nets import Function
from ...observe import parameters
from ...plot import COLORS
from .._claim import Claim, Claims, exponent, mean_over, POSITIVE
from .._figure import AbstractFigure, by_scale, Data, Picture, Runs, Table


RATE = 1.0
DIMENSIONS = [50, 200, 800]
SEEDS = by_scale(24, 100)
TIMES = np.arange(1.0, 5.0)  # samples over d
FAR = 10.0 ** np.arange(2, 9, 2)  # dimensions whose plateaus are followed in the limit
DRAWS, ENDS = 8, np.linspace(0.0, 400.0, 1601)
UNITS = 2


class Figure(AbstractFigure):
    title = "Online learning of a soft committee: distance from the limit, and the length of the plateau"
    ours = (
        f"{UNITS} units and a teacher of {UNITS}, second layers of ones, rate {RATE:g}, no noise; Gaussian weights, "
        "of the student a tenth in size. Simulated to 4 d samples; plateaus by the equations of the limit, from "
        "overlaps as they are drawn in d dimensions."
    )
    size = (6.8, 2.8)
    hours = by_scale(0.03, 0.2)

    def run(self, runs: Runs) -> Data:
        seeds = {"seed": range(SEEDS[runs.scale])}
        descent = Descent(optax.sgd(RATE), batch_size=1, key=jax.random.key(1))
        return {
            f"d{d}": runs.sweep(
                f"d{d}", functools.partial(_problem, d), seeds, descent, RATE * d * TIMES, observe=parameters()
            )
            for d in DIMENSIONS
        }

    def draw(self, figure: Picture, data: Data) -> None:
        left, right = figure.subplots(1, 2)
        far = _distances(data)
        left.plot(DIMENSIONS, far.T, color="gray", lw=0.5)
        left.plot(DIMENSIONS, far.mean(0), "o-", color=COLORS[0], label="mean")
        left.plot(DIMENSIONS, far.mean(0)[0] * (np.array(DIMENSIONS) / DIMENSIONS[0]) ** -0.5, "k:", label="power -1/2")
        left.set_xscale("log")
        left.set_xticks(DIMENSIONS, DIMENSIONS)
        left.minorticks_off()
        left.set(yscale="log", xlabel="dimension $d$", ylabel="overlaps less the limit's")
        left.legend(frameon=False, fontsize=8)
        right.plot(FAR, _escapes().T, "o-", ms=3, lw=0.8)
        right.set(xscale="log", xlabel="dimension $d$", ylabel="end of the plateau (samples$/d$)", ylim=(0, None))

    def claims(self, data: Data) -> Claims:
        said = (
            f"Overlaps of simulations from those of the limit, d = {DIMENSIONS[0]} to {DIMENSIONS[-1]}: exponent of d."
        )
        yield Claim(said, "-1/2", (-0.6, -0.4), *exponent(DIMENSIONS, _distances(data)))
        steps = np.diff(_escapes(), axis=1)
        said = "The plateau grows with d: by so many samples/d where d grows a hundredfold."
        yield Claim(said, *POSITIVE, *mean_over(steps.mean(1)))
        said = f"Like log d: this growth up to d = {FAR[-1]:g} over that up to {FAR[1]:g}."
        yield Claim(said, "1", (0.9, 1.1), *mean_over(steps[:, -1] / steps[:, 0]))


def _outputs(weights: Float[Array, "units d"], x: Float[Array, " d"]) -> Float[Array, " 1"]:
    return jnp.sum(jax.lax.erf(weights @ x / (2 * len(x)) ** 0.5), keepdims=True)


def _drawn(d: int, seed: Array) -> tuple[Float[Array, "units d"], Float[Array, "units d"]]:
    """Student and teacher."""
    student, teacher = jax.random.split(jax.random.key(seed))
    return 0.1 * jax.random.normal(student, (UNITS, d)), jax.random.normal(teacher, (UNITS, d))


def _problem(d: int, seed: Array) -> Problem:
    student, teacher = _drawn(d, seed)

    def sample(key: Array, size: int) -> tuple[Float[Array, "size d"], Float[Array, "size 1"]]:
        x = jax.random.normal(key, (size, d))
        return x, jax.vmap(lambda x: _outputs(teacher, x))(x)

    return Stream(Function(_outputs, student), sample, key=jax.random.key(0), size=1)


def _distances(data: Data) -> Float[np.ndarray, "seeds dimensions"]:
    """The root mean square distance of the overlaps Q and R from those of the limit, over TIMES."""
    return np.stack([_distance(d, data[f"d{d}"]) for d in DIMENSIONS], axis=1)


def _distance(d: int, run: Table) -> Float[np.ndarray, " seeds"]:
    def one(seed: Array, weights: Float[Array, "times numbers"]) -> Float[Array, ""]:
        student, teacher = _drawn(d, seed)
        ones = jnp.ones(UNITS)
        start = OrderParameters.of(student, ones, teacher=teacher, teacher_readout=ones)
        limit = SoftCommittee(RATE).solve(start, TIMES)
        w = weights.reshape(len(TIMES), UNITS, d)
        off = w @ jnp.swapaxes(w, 1, 2) / d - limit.Q, w @ teacher.T / d - limit.R
        return jnp.sqrt(sum(jnp.mean(part**2) for part in off))

    found = run["parameters"].transpose("seed", "t", ...).values
    return np.asarray(jax.jit(jax.vmap(one))(run["seed"].values, found.reshape(*found.shape[:2], -1)))


@functools.cache
def _escapes() -> Float[np.ndarray, "draws dimensions"]:
    """When the error has fallen to half of its plateau, which is reached by 15 d samples."""

    def one(seed: Array, d: Array) -> Float[Array, " times"]:
        R = 0.1 * jax.random.normal(jax.random.key(seed), (UNITS, UNITS)) / jnp.sqrt(d)
        ones = jnp.ones(UNITS)
        start = OrderParameters(Q=0.01 * jnp.eye(UNITS), R=R, T=jnp.eye(UNITS), v=ones, A=ones)
        return SoftCommittee(RATE).solve(start, ENDS).error

    draws = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(jnp.arange(DRAWS), jnp.asarray(FAR))
    error = np.asarray(draws)
    half = error[..., np.searchsorted(ENDS, 15.0), None] / 2
    return ENDS[np.argmax((error < half) & (ENDS > 15), axis=-1)]
