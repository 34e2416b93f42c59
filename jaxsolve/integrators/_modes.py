"""The modes of a kernel that are too fast for an explicit method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


# Up to this many outputs all modes are computed at every step.
DENSE = 500
# With more outputs, the number of modes followed from step to step.
FOLLOWED = 160
# Step size times rate up to which a mode may be left to the explicit part.
SLOW = 1.0
# Step size times the sum of all rates up to which nothing is stiff.
NOT_STIFF = 0.1


class StiffModes(NamedTuple):
    """The approximate modes that the next step starts from; empty if every step computes all modes.

    Attributes:
        vectors: orthonormal columns, the fastest modes last.
        slowest: the slowest of their rates, which the other modes barely exceed; inf before the first step.
    """

    vectors: Float[Array, "outputs followed"]
    slowest: Float[Array, ""]


def no_modes(size: int, dtype: jnp.dtype) -> StiffModes:
    """The modes before the first step."""
    return StiffModes(jnp.zeros((size, FOLLOWED if size > DENSE else 0), dtype), jnp.array(jnp.inf, dtype))


def modes(
    kernel: Float[Array, "outputs outputs"], h: Float[Array, ""], known: StiffModes
) -> tuple[Float[Array, "outputs outputs"], Float[Array, " outputs"], StiffModes]:
    """Orthonormal columns (zeros for modes that are left out), their rates, and the modes the next step starts from.

    With many outputs only the fastest modes are followed, by one subspace iteration per step, until a step is so long
    that slower ones are stiff as well. Any orthonormal columns work: an exponential method keeps its order.
    """
    if not known.vectors.shape[1]:
        # The trace is an upper bound of all rates and needs no factorization.
        stiff = h * jnp.trace(kernel) > NOT_STIFF
        vectors, values = jax.lax.cond(stiff, _all, _none, kernel)
        return vectors, values, known

    def everything() -> tuple[Array, Array, StiffModes]:
        vectors, values = _all(kernel)
        return vectors, values, StiffModes(vectors[:, -FOLLOWED:], values[-FOLLOWED])

    def follow() -> tuple[Array, Array, StiffModes]:
        # One product with the kernel turns the columns toward the fastest modes; Rayleigh-Ritz then finds the best
        # vectors in their span.
        basis = jnp.linalg.qr(kernel @ known.vectors)[0]
        values, rotation = jnp.linalg.eigh(basis.T @ (kernel @ basis))
        vectors, values = basis @ rotation, jnp.maximum(values, 0)
        # Both branches return arrays of the same shape: a mode that is left out is a column of zeros with rate 0.
        left = kernel.shape[0] - FOLLOWED
        return jnp.pad(vectors, ((0, 0), (left, 0))), jnp.pad(values, (left, 0)), StiffModes(vectors, values[0])

    # Other modes are barely faster than the slowest followed one. Its rate is inf at first, so a run begins with all
    # modes.
    return jax.lax.cond(h * known.slowest > SLOW, everything, follow)


def _all(kernel: Float[Array, "outputs outputs"]) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(kernel)
    return vectors, jnp.maximum(values, 0)  # the kernel is a Gram matrix, negative only by rounding


def _none(kernel: Float[Array, "outputs outputs"]) -> tuple[Array, Array]:
    return jnp.zeros_like(kernel), jnp.zeros_like(kernel[0])
