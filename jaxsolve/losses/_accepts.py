"""A check that targets suit a loss, for traced targets, which cannot raise."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from ._base import AbstractLoss, Unflattened
from ._cross_entropy import CrossEntropy
from ._hinge import Hinge, QuadraticHinge, SoftHinge
from ._logistic import Logistic


# Rows of probabilities may miss a sum of 1 by rounding in single precision.
ROUNDING = 1e-4


def accepts(loss: AbstractLoss, y: Shaped[Array, "n target"]) -> Bool[Array, ""]:
    """True if a loss accepts targets of these values; for concrete ones, `loss.targets` has already raised.

    Hinge and logistic losses need signs, and cross entropy needs rows of probabilities (a label out of range has become
    a row of zeros). Other losses accept anything. A soft hinge with beta <= 0 accepts nothing.
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
