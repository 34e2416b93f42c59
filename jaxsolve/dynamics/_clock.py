"""The clock: every conversion between steps and gradient-flow time.

Time t is gradient-flow time: theta_l' = -eta_l dL/dtheta_l with L an average over samples.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def nearest_step(
    t: Float[Array, "..."], per_step: Float[Array, ""], last: int
) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The step nearest to time t, and when it ends; beyond the last step `last + 1`, and t itself."""
    reachable = t < per_step * (last + 1)  # the count of what is not may exceed all integers
    step = jnp.where(reachable, jnp.round(jnp.where(reachable, t, 0) / per_step).astype(int), last + 1)
    return step, jnp.where(step > last, t, time_at(step, per_step))


def time_at(step: Int[Array, "..."], per_step: Float[Array, ""]) -> Float[Array, "..."]:
    """The time of a step."""
    return step.astype(per_step.dtype) * per_step


def later(
    t: Float[Array, ""], lost: Float[Array, ""], passed: Float[Array, "*steps"]
) -> tuple[Float[Array, "*steps"], Float[Array, "*steps"]]:
    """t + passed, and what that loses by rounding, given what t has lost: a compensated sum (Kahan).

    A million rates, added up in float32, would round the same way again and again.
    """
    passed = passed - lost
    end = t + passed
    return end, (end - t) - passed
