"""Parameters that training does not change, such as all but the read-out in a linear probe."""

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from .._core import Problem
from ._stability import difference


NAMED = 6  # names shown; the rest are counted


def moving_rates(
    probe: Problem, checkpoints: Sequence[PyTree], gradients: Sequence[PyTree], updates: Iterable[PyTree] | None
) -> tuple[PyTree, list[str]]:
    """The learning rates, 0 for frozen parameters, and a note that names them.

    A parameter is frozen if it is the same at all checkpoints and its updates are 0, though its gradient is not. If
    nothing moves, this test says nothing, and all parameters keep their rates.

    Arguments:
        probe: the problem on the probe samples.
        checkpoints: parameters, the first ones at the start.
        gradients: gradients of the loss at the checkpoints.
        updates: the optimizer's next updates at the checkpoints, which tell an update lost to rounding from no update.
            None if the optimizer is unknown: gradient descent for the time that the other parameters took then decides.
    """
    start = checkpoints[0]
    moved = _anywhere(difference(params, start) for params in checkpoints)
    if not moved.any() or moved.all():
        return probe.eta, []
    if updates is None:
        hidden = _lost(start, checkpoints[-1], gradients[0], probe.eta)
    else:
        hidden = _anywhere(updates)
    # At the last checkpoint the gradient has not led to a step yet.
    frozen = ~(moved | hidden) & _anywhere(gradients[:-1])
    if not frozen.any():
        return probe.eta, []
    rates, structure = jax.tree.flatten(probe.eta)
    rates = [rate * float(not held) for rate, held in zip(rates, frozen, strict=True)]
    named = jax.tree_util.tree_leaves_with_path(start)
    names = [jax.tree_util.keystr(path).lstrip(".") for (path, _), held in zip(named, frozen, strict=True) if held]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    note = (
        f"These parameters are frozen in this training, and left out of its kernels: {', '.join(names[:NAMED])}{more}."
    )
    return jax.tree.unflatten(structure, rates), [note]


def _anywhere(trees: Iterable[PyTree]) -> np.ndarray:
    """For each leaf, True if it is nonzero in one of the trees."""
    found = [[np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)] for tree in trees]
    return np.asarray(np.any(found, axis=0))


def _lost(start: PyTree, end: PyTree, slope: PyTree, eta: PyTree) -> np.ndarray:
    """For each leaf, True if rounding would hide its change by descent for the longest time that any leaf shows."""
    old, new, slopes, rates = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (start, end, slope, eta))
    # Descent for a time t moves a parameter by about t |eta g|. The longest t implied by any leaf is used for all.
    pulls = [np.abs(rate * slope) for rate, slope in zip(rates, slopes, strict=True)]
    largest = lambda array: float(np.max(np.abs(array), initial=0))
    shown = [largest(b - a) / largest(p) for a, b, p in zip(old, new, pulls, strict=True) if largest(p) > 0]
    time = max(shown, default=0.0)
    hidden = [time * p <= np.finfo(a.dtype).eps * np.abs(a) for a, p in zip(old, pulls, strict=True)]
    return np.array([time > 0 and bool(np.all(leaf)) for leaf in hidden])
