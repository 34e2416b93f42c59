"""Measurements of a network at its checkpoints."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._core import Problem
from ..kernels._internal import check_trace, coarsest, Trace
from ..observe._internal import (
    find_groups,
    Groups,
    Insides,
    insides,
    linear_change,
    pull_at,
    relative_sizes,
    squared_product,
)
from ._movement import compare_kernels, in_groups, learnable, Look, movement, residual_position
from ._stability import difference


# Number of samples on which a kernel is compared with gradients.
CERTIFIED = 4


class Examined(NamedTuple):
    """Measurements of a network at its checkpoints, except those of the optimizer's steps.

    Attributes:
        groups: the groups of parameters.
        history, by_group, by_pair: as in `Diagnosis`.
        pairs: names of pairs of layers, where one reads the output of the other.
        switched: the share of pairs of sample and unit that crossed the unit's kink; None without kinks.
        learnable: whether the loss has a gradient at the start beyond rounding.
        moved: whether the outputs have moved.
        hidden: whether they moved by little more than rounding.
        kernel: what makes the last kernel unusable: "", "0", or "NaN or infinite".
        started: whether the kernel is nonzero at the start.
        unaligned: why the kernel has no alignment with the targets, if it has none.
        dtype: the coarsest dtype in which the network computes products.
    """

    groups: Groups
    history: dict[str, np.ndarray]
    by_group: dict[str, np.ndarray]
    pairs: tuple[str, ...]
    by_pair: dict[str, np.ndarray]
    switched: float | None
    learnable: bool
    moved: bool
    hidden: bool
    kernel: str
    started: bool
    unaligned: str
    dtype: Any


def examine(
    probe: Problem,
    eta: PyTree,
    steps: list[int],
    checkpoints: list[PyTree],
    looks: list[Look],
    trace: Trace,
    products: int,
    say: Callable[[str], None],
) -> Examined:
    """Compares every checkpoint with the first one.

    Arguments:
        probe: the problem at the first checkpoint, on the probe samples.
        eta: the learning rates that weight the kernels.
        steps: steps of the checkpoints.
        checkpoints: parameters at these steps.
        looks: the slope and the kernels at each.
        trace: how kernels are computed.
        products: maximum number of products per largest eigenvalue.
        say: called with a message at every checkpoint.
    """
    dtype = coarsest(probe.of_sample(checkpoints[0], eta)[0], probe.x)
    # Half-precision results are rounded to within half of their eps.
    eps = float(jnp.finfo(dtype).eps) / (1 if dtype == probe.dtype else 2)
    groups = find_groups(checkpoints[0])
    start = in_groups(looks[0].kernels, eta, groups)
    _compare_with_gradients(probe, checkpoints[0], eta, trace, np.sum(np.asarray(start), axis=0))
    pull = now = pull_at(probe, checkpoints[0], eta)
    rows: list[dict[str, float]] = []
    # The first checkpoint is the start: nothing has moved yet.
    last, linear = start, jax.device_put(np.zeros(pull.outputs.shape, pull.outputs.dtype))
    compared = first = compare_kernels(probe, start, start)
    moved = None
    for step, params, look in zip(steps, checkpoints, looks, strict=True):
        say(f"comparing step {step} of {steps[-1]} with the start")
        if rows:
            now, linear = pull_at(probe, params, eta), linear_change(probe, params)
            last = in_groups(look.kernels, eta, groups)
            compared = compare_kernels(probe, last, start)
        moved = movement(probe, pull, now, linear, eps)
        row = {name: float(value) for name, value in moved._asdict().items() if name not in ("moved", "hidden")}
        row |= {
            "step": step,
            "residual_position": residual_position(probe, params, eta, now, products),
            "kernel_change": float(compared.change),
            "kernel_turn": float(compared.turn),
            "kernel_alignment": float(compared.alignment),
            "effective_rank": float(compared.effective_rank),
        }
        if probe.x_test is not None:
            row["test_loss"] = float(test_loss(probe, params))
        rows.append(row)
    assert moved is not None
    history = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    end = checkpoints[-1]
    change = difference(end, checkpoints[0])
    by_group = {
        "update": np.asarray(relative_sizes(change, checkpoints[0], groups)),
        "kernel_change": np.asarray(compared.group_change),
        "kernel_share_start": np.asarray(first.shares),
        "kernel_share": np.asarray(compared.shares),
    }
    before, after = (insides(probe, params) for params in (checkpoints[0], end))
    by_pair = {"alignment_start": _alignments(before), "alignment": _alignments(after)}
    whole = np.sum(np.asarray(last), axis=0)
    why = "NaN or infinite" if not np.all(np.isfinite(whole)) else "" if np.any(whole) else "0"
    return Examined(
        groups,
        history,
        by_group,
        tuple(pair.name for pair in after.pairs),
        by_pair,
        _switched(before, after),
        bool(learnable(probe, pull.outputs, eps)),
        bool(moved.moved),
        bool(moved.hidden),
        why,
        bool(np.any(np.asarray(start))),
        _unaligned(probe, why),
        dtype,
    )


def _alignments(insides: Insides) -> np.ndarray:
    """|W_m W_l|/(|W_m||W_l|) of pairs of layers; NaN for zero weights. In NumPy, as JAX would compile each pair."""
    weights, found = {slot: np.asarray(of, float) for slot, of in insides.weights.items()}, []
    for pair in insides.pairs:
        below, above = (matrix / (np.max(np.abs(matrix)) or 1) for matrix in pair.matrices(weights))
        with np.errstate(invalid="ignore"):
            found.append(np.sqrt(squared_product(below, above)) / (np.linalg.norm(above) * np.linalg.norm(below)))
    return np.array(found)


def _switched(before: Insides, after: Insides) -> float | None:
    """The share of pairs of sample and unit whose activation has switched; NaN if the network has diverged."""
    if before.patterns is None or after.patterns is None:
        return None
    sides = [map(np.asarray, pair) for pair in zip(before.patterns.of_units, after.patterns.of_units, strict=True)]
    changed = [one != other for one, other in sides]
    share = sum(np.count_nonzero(one) for one in changed) / sum(one.size for one in changed)
    return share if after.patterns.known else np.nan


def _unaligned(probe: Problem, kernel: str) -> str:
    """Why the alignment of a kernel with the targets is undefined once both are centered."""
    targets = np.asarray(probe.y)
    if len(targets) == 1:
        return "there is only one sample"
    if np.all(targets == targets[0]):
        return "the targets are the same for all samples"
    return f"the kernel is {kernel or 'the same for all samples'}"


def _compare_with_gradients(probe: Problem, params: PyTree, eta: PyTree, trace: Trace, kernel: np.ndarray) -> None:
    """Warns if a kernel disagrees with gradients on some samples; a trace takes one gradient per output."""
    found = check_trace(*trace.of(*probe.of_sample(params, eta)), probe.x, jax.device_put(kernel), CERTIFIED)
    if float(found.error) > found.bound:  # non-finite values do not implicate the compiler
        warnings.warn(f"diagnose: {found.doubt}", stacklevel=4)


@eqx.filter_jit
def test_loss(problem: Problem, params: PyTree) -> Array:
    """The loss on the test set."""
    assert problem.y_test is not None
    return problem.loss.value(problem.test_outputs(params), problem.y_test)
