"""The movement of a network between two checkpoints, from which the regime follows."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .. import kernels
from .._core import Problem
from .._numerics import nonzero, norm
from ..kernels._internal import Trace
from ..observe._internal import (
    Groups,
    kernel_size,
    missed_share,
    on_kernel,
    progress_between,
    Pull,
    Slope,
    slope_at,
)
from ._thresholds import NONLINEARITY


# Kernels of up to OUTPUTS outputs are exact; beyond, PROJECTIONS projections. For a transformer's 400 outputs the
# kernel's change was 0.2426 instead of 0.2435, in a 25th of the backward passes.
OUTPUTS, PROJECTIONS = 128, 16


class Movement(NamedTuple):
    """The outputs of one checkpoint compared with the start.

    Attributes:
        loss: training loss on the probe samples.
        nonlinearity: |f_t - f_lin|/|f_t - f_0|, f_lin = f_0 + J_0 (theta_t - theta_0); NaN where `hidden`.
        progress: how much of the training is done.
        moved: whether the outputs have moved.
        hidden: whether the share of rounding in |f_t - f_0| exceeds the limit of the nonlinearity.
    """

    loss: Float[Array, ""]
    nonlinearity: Float[Array, ""]
    progress: Float[Array, ""]
    moved: Bool[Array, ""]
    hidden: Bool[Array, ""]


class Kernels(NamedTuple):
    """Kernels of one checkpoint, summed over the diagonal of the outputs, compared with the start.

    Attributes:
        change: |K - K_0|/|K_0|; where K_0 is 0, inf, or NaN if K is 0, too.
        group_change: the same of every group; NaN for a group without a kernel at the start.
        turn: 1 - <K, K_0>/(|K||K_0|).
        alignment: alignment with the targets, both centered.
        effective_rank: exp of the entropy of the spectrum.
        shares: share of every group in the trace.
    """

    change: Float[Array, ""]
    group_change: Float[Array, " groups"]
    turn: Float[Array, ""]
    alignment: Float[Array, ""]
    effective_rank: Float[Array, ""]
    shares: Float[Array, " groups"]


@eqx.filter_jit
def movement(problem: Problem, start: Pull, now: Pull, linear: Float[Array, "n out"], eps: float) -> Movement:
    """The movement of the outputs, which are rounded to eps, from `start` to `now`; linearized, by `linear`."""
    f, change = now.outputs, now.outputs - start.outputs
    moved, whole = jnp.any(change != 0), f if problem.initial is None else f + problem.initial  # the rounded numbers
    hidden = moved & (eps * norm(whole) > NONLINEARITY.value * norm(change))
    missed = jnp.where(hidden, jnp.nan, missed_share(change, linear))
    return Movement(problem.loss.value(f, problem.y), missed, progress_between(start, now), moved, hidden)


def residual_position(problem: Problem, params: PyTree, eta: PyTree, now: Pull, products: int) -> float:
    """r^T K r/(|r|^2 lambda_1), r = dL/df, for the kernel with rates eta, by at most `products` products with it."""
    on_slope = float(now.pull) ** 2 if problem.state is None else float(on_kernel(problem, params, eta, now.slope))
    return on_slope / (float(kernel_size(problem, params, eta, products)) or 1)


@eqx.filter_jit
def learnable(problem: Problem, f: Float[Array, "n out"], eps: float) -> Bool[Array, ""]:
    """True if the gradient of the loss in the outputs f at the start exceeds the effect of rounding f to eps."""
    # The first-order change of the gradient when the outputs change by their rounding.
    rounding = max(10 * float(jnp.finfo(f.dtype).eps), eps) * jnp.abs(f)
    now, lost = jax.jvp(lambda f: problem.loss.gradient(f, problem.y), (f,), (rounding,))
    return norm(now) > norm(lost)


def projections_for(outputs: int) -> int | None:
    """The number of random projections that represent the outputs; None if all outputs are used."""
    return PROJECTIONS if outputs > OUTPUTS else None


class Look(NamedTuple):
    """The gradient and the kernels of one checkpoint.

    Attributes:
        slope: the loss and its gradient.
        kernels: the contribution of each trainable array to the kernel.
    """

    slope: Slope
    kernels: Float[Array, "leaves n n"]


def look(problem: Problem, params: PyTree, trace: Trace) -> Look:
    """The gradient and the kernels of a checkpoint, with the network's own rates."""
    return Look(slope_at(problem, params), _kernels(problem, params, problem.eta, trace))


def in_groups(kernels: Float[Array, "leaves n n"], eta: PyTree, groups: Groups) -> Float[Array, "groups n n"]:
    """The kernel of every group of parameters; parameters with rate 0 do not count."""
    # In NumPy, as JAX would compile each step.
    moves = np.array([np.any(np.asarray(rate)) for rate in jax.tree.leaves(eta)])[:, None, None]
    found = np.zeros((len(groups.names), *kernels.shape[1:]), kernels.dtype)
    np.add.at(found, np.array(groups.of_leaf), np.where(moves, np.asarray(kernels), np.zeros((), kernels.dtype)))
    return jax.device_put(found)


@eqx.filter_jit
def _kernels(problem: Problem, params: PyTree, eta: PyTree, trace: Trace) -> Float[Array, "leaves n n"]:
    return jnp.stack(trace.by_parameter(*problem.of_sample(params, eta), problem.x))


def whole_kernel(problem: Problem, params: PyTree, eta: PyTree, trace: Trace) -> Float[Array, "n n"]:
    """The kernel of all parameters with rates eta, by the compiled program for the kernels of each."""
    return jax.device_put(np.sum(np.asarray(_kernels(problem, params, eta, trace)), axis=0))


@eqx.filter_jit
def compare_kernels(problem: Problem, groups: Float[Array, "groups n n"], start: Float[Array, "groups n n"]) -> Kernels:
    """Compares the kernels of a checkpoint with those of the start."""
    now, before = jnp.sum(groups, axis=0), jnp.sum(start, axis=0)
    traces = jnp.trace(groups, axis1=1, axis2=2)
    return Kernels(
        jnp.where(jnp.any(before != 0), relative_change(now, before), jnp.where(jnp.any(now != 0), jnp.inf, jnp.nan)),
        jax.vmap(relative_change)(groups, start),
        kernels.distance(now, before),
        kernels.centered_target_alignment(now, problem.target_rows),
        kernels.effective_rank(now),
        traces / nonzero(jnp.sum(traces)),
    )


@eqx.filter_jit
def relative_change(now: Float[Array, "..."], before: Float[Array, "..."]) -> Float[Array, ""]:
    """|K - K_0|/|K_0|; NaN where K_0 is 0."""
    known = jnp.any(before != 0)
    return jnp.where(known, kernels.relative_change(now, jnp.where(known, before, 1)), jnp.nan)
