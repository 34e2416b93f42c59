r"""The crossover of a network from the kernel regime to feature learning, predicted before training.

With the output multiplier alpha in $f_0 + \alpha (f - f_0)$, linearized training moves the parameters by
$\Delta/\alpha$ (Chizat et al.), where $\Delta$ is the displacement at alpha = 1. One linearized training run with the
same optimizer thus gives the displacement at every alpha. At the crossover the kernel has changed by the limit.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
from jaxtyping import PyTree

from .._core import Problem
from ..kernels._internal import Trace
from ._movement import relative_change, whole_kernel


# Range of displacements. Below it, float32 cannot tell the change of a kernel from rounding.
SMALLEST, LARGEST = 1e-4, 1e4


class Crossover(NamedTuple):
    """The multiplier at which the kernel regime ends.

    Attributes:
        multiplier: alpha; below it the network learns features. 0 if no displacement reaches the limit, inf if all do.
        scales, changes: multiples of linearized training's displacement, and the kernel's relative change there.
    """

    multiplier: float
    scales: np.ndarray
    changes: np.ndarray


def crossover(problem: Problem, eta: PyTree, displacement: PyTree, limit: float, trace: Trace) -> Crossover | None:
    """Finds where |K(theta_0 + s Delta) - K_0|/|K_0| equals the limit, by a search in log s; the multiplier is 1/s.

    Returns None if K_0 is 0.

    Arguments:
        problem: the problem at its start, with few samples.
        eta: the learning rates that weight its kernel.
        displacement: Delta, from the whole of linearized training.
        limit: the change that ends the kernel regime.
        trace: how kernels are computed.
    """
    before = whole_kernel(problem, problem.params, eta, trace)
    if not np.any(np.asarray(before)):
        return None
    first, last = np.log(SMALLEST), np.log(LARGEST)
    known: dict[float, float] = {}  # kernels are expensive, and Brent's method reevaluates the ends of its bracket

    def beyond(place: float) -> float:
        """How far the kernel is beyond the limit, from -1 to 1, at the displacement exp(place)."""
        if place not in known:
            moved = _moved(problem.params, displacement, np.exp(place))
            known[place] = float(relative_change(whole_kernel(problem, moved, eta, trace), before))
        # tanh(log(change/limit)/2), nearly linear in the place; a kernel that overflows is beyond any limit.
        return (known[place] - limit) / (known[place] + limit) if np.isfinite(known[place]) else 1.0

    last_one = place = 0.0  # log of the displacement of the network as given
    onward = np.log(8) if beyond(place) < 0 else -np.log(8)
    # Steps by factors of 8 until the limit is bracketed, then Brent's method, to 5 %.
    while beyond(place) * onward < 0 and first < place < last:
        last_one, place = place, float(np.clip(place + onward, first, last))
    if beyond(place) * onward >= 0:
        found: Any = scipy.optimize.brentq(beyond, last_one, place, xtol=np.log(1.05))
        multiplier = float(np.exp(-found))
    else:
        multiplier = 0.0 if onward > 0 else np.inf
    scales, changes = np.array(sorted((np.exp(place), change) for place, change in known.items())).T
    return Crossover(multiplier, scales, changes)


def _moved(params: PyTree, displacement: PyTree, scale: float) -> PyTree:
    # In NumPy, which compiles nothing.
    return jax.tree.map(lambda p, d: (np.asarray(p) + scale * np.asarray(d)).astype(p.dtype), params, displacement)
