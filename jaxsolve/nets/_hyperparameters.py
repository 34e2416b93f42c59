"""Reading the hyperparameters of a network."""

import enum
from typing import Any

import jax
from jaxtyping import Array, Float

from .._checks import real_array, require_finite, require_not_negative


class Optimizers(enum.Enum):
    """Which optimizers a scaling is for: those under which it stays stable as the width grows.

    Among the rules only `js.nets.Scaling.mup` depends on it; `js.Descent` refuses an optimizer of the wrong kind, and
    flows refuse a scaling for Adam.

    Example:
        >>> js.nets.Scaling.mup(adam=True).optimizers
        <Optimizers.ADAM: 'Adam'>
    """

    ANY = "any optimizer"
    GRADIENT = "gradient flow and SGD"
    ADAM = "Adam"


def floats(value: Any, name: str) -> Float[Array, "..."]:
    """A number or an array as floats, of the dtype given if it is one; raises TypeError for anything else."""
    array = real_array(value, name)
    return jax.lax.convert_element_type(array, array.dtype)  # never weakly typed: a weak leaf would recompile


def check_hyperparameters(sigma, eta, gamma, bias_sigma, bias_eta) -> None:
    """Raises ValueError if a concrete value is not finite, or one other than gamma is negative."""
    require_not_negative(sigma, "sigma")
    require_not_negative(eta, "eta")
    require_not_negative(bias_sigma, "bias_sigma")
    require_not_negative(bias_eta, "bias_eta")
    require_finite(gamma, "gamma")
