r"""The crossover of a network from the kernel regime to feature learning, seen before it trains.

With an output multiplier alpha of what it learns, $f_0 + \alpha (f - f_0)$, linearized training moves the parameters
by $\Delta/\alpha$ (Chizat et al.), where $\Delta$ is what it takes without multiplier. So one linearized training, by
the same optimizer, tells the displacement at every alpha; alpha is where the kernel there has moved by the limit.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float, PyTree

from .._core import Problem
from ..kernels._internal import Trace
from ._movement import relative_change, whole_kernel


# Displacements that are tried: below, float32 cannot tell the change of a kernel from rounding.
SMALLEST, LARGEST = 1e-4, 1e4


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
    """Finds where |K(theta_0 + s Delta) - K_0|/|K_0| is the limit, by a search in log s; the multiplier is 1/s.

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
    known: dict[float, float] = {}  # kernels are dear, and Brent's method asks again for the ends of its bracket

    def beyond(place: float) -> float:
        """How far the kernel is beyond the limit, from -1 to 1, at the displacement exp(place)."""
        if place not in known:
            moved = _moved(problem.params, displacement, jnp.asarray(np.exp(place), problem.dtype))
            known[place] = float(relative_change(whole_kernel(problem, moved, eta, trace), before))
        # tanh(log(change/limit)/2), nearly a line; a kernel that overflows has moved beyond any limit.
        return (known[place] - limit) / (known[place] + limit) if np.isfinite(known[place]) else 1.0

    last_one = place = 0.0  # log of the displacement of this network itself
    onward = np.log(8) if beyond(place) < 0 else -np.log(8)
    # Steps of a factor 8 until there is a displacement on either side of the limit, then Brent's method, to 5 %.
    while beyond(place) * onward < 0 and first < place < last:
        last_one, place = place, float(np.clip(place + onward, first, last))
    if beyond(place) * onward >= 0:
        found: Any = scipy.optimize.brentq(beyond, last_one, place, xtol=np.log(1.05))
        multiplier = float(np.exp(-found))
    else:
        multiplier = 0.0 if onward > 0 else np.inf
    scales, changes = np.array(sorted((np.exp(place), change) for place, change in known.items())).T
    return Crossover(multiplier, scales, changes)


@eqx.filter_jit
def _moved(params: PyTree, displacement: PyTree, scale: Float[Array, ""]) -> PyTree:
    return jax.tree.map(lambda p, d: p + scale * d, params, displacement)
