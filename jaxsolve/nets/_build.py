"""How a network of any shape gets its first weights, biases and hyperparameters."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from .._checks import describe
from ._activations import Activation
from ._init import AbstractInit, Shapes, Vectors, Weights
from ._scaling import Scaling, ScalingRule


class Parts(NamedTuple):
    """The fields of a network, ready to be set."""

    weights: Weights
    biases: Vectors
    scaling: Scaling


def build(
    weights: Sequence[tuple[int, ...]],
    activation: Activation,
    *,
    bias: bool,
    scaling: Scaling | ScalingRule,
    init: AbstractInit,
    key: Key[Array, ""],
    dtype: Any,
    chain: bool = True,
) -> Parts:
    """Checks the arguments and draws the start of a network with weights of these shapes, counted from the input.

    A convolution of shape (out, in, height, width) has fan_in = in height width and fan_out = out height width.
    `chain` as in `Shapes`.
    """
    if not isinstance(bias, bool):
        raise TypeError(f"bias must be True or False, got {describe(bias)}")
    if not isinstance(init, AbstractInit):
        raise TypeError(f"init must be an initialisation such as nets.Gaussian(), got {describe(init)}")
    if not isinstance(scaling, Scaling | ScalingRule):
        raise TypeError(
            "scaling must be a Scaling or one of the rules Scaling.ntk(), mean_field(), standard(), xavier(), "
            f"kaiming(), mup(), lazy(alpha), from_exponents(...); got {describe(scaling)}"
        )
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    windows = tuple(math.prod(shape[2:]) for shape in weights)
    fans = tuple((shape[1] * pixels, shape[0] * pixels) for shape, pixels in zip(weights, windows, strict=True))
    made = scaling(fans, activation.gain, windows=windows) if isinstance(scaling, ScalingRule) else scaling
    if len(made) != len(fans):
        raise ValueError(f"this network has {len(fans)} weight matrices, the Scaling is for {len(made)}")
    made = jax.tree.map(lambda leaf: leaf.astype(dtype), made)
    start = init(Shapes(tuple(weights), bias, dtype, chain), made, key)
    return Parts(start.weights, start.biases, made)
