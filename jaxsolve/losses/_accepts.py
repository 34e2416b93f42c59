"""A check that targets suit a loss, for traced targets, where nothing can raise."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from ._base import AbstractLoss, Unflattened
from ._cross_entropy import CrossEntropy
from ._hinge import Hinge, QuadraticHinge, SoftHinge
from ._logistic import Logistic


# Rows of probabilities sum to 1 up to rounding in single precision.
ROUNDING = 1e-4


def accepts(loss: AbstractLoss, y: Shaped[Array, "n target"]) -> Bool[Array, ""]:
    """True if a loss is for targets of these values: outside of traces `loss.targets` raises for others.

    Signs for hinge and logistic losses, rows of probabilities for cross entropy (a label out of range has become a row
    of zeros), anything for other losses. Nor is a soft hinge of beta <= 0 a loss.
    """
    if isinstance(loss, Unflattened):
        labels = isinstance(loss.loss, CrossEntropy) and jnp.issubdtype(y.dtype, jnp.integer)
        return jnp.all(y < loss.out_shape[-1]) if labels else jnp.array(True)
    if isinstance(loss, CrossEntropy):
        return jnp.all(y >= 0) & jnp.all(jnp.abs(jnp.sum(y, axis=1) - 1) < ROUNDING)
    if isinstance(loss, Hinge | QuadraticHinge | SoftHinge | Logistic):
        signs = jnp.all(jnp.abs(y) == 1)
        return signs & (loss.beta > 0) if isinstance(loss, SoftHinge) else signs
    return jnp.array(True)
