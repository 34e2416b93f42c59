"""The certificate of a flow."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ... import nets
from ..._core import Certificate, Problem
from ..._numerics import nonzero, norm


def conserved_drift(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """Largest |lambda(t) - lambda(0)| over |its terms| among the network's conserved quantities; NaN if it has none.

    The drift of quantities of frozen layers counts as 0.
    """
    dtype = problem.dtype
    net = problem.net
    # Weight decay takes from what gradient flow would conserve.
    if problem.weight_decay is not None or not isinstance(net, nets.AbstractNetwork):
        return jnp.full((), jnp.nan, dtype)
    before, now = (net.conserved(p, problem.eta) for p in (problem.params, params))
    if not now:
        return jnp.full((), jnp.nan, dtype)
    # An infinite term is legitimate only with a rate of 0; otherwise it must remain visible.
    frozen = jnp.any(jnp.stack([jnp.any(rate == 0) for rate in jax.tree.leaves(problem.eta)]))
    return jnp.max(jnp.stack([_drift(a, b, frozen) for a, b in zip(before, now, strict=True)]))


def _drift(before: nets.Conserved, now: nets.Conserved, frozen: Bool[Array, ""]) -> Float[Array, ""]:
    # For two layers of zeros both the drift and the scale are 0.
    drift = norm(now.value - before.value) / nonzero(jnp.maximum(before.scale, now.scale))
    # The term of a frozen layer (eta = 0) is infinite and carries no information about the others.
    return jnp.where(frozen & ~jnp.isfinite(before.scale), 0, drift)


def flow_certificate(
    problem: Problem, params: PyTree, dissipated: Float[Array, ""], step_error: Float[Array, ""], rtol: Any
) -> Certificate:
    """Checks the end of a gradient flow against its conserved quantities and the energy dissipated along the way."""
    balance = energy_balance(problem, params, dissipated)
    return Certificate(conserved_drift(problem, params), balance, step_error, jnp.full_like(balance, rtol))


def step_certificate(step_error: Float[Array, ""], rtol: Any) -> Certificate:
    """The certificate of a flow without conserved quantities or energy, based on its step errors alone."""
    nothing = jnp.full_like(step_error, jnp.nan)
    return Certificate(nothing, nothing, step_error, jnp.full_like(step_error, rtol))


def energy_balance(problem: Problem, params: PyTree, lost: Float[Array, ""]) -> Float[Array, ""]:
    """|L(0) - L(t) - lost| / |L(0)|, where `lost` is the energy dissipated plus the energy of motion."""
    initial, final = problem.objective(problem.params), problem.objective(params)
    balance = jnp.abs((initial - final - lost) / nonzero(initial))
    return jnp.where(initial == 0, jnp.nan, balance)  # a start that fits has no scale to compare with
