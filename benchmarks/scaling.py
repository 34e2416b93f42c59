"""How time grows with width, depth, samples and lanes: fitted exponents."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxsolve as js

from ._said import Beside, Row
from ._timing import in_turns


STEPS = 100
REPEATS, SECONDS = 5, 60.0


def main(*, quick: bool) -> Iterator[Row]:
    """All of them; at half of the sizes in the quick part."""
    sizes = (lambda values: values[:-1]) if quick else (lambda values: values)
    descent = js.Descent(optax.sgd(0.1))

    def train(width: int, depth: int, n: int) -> Callable[[], Any]:
        problem, ts = _problem(width, depth, n), [0.0, 0.1 * STEPS]
        return lambda: js.solve(problem, descent, ts)["loss"]

    large = sizes((128, 256, 512, 1024))
    yield _exponent("descent, 2 hidden layers, n = 100: width", large, lambda w: train(w, 2, 100), 2)
    yield _exponent("descent, width 128, n = 100: hidden layers", sizes((2, 4, 8, 16)), lambda d: train(128, d, 100), 1)
    yield _exponent("descent, 2 hidden layers of 128: samples", large, lambda n: train(128, 2, n), 1)

    def kernel(n: int) -> Callable[[], Any]:
        problem = _problem(128, 2, n)
        return lambda: js.kernels.empirical(problem.net, problem.x).ntk

    yield _exponent("NTK, 2 hidden layers of 128: samples", sizes((128, 256, 512, 1024, 2048)), kernel, 2)

    def lanes(count: int) -> Callable[[], Any]:
        axes = {"seed": range(count)}
        return lambda: js.sweep(_lane, axes, js.GradientFlow(), [0.0, 10.0], progress=False)["loss"].values

    yield _exponent("sweep of flows, width 32, n = 20: lanes", sizes((256, 1024, 4096)), lanes, 1)


def _problem(width: int, depth: int, n: int) -> js.Problem:
    x = jax.random.normal(jax.random.key(0), (n, 10))
    net = js.nets.MLP(10, width, depth, 1, "tanh", scaling=js.nets.Scaling.ntk(), key=jax.random.key(1))
    return js.Problem(net, x, x[:, :1] * x[:, 1:2])


def _lane(seed: Any) -> js.Problem:
    x = jax.random.normal(jax.random.key(0), (20, 4))
    net = js.nets.MLP(4, 32, 1, 1, "tanh", scaling=js.nets.Scaling.ntk(), key=jax.random.key(seed))
    return js.Problem(net, x, jnp.sin(x[:, :1]))


def _exponent(what: str, sizes: Sequence[int], make: Callable[[int], Callable[[], Any]], alone: float) -> Row:
    """Beside that of the multiplications alone in the limit of large sizes; the goal is hardly more."""
    ways = [make(size) for size in sizes]
    for way in ways:
        jax.block_until_ready(way())
    medians = [float(np.median(part)) for part in in_turns(ways, REPEATS, SECONDS)]
    note = ", ".join(f"{size}: {1e3 * one:.3g} ms" for size, one in zip(sizes, medians, strict=True))
    # Of the larger half: small ones are bound by what every call costs.
    fitted = np.polyfit(np.log(np.asarray(sizes[-2:], float)), np.log(medians[-2:]), 1)[0]
    what, beside = f"{what}: exponent of the time between the largest two", (Beside("multiplications alone", alone),)
    return Row(what, float(fitted), "<=", alone + 0.1, beside=beside, note=note)
