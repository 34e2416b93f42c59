"""The movement of a network between two checkpoints, and what it says of the regime."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .. import kernels
from .._core import Problem
from .._numerics import nonzero, norm
from ..kernels._internal import Trace
from ..observe._internal import (
    find_groups,
    Groups,
    kernel_size,
    linear_change,
    missed_share,
    on_kernel,
    outputs_at,
    seen_size,
)
from ._thresholds import ENDED, NONLINEARITY


# Kernels of so many outputs are exact; of more, so many projections: of a transformer's 400 outputs the kernel's change
# was 0.2426 for 0.2435, in a 25th of the backward passes.
OUTPUTS, PROJECTIONS = 128, 16


class Movement(NamedTuple):
    """Numbers of one checkpoint against the start.

    Attributes:
        loss: training loss on the probe samples.
        nonlinearity: |f_t - f_lin|/|f_t - f_0|, f_lin = f_0 + J_0 (theta_t - theta_0); NaN where `hidden`.
        progress: how much of the training is done.
        residual_position: r^T K r/(|r|^2 lambda_1), r = dL/df.
        moved: whether the outputs have.
        hidden: whether rounding is more of |f_t - f_0| than the limit of the nonlinearity.
    """

    loss: Float[Array, ""]
    nonlinearity: Float[Array, ""]
    progress: Float[Array, ""]
    residual_position: Float[Array, ""]
    moved: Bool[Array, ""]
    hidden: Bool[Array, ""]


class Kernels(NamedTuple):
    """Kernels of one checkpoint, summed over equal outputs.

    Attributes:
        change: |K - K_0|/|K_0|; where K_0 is 0, inf, or NaN if K is 0, too.
        group_change: the same of every group; NaN for a group without a kernel at the start.
        turn: 1 - <K, K_0>/(|K||K_0|).
        alignment: with the targets, both centered.
        effective_rank: exp of the entropy of the spectrum.
        shares: of every group in the trace.
    """

    change: Float[Array, ""]
    group_change: Float[Array, " groups"]
    turn: Float[Array, ""]
    alignment: Float[Array, ""]
    effective_rank: Float[Array, ""]
    shares: Float[Array, " groups"]


class Pull(NamedTuple):
    """The pull of the loss on a network.

    Attributes:
        outputs: f.
        slope: dL/df over its norm.
        size: that norm.
        seen: |sqrt(eta) J^T slope|; times the size, the square root of the rate at which gradient flow lowers the loss.
    """

    outputs: Float[Array, "n out"]
    slope: Float[Array, "n out"]
    size: Float[Array, ""]
    seen: Float[Array, ""]


def pull_at(problem: Problem, params: PyTree, eta: PyTree, f: Float[Array, "n out"] | None = None) -> Pull:
    """The pull of the loss on parameters where the outputs are f, those of these parameters if None."""
    f = outputs_at(problem, params) if f is None else f
    slope, size = _slope(problem, f)
    return Pull(f, slope, size, seen_size(problem, params, eta, slope))


@eqx.filter_jit
def _slope(problem: Problem, f: Float[Array, "n out"]) -> tuple[Float[Array, "n out"], Float[Array, ""]]:
    slope = problem.loss.gradient(f, problem.y)
    size = norm(slope)
    # It is sent back at norm 1 and its size multiplied in afterwards, so that small products do not vanish.
    return slope / nonzero(size), size


def movement(problem: Problem, start: Pull, params: PyTree, eta: PyTree, eps: float, products: int) -> Movement:
    """The movement of the outputs, by one jvp, one vjp and the largest eigenvalue of the kernel with rates eta.

    The network rounds to eps; the eigenvalue is by so many products at most.
    """
    now = pull_at(problem, params, eta)
    linear, largest = linear_change(problem, params), kernel_size(problem, params, eta, products)
    on_slope = now.seen**2 if problem.state is None else on_kernel(problem, params, eta, now.slope)
    return _movement(problem, start, now, linear, on_slope, largest, eps)


@eqx.filter_jit
def _movement(
    problem: Problem,
    start: Pull,
    now: Pull,
    linear: Float[Array, "n out"],
    on_slope: Float[Array, ""],
    largest: Float[Array, ""],
    eps: float,
) -> Movement:
    f, change = now.outputs, now.outputs - start.outputs
    moved, whole = jnp.any(change != 0), f if problem.initial is None else f + problem.initial  # what is rounded
    hidden = moved & (eps * norm(whole) > NONLINEARITY.value * norm(change))
    missed = jnp.where(hidden, jnp.nan, missed_share(change, linear))
    position = on_slope / nonzero(largest)
    return Movement(problem.loss.value(f, problem.y), missed, progress(start, now), position, moved, hidden)


@eqx.filter_jit
def learnable(problem: Problem, f: Float[Array, "n out"], eps: float) -> Bool[Array, ""]:
    """True if the loss has a gradient in the outputs at the start, f, that is more than their rounding to eps."""
    # What a change of the outputs by their rounding does to the gradient, to first order.
    rounding = max(10 * float(jnp.finfo(f.dtype).eps), eps) * jnp.abs(f)
    now, lost = jax.jvp(lambda f: problem.loss.gradient(f, problem.y), (f,), (rounding,))
    return norm(now) > norm(lost)


@eqx.filter_jit
def progress(start: Pull, now: Pull) -> Float[Array, ""]:
    """The share of a training that is done: how much of the loss's gradient in the outputs is gone since the start.

    1 - |dL/df_t|/|dL/df_0|, and 0 if there was none. But 1 where parameters no longer see what is left of it, as of
    noise in the targets that the network cannot fit: then training has come to its end. Those of rate 0 do not count.
    """
    seen_before, seen = start.size * start.seen, now.size * now.seen
    done = (seen_before > 0) & (seen <= ENDED * seen_before) & (now.size <= start.size)
    return jnp.where(done, 1.0, jnp.where(start.size > 0, 1 - now.size / nonzero(start.size), 0.0))


def projections_for(outputs: int) -> int | None:
    """How many random projections of so many outputs stand for them; None if all are taken."""
    return PROJECTIONS if outputs > OUTPUTS else None


@eqx.filter_jit
def group_kernels(
    problem: Problem, params: PyTree, eta: PyTree, groups: Groups, trace: Trace
) -> Float[Array, "groups n n"]:
    """The kernel of every group of parameters: what they add to that of all."""
    parts = trace.by_parameter(*problem.of_sample(params, eta), problem.x)
    of_group = lambda index: [part for part, of in zip(parts, groups.of_leaf, strict=True) if of == index]
    return jnp.stack([sum(rest, start=first) for first, *rest in map(of_group, range(len(groups.names)))])


def whole_kernel(problem: Problem, params: PyTree, eta: PyTree, trace: Trace) -> Float[Array, "n n"]:
    """The kernel of all parameters with rates eta, by the program that makes those of groups."""
    return jnp.sum(group_kernels(problem, params, eta, find_groups(params), trace), axis=0)


@eqx.filter_jit
def compare_kernels(problem: Problem, groups: Float[Array, "groups n n"], start: Float[Array, "groups n n"]) -> Kernels:
    """The kernels of a checkpoint against those of the start."""
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
