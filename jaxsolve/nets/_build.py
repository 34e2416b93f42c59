"""The initial weights, biases and hyperparameters of a network of any shape."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
from jaxtyping import Array, Key

from .._checks import attempt, concrete, describe, require_flag, require_key
from .._numerics import require_room
from .._programs import equations, inside
from ._activations import Activation
from ._init import AbstractInit, Shapes, start_from, Vectors, Weights
from ._padded import fan, keep, Kept, within
from ._scaling import Scaling, ScalingRule


# An activation made only of these operations is elementwise, and need not be tried out.
ELEMENTWISE = frozenset(
    "abs add and asin asinh acos acosh atan atan2 atanh broadcast_in_dim cbrt ceil clamp convert_element_type copy cos "
    "cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min "
    "mul ne neg nextafter not or pow reduce_precision rem round rsqrt select_n sign sin sinh sqrt square stop_gradient "
    "sub tan tanh xor".split()
)


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
    kept: Sequence[Kept] | None = None,
    on_data: Sequence[int] = (0,),
) -> Parts:
    """Checks the arguments and draws the initial arrays of a network with these weight shapes, counted from the input.

    A convolution of shape (out, in, height, width) has fan_in = in height width and fan_out = out height width.
    `chain` is explained in `Shapes`. For padded arrays, `kept` gives the part of each that belongs to the network.
    `on_data` lists the weights that act on the data.
    """
    bias = require_flag(bias, "bias")
    if not isinstance(init, AbstractInit):
        raise TypeError(f"init must be an initialization such as nets.Gaussian(), got {describe(init)}")
    if not isinstance(scaling, Scaling | ScalingRule):
        raise TypeError(
            "scaling must be a Scaling or one of the rules Scaling.ntk(), mean_field(), standard(), xavier(), "
            f"kaiming(), mup(), lazy(alpha), from_exponents(...); got {describe(scaling)}"
        )
    require_key(key)
    dtype = jnp.dtype(jnp.result_type(float)) if dtype is None else _floating(dtype)
    _check_elementwise(activation, dtype)
    advice = f"make it smaller: it has weights of the shape {max(weights, key=math.prod, default=())}"
    require_room(sum(map(math.prod, weights)) * dtype.itemsize, "this network", key, advice=advice)
    windows = tuple(math.prod(shape[2:]) for shape in weights)
    kept = weights if kept is None else kept
    fans = tuple((fan(size[1]) * pixels, fan(size[0]) * pixels) for size, pixels in zip(kept, windows, strict=True))
    made = (
        scaling(fans, activation.gain, windows=windows, on_data=on_data)
        if isinstance(scaling, ScalingRule)
        else scaling
    )
    if len(made) != len(fans):
        raise ValueError(f"this network has {len(fans)} weight matrices, the Scaling is for {len(made)}")
    made = jax.tree.map(lambda leaf: leaf.astype(dtype), made)
    shapes = Shapes(tuple(weights), bias, dtype, chain, tuple(tuple(size) for size in kept))
    start = start_from(init, shapes, made, key)
    if not shapes.padded:
        return Parts(start.weights, start.biases, made)
    fits = jnp.all(jnp.stack([within(size, shape) for size, shape in zip(kept, weights, strict=True)]))
    # Traced sizes cannot raise: an output scale of NaN marks the network as invalid.
    made = eqx.tree_at(lambda scaling: scaling.gamma, made, jnp.where(fits, made.gamma, jnp.nan))
    own = tuple(keep(w, size) for w, size in zip(start.weights, kept, strict=True))
    biases = tuple(keep(b, size[:1]) for b, size in zip(start.biases, kept, strict=False))  # empty without biases
    return Parts(own, biases, made)


def _floating(dtype: Any) -> jnp.dtype:
    try:
        found = jnp.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype must be a dtype such as jnp.float32, or None, got {describe(dtype)}") from error
    if not jnp.issubdtype(found, jnp.floating):
        raise ValueError(f"dtype must be one of real numbers such as jnp.float32, or None, got {found}")
    return found


def _check_elementwise(activation: Activation, dtype: jnp.dtype) -> None:
    given = jax.ShapeDtypeStruct((3,), dtype)
    made, error = attempt(jax.make_jaxpr(activation, return_shape=True), given)
    if error is not None:
        raise TypeError(f"the activation {activation!r} cannot take an array of shape (3,): {error}") from error
    program, returned = made
    if getattr(returned, "shape", None) != given.shape:
        raise ValueError(
            f"an activation must return an array of the shape it is given; of shape (3,) {activation!r} returned "
            f"{describe(returned)}"
        )
    # A traced constant has no value yet, so the activation cannot be tried out.
    if _is_elementwise(program) or any(concrete(value) is None for value in program.consts):
        return
    each = lambda z: jnp.stack([activation(z[i : i + 1])[0] for i in range(3)])
    z = np.array([-1.0, 0.3, 2.0], dtype)
    # Compiled ahead of time so that it works inside any transformation, as for the gain.
    together, alone = (np.asarray(jax.jit(way).lower(z).compile()(z), np.float64) for way in (activation, each))
    if not np.allclose(together, alone, rtol=1e-2, equal_nan=True):
        raise ValueError(
            f"an activation must act on every number separately, but {activation!r} of three numbers is {together}, "
            f"and of each alone {alone}; normalizations and softmax are layers, of a network of Equinox"
        )


def _is_elementwise(program: ClosedJaxpr) -> bool:
    """True if a program holds only operations that are known to be elementwise."""
    single = (eqn for eqn in equations(program) if not any(inside(eqn)))  # others are judged by their inner programs
    return all(eqn.primitive.name in ELEMENTWISE for eqn in single)
