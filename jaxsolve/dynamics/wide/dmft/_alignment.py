"""The alignment of the two layers of a network of any width."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...._numerics import safe_sqrt, scaled


def two_layer_alignment(
    w: Float[Array, "neurons i"],
    u: Float[Array, "a neurons"],
    x: Float[Array, "n i"] | None,
    *,
    outside: Float[Array, ""] | float = 0.0,
    longest: Int[Array, ""] | None = None,
) -> Float[Array, ""]:
    """|u w|/(|u||w|), or the signed zeta on a line.

    For one output and inputs along a line with direction n, zeta = u.v/(|u||v|), v = w n (Xu & Liu Ziyin, eq. 20). At
    infinite width this is an average over neurons. Between hidden layers, whose matrices have as many dimensions as
    neurons, the same quantity falls like 1/sqrt(width).

    Arguments:
        w: weights of the first layer.
        u: weights of the read-out.
        x: inputs, in the coordinates of w; None to skip the search for a line.
        outside: the part of |w|^2 in additional coordinates.
        longest: index of the input that n is along; None for the longest of x.
    """
    (w, unit), (u, _) = scaled(w), scaled(u)
    outside = outside / unit / unit
    size = jnp.linalg.norm(u)
    # At the start of a limit u w is 0, where a plain norm has no derivative.
    unsigned = safe_sqrt(jnp.sum((u @ w) ** 2)) / (size * jnp.sqrt(jnp.sum(w**2) + outside))
    if x is None or u.shape[0] != 1:
        return unsigned
    along = x[jnp.argmax(jnp.sum(x**2, axis=1)) if longest is None else longest]
    n = along / jnp.linalg.norm(along)
    off = jnp.linalg.norm(x - (x @ n)[:, None] * n[None, :])
    on_a_line = off <= 100 * float(np.finfo(x.dtype).eps) * jnp.linalg.norm(x)
    v = w @ n
    return jnp.where(on_a_line, jnp.sum(u[0] * v) / (size * jnp.linalg.norm(v)), unsigned)
