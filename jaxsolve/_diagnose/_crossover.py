r"""The crossover of a network from the kernel regime to feature learning, seen before it trains.

With an output multiplier alpha of what it learns, $f_0 + \alpha (f - f_0)$, linearized training moves the parameters
by $\Delta/\alpha$ (Chizat et al.), where $\Delta$ is what it takes without multiplier. So one linearized training, by
the same optimizer, tells the displacement at every alpha; alpha is where the kernel there has moved by the limit.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._core import Problem
from .._numerics import nonzero, norm, unit
from ..kernels._internal import Trace
from ._movement import relative_change, whole_kernel


# Displacements that are tried: below, float32 cannot tell the change of a kernel from rounding.
SMALLEST, LARGEST, TRIALS = 1e-4, 1e4, 14


class Curvature(NamedTuple):
    """Chizat's ratio along one direction of the parameters, by two nested jvps.

    Attributes:
        ratio: |D^2 f[u, u]| s/(2 |D f[u]|), with the s at which the loss, falling as it does at first, would have
            fallen by its size: to 0, if it is positive. NaN where the loss does not fall.
        second: |D^2 f[u, u]| with u of norm 1.
    """

    ratio: Float[Array, ""]
    second: Float[Array, ""]


@eqx.filter_jit
def curvature(problem: Problem, params: PyTree, update: PyTree) -> Curvature:
    """Chizat's ratio along an update; for MSE and u = -grad L it is the criterion of his paper.

    The size of the update drops out: one of norm 1 stands for it, whose products neither overflow nor vanish.
    """
    flat, shaped = ravel_pytree(update)
    along = shaped(unit(flat))
    slope = lambda p: jax.jvp(problem.outputs, (p,), (along,))
    # A jvp of a jvp along the same direction u: f, D f[u] and D^2 f[u, u] in one pass.
    (f, first), (_, second) = jax.jvp(slope, (params,), (along,))
    loss = problem.loss.value(f, problem.y)
    falls = -jnp.sum(problem.loss.gradient(f, problem.y) * first)
    # s of the text: the size of the loss over its slope along u, by which a straight line would have fallen so far.
    length = jnp.where(falls > 0, jnp.abs(loss) / nonzero(falls), jnp.nan)
    one, two = norm(first), norm(second)
    return Curvature(length * two / (2 * nonzero(one)), two)


class Crossover(NamedTuple):
    """The multiplier at which the kernel regime ends.

    Attributes:
        multiplier: alpha; below it the network learns features. 0 or inf where no displacement tried reaches the limit,
            or all do.
        scales, changes: displacements of linearized training, as multiples, and the kernel's relative change there.
    """

    multiplier: float
    scales: np.ndarray
    changes: np.ndarray


def crossover(problem: Problem, eta: PyTree, displacement: PyTree, limit: float, trace: Trace) -> Crossover | None:
    """Finds where |K(theta_0 + s Delta) - K_0|/|K_0| is the limit, by bisection in log s; the multiplier is 1/s.

    None where K_0 is 0.

    Arguments:
        problem: at its start, of few samples.
        eta: the learning rates that its kernel is weighted with.
        displacement: Delta, of linearized training to its end.
        limit: the change that ends the kernel regime.
        trace: how kernels are computed.
    """
    before = whole_kernel(problem, problem.params, eta, trace)
    if not np.any(np.asarray(before)):
        return None
    first, last = np.log(SMALLEST), np.log(LARGEST)
    low, high = -np.inf, np.inf  # until they are found
    seen: list[tuple[float, float]] = []

    def change(scale: float) -> float:
        moved = _moved(problem.params, displacement, jnp.asarray(scale, problem.dtype))
        value = float(relative_change(whole_kernel(problem, moved, eta, trace), before))
        seen.append((scale, value))
        # A kernel that overflows has moved beyond any limit.
        return value if np.isfinite(value) else np.inf

    trial = 0.0  # log of the displacement of this network itself
    # Steps of a factor 8 until there is a displacement on either side of the limit, then bisection to 10 %.
    for _ in range(TRIALS):
        if change(float(np.exp(trial))) < limit:
            low = trial
        else:
            high = trial
        if low >= last or high <= first or high - low < np.log(1.1):
            break
        if np.isfinite(low) and np.isfinite(high):
            trial = (low + high) / 2
        else:
            trial = min(trial + np.log(8), last) if np.isfinite(low) else max(trial - np.log(8), first)
    seen.sort()
    scales, changes = np.array(seen).T
    if np.isfinite(low) and np.isfinite(high):
        # The geometric mean of both, and the multiplier is its inverse.
        multiplier = float(np.exp(-(low + high) / 2))
    else:
        multiplier = 0.0 if np.isfinite(low) else np.inf
    return Crossover(multiplier, scales, changes)


@eqx.filter_jit
def _moved(params: PyTree, displacement: PyTree, scale: Float[Array, ""]) -> PyTree:
    return jax.tree.map(lambda p, d: p + scale * d, params, displacement)
