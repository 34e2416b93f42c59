"""The modes in which a linear network learns: directions common to its target and its start."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._numerics import nonzero


class Modes(NamedTuple):
    """Orthonormal directions of inputs and outputs, a pair per mode."""

    into: Float[Array, "in modes"]
    out: Float[Array, "out modes"]


def shared_modes(
    target: Float[Array, "out in"],
    start: Float[Array, "out in"],
    outer: Float[Array, "out out"],
    inner: Float[Array, "in in"],
) -> Modes:
    """The singular vectors common to target and start, if there are any: then all four matrices are diagonal in them.

    They are the singular vectors of a mixture of all four, so that each matrix settles what the others leave open
    (equal or zero singular values). Derivatives take them as constants: a change of scale does not move them, and a
    change that mixes modes has no closed form.

    Arguments:
        target, start: of the network's matrix.
        outer, inner: Gram matrices of the last and of the first layer.
    """
    target, start, outer, inner = jax.lax.stop_gradient((target, start, outer, inner))
    golden = 0.6180339887498949  # no simple ratio, so that different singular values do not add up to equal ones
    unit = lambda m: m / nonzero(jnp.max(jnp.abs(m)))
    mixture = unit(target) + golden * unit(start)
    mixture = mixture + golden**2 * unit(outer) @ mixture + golden**3 * mixture @ unit(inner)
    out, _, into = jnp.linalg.svd(mixture, full_matrices=False)
    return Modes(into.T, out)
