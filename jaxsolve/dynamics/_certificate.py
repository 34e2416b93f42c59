"""The certificate of a flow."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import nets
from .._dynamics import Certificate
from .._problem import Problem


def conserved_drift(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """Largest |lambda(t) - lambda(0)| over |its terms| among the network's conserved quantities; NaN if it has none."""
    dtype = problem.x.dtype
    net = problem.net
    if not isinstance(net, nets.AbstractNetwork):
        return jnp.full((), jnp.nan, dtype)
    before, now = (net.conserved(p, problem.eta) for p in (problem.params, params))
    if not now:
        return jnp.full((), jnp.nan, dtype)
    drifts = [
        jnp.linalg.norm(b.value - a.value) / jnp.maximum(a.scale, b.scale) for a, b in zip(before, now, strict=True)
    ]
    return jnp.max(jnp.stack(drifts))


def flow_certificate(
    problem: Problem, params: PyTree, dissipated: Float[Array, ""], step_error: Float[Array, ""]
) -> Certificate:
    """Compares the end of a gradient flow with what must be conserved and with the energy it dissipated on its way."""
    return Certificate(conserved_drift(problem, params), energy_balance(problem, params, dissipated), step_error)


def energy_balance(problem: Problem, params: PyTree, lost: Float[Array, ""]) -> Float[Array, ""]:
    """|L(0) - L(t) - lost| / L(0), `lost` being where the energy of the loss has gone: to heat, or to motion."""
    initial, final = problem.objective(problem.params), problem.objective(params)
    return jnp.abs(initial - final - lost) / initial
