"""How two kernels differ, and how a kernel relates to a target."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def distance(one: Float[Array, "..."], two: Float[Array, "..."]) -> Float[Array, ""]:
    """1 - <K, K'>/(|K||K'|) in [0, 2]: 0 for kernels equal up to scale (Kunin et al., kernel distance).

    Computed as half the squared difference of the normalised kernels, which does not cancel when they are close.
    """
    return jnp.sum((one / jnp.linalg.norm(one.ravel()) - two / jnp.linalg.norm(two.ravel())) ** 2) / 2


def relative_change(now: Float[Array, "..."], before: Float[Array, "..."]) -> Float[Array, ""]:
    """|K - K_0|/|K_0|: what tells the kernel regime from feature learning."""
    return jnp.linalg.norm((now - before).ravel()) / jnp.linalg.norm(before.ravel())


def target_alignment(kernel: Float[Array, "n out n out"], y: Float[Array, "n out"]) -> Float[Array, ""]:
    """y^T K y/(|K||y|^2): the share of the kernel that lies on the target (Atanasov et al., section 2)."""
    flat = y.ravel()
    return flat @ kernel.reshape(flat.size, flat.size) @ flat / (jnp.linalg.norm(kernel.ravel()) * jnp.sum(flat**2))
