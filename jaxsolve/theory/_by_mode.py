"""Judging a start mode by mode: what is small beside the largest mode may be all that a weak mode has."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._dynamics import Assumption
from .._safe import nonzero


def faint(dtype: jnp.dtype) -> float:
    """The share of the largest mode below which a mode counts as absent: rounding then is much of what it has."""
    return float(jnp.finfo(dtype).eps) ** 0.5


def own_scale(sizes: Float[Array, " modes"]) -> Float[Array, " modes"]:
    """What to measure each mode by: its own size, or the largest one if it is absent."""
    largest = jnp.max(sizes)
    return nonzero(jnp.where(sizes > faint(sizes.dtype) * largest, sizes, largest))


def worst(gaps: Float[Array, "a b"], one: Float[Array, " a"], other: Float[Array, " b"]) -> Float[Array, ""]:
    """The largest of entries measured by the sizes of both modes that they couple."""
    return jnp.max(jnp.abs(gaps) / (nonzero(one)[:, None] * nonzero(other)[None, :]), initial=0.0)


def no_saddle(growing: Float[Array, " modes"], needed: Bool[Array, " modes"], size: Float[Array, ""]) -> Assumption:
    """No mode that the target asks for is left at a saddle or falls towards one, where rounding decides what follows.

    Arguments:
        growing: the part of the start that grows, per mode, in the units of weights.
        needed: which of the modes are asked for.
        size: the largest weight, which sets the rounding.
    """
    share = jnp.where(size > 0, growing / nonzero(size), 1.0)
    eps = float(jnp.finfo(share.dtype).eps)
    rounded = jnp.minimum(eps / jnp.maximum(share, eps), 1.0)
    return Assumption(
        "no mode of the target starts at a saddle or falls towards one",
        jnp.max(jnp.where(needed, rounded, 0.0), initial=0.0),
        eps**0.5,
        "rounding of the weights, relative to the part of them that grows",
    )
