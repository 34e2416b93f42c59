"""Stability of the optimizer's own steps: the critical rate along its update, and its preconditioned sharpness."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._core import Problem
from .._numerics import nonzero
from ._lanczos import largest_eigenvalue


TRIALS = 8


def moves(update: PyTree) -> bool:
    """True if an update is not 0."""
    return any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(update))


def is_finite(tree: PyTree) -> bool:
    """True if no entry of a pytree of arrays is NaN or infinite."""
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(tree))


@eqx.filter_jit
def gradient(problem: Problem, params: PyTree) -> PyTree:
    """The gradient of the training loss."""
    return jax.grad(problem.objective)(params)


@eqx.filter_jit
def next_update(problem: Problem, optimizer: Any, params: PyTree, state: Any) -> PyTree:
    """The optimizer's next step on the problem's samples, as it is added to the parameters."""
    slope = jax.grad(problem.objective)(params)
    updates = optimizer.update(slope, state, params)[0]
    return jax.tree.map(lambda rate, u, p: rate * u.astype(p.dtype), problem.eta, updates, params)


@eqx.filter_jit
def critical_rate(problem: Problem, params: PyTree, update: PyTree) -> Float[Array, ""]:
    """The multiple s of an update with L(theta + s u) = L(theta), by 8 forward passes and a gradient.

    The first trial is s = 1; s then grows or falls by 4, 16, 256, ... until the loss turns, and the bracket is halved
    in its logarithm. For a quadratic loss and u = -eta g the multiple is 2 |g|^2/(eta g^T H g), at least 2/(eta
    lambda_max). It is inf if not even the largest multiple tried raises the loss, 0 if the smallest one does, or if the
    update goes uphill from where it is, which rounding would hide of small multiples. It is NaN where the slope is, and
    where loss and slope are 0, as at a minimum or where both are too small for the dtype.
    """
    at = lambda scale: problem.objective(jax.tree.map(lambda p, u: p + scale * u, params, update))
    one = jnp.ones((), problem.x.dtype)
    start, upward = jax.value_and_grad(problem.objective)(params)  # in reverse mode, which all losses have
    slope = sum(jax.tree.leaves(jax.tree.map(lambda g, u: jnp.sum(g * u), upward, update)), 0 * one)

    def trial(k, carry):
        low, high = carry  # `low` lowers the loss, `high` raises it
        # 4, 16, 256, ... from k = 1 on; the first trial is 1.
        factor = 4.0 ** (2.0 ** (jnp.asarray(k, one.dtype) - 1))
        # The geometric mean, root by root, as the product could overflow; used only where both sides are known.
        between = jnp.sqrt(nonzero(low)) * jnp.sqrt(jnp.where(jnp.isinf(high), 1, high))
        outside = jnp.where(low > 0, low * factor, jnp.where(jnp.isinf(high), one, high / factor))
        scale = jnp.where((low > 0) & ~jnp.isinf(high), between, outside)
        lowers = at(scale) <= start  # NaN does not
        return jnp.where(lowers, scale, low), jnp.where(lowers, high, scale)

    low, high = jax.lax.fori_loop(0, TRIALS, trial, (0 * one, jnp.inf * one))
    both = (low > 0) & ~jnp.isinf(high)
    middle = jnp.sqrt(nonzero(low)) * jnp.sqrt(jnp.where(jnp.isinf(high), 1, high))
    found = jnp.where(slope > 0, 0, jnp.where(both, middle, jnp.where(low > 0, jnp.inf, 0)))
    return jnp.where(jnp.isnan(slope) | ((start == 0) & (slope == 0)), jnp.nan, found)


@eqx.filter_jit
def sharpness_ratio(problem: Problem, params: PyTree, rates: PyTree) -> Float[Array, ""]:
    """lambda_max(sqrt(r) H sqrt(r))/2 with a rate r for every single parameter: above 1 the steps are unstable."""
    slope = jax.grad(problem.objective)

    def product(v: PyTree) -> PyTree:
        # sqrt(r) H sqrt(r) has the eigenvalues of r H, and is symmetric, as Lanczos needs it.
        weigh = lambda tree: jax.tree.map(lambda rate, leaf: jnp.sqrt(rate) * leaf, rates, tree)
        return weigh(jax.jvp(slope, (params,), (weigh(v),))[1])

    return largest_eigenvalue(product, params) / 2
