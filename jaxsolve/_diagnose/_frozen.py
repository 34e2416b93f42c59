"""Parameters that training leaves where they are, such as all but the read-out in a linear probe."""

from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from .._core import Problem
from ._stability import difference


NAMED = 6  # more are counted


def moving_rates(
    probe: Problem, checkpoints: Sequence[PyTree], gradients: Sequence[PyTree], updates: Iterable[PyTree] | None
) -> tuple[PyTree, list[str]]:
    """The learning rates, 0 for frozen parameters, and a note that names them.

    A parameter is frozen if it is the same at all checkpoints and has no part in the updates, though its gradient is
    not 0. Where nothing moves at all, that says nothing, and all keep their rates.

    Arguments:
        probe: the problem of the samples to look at.
        checkpoints: parameters; the first are the start.
        gradients: of the loss, at each.
        updates: what the optimizer would add next at the checkpoints, which tells a small update, lost to rounding,
            from none. None where the optimizer is not known: then descent, for as long as the others took to where they
            are, tells.
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
    """For each leaf, True if it is other than 0 in one of the trees."""
    found = [[np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)] for tree in trees]
    return np.asarray(np.any(found, axis=0))


def _lost(start: PyTree, end: PyTree, slope: PyTree, eta: PyTree) -> np.ndarray:
    """True for each leaf where rounding would hide what descent adds in the longest time that others' changes show."""
    old, new, slopes, rates = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (start, end, slope, eta))
    # Descent for a time t moves a parameter by about t |eta g|; the longest t that a leaf's change shows counts for
    # all.
    pulls = [np.abs(rate * slope) for rate, slope in zip(rates, slopes, strict=True)]
    largest = lambda array: float(np.max(np.abs(array), initial=0))
    shown = [largest(b - a) / largest(p) for a, b, p in zip(old, new, pulls, strict=True) if largest(p) > 0]
    time = max(shown, default=0.0)
    hidden = [time * p <= np.finfo(a.dtype).eps * np.abs(a) for a, p in zip(old, pulls, strict=True)]
    return np.array([time > 0 and bool(np.all(leaf)) for leaf in hidden])
