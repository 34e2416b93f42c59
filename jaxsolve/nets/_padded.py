"""Widths padded to one size: networks of many widths in arrays of one shape."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._checks import concrete, describe, require_size


class Padded(eqx.Module):
    """A width of `units` in arrays of `size`: networks that differ only in width then share one compiled program.

    `MLP`, `TwoLayerLinear` and `DeepLinear` accept it as their width. They are then the network with `units` neurons
    per hidden layer: they have its scaling and, with `Gaussian`, `Sphere`, `Mirrored` and `NearParallel`, exactly its
    initial weights. (This holds for JAX's default random number generator; with others the distribution is the same.)
    The rest of each array is exactly zero, and stays so under every dynamics that moves a weight by its own gradient.

    In arithmetic it acts as its number of units, as a float: `1 / width`, `width**0.5`, `jnp.sqrt(width)`. In sweeps,
    `js.sweeps.padded` makes it from a list of widths.

    Arguments:
        units: the number of neurons; may be traced.
        size: the number of neurons that the arrays have room for.

    Example:
        >>> width = js.nets.Padded(3, size=8)
        >>> net = js.nets.MLP(
        ...     in_size=2, out_size=1, width_size=width, depth=1, scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> net.weights[0].shape, int((net.weights[0] != 0).sum())
        ((8, 2), 6)

    Raises:
        TypeError: units or size is not an integer.
        ValueError: size is not positive, or units is not in 1 to size. (Traced units cannot raise: the network is then
            invalid, and so is its lane of a sweep.)
    """

    units: Int[Array, ""]
    size: int = eqx.field(static=True)  # a shape

    __array_ufunc__ = None  # NumPy leaves arithmetic to the operators below

    def __init__(self, units: Any, size: int):
        self.size = require_size(size, "size")
        value = units if hasattr(units, "dtype") else np.asarray(units)
        if value.shape or not jnp.issubdtype(value.dtype, jnp.integer):
            raise TypeError(f"units must be an integer, got {describe(units)}")
        known = concrete(value)
        if known is not None and not 1 <= known <= self.size:
            raise ValueError(f"units must be one of 1 to size = {self.size}, got {known}")
        self.units = jax.lax.convert_element_type(value, jnp.result_type(int))  # never weakly typed

    @property
    def number(self) -> Float[Array, ""]:
        """The units as a float."""
        return self.units.astype(jnp.result_type(float))

    def __jax_array__(self) -> Float[Array, ""]:
        return self.number

    def __add__(self, other: Any) -> Any:
        return self.number + other

    def __radd__(self, other: Any) -> Any:
        return other + self.number

    def __sub__(self, other: Any) -> Any:
        return self.number - other

    def __rsub__(self, other: Any) -> Any:
        return other - self.number

    def __mul__(self, other: Any) -> Any:
        return self.number * other

    def __rmul__(self, other: Any) -> Any:
        return other * self.number

    def __truediv__(self, other: Any) -> Any:
        return self.number / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.number

    def __pow__(self, other: Any) -> Any:
        return self.number**other

    def __rpow__(self, other: Any) -> Any:
        return other**self.number


Kept: TypeAlias = Sequence[int | Int[Array, ""]]
"""How many entries along each axis of an array belong to the network: an int for all of them, an array at padding."""


def require_unpadded(value: Any, name: str) -> int:
    """Returns a size that cannot be padded; raises TypeError or ValueError for anything but an integer >= 1."""
    if isinstance(value, Padded):
        raise TypeError(
            f"{name} cannot be padded here, only the width of MLP, TwoLayerLinear and DeepLinear can; give an "
            "integer, in a sweep a list of integers, each of which is compiled separately"
        )
    return require_size(value, name)


def fan(kept: int | Int[Array, ""]) -> int | Float[Array, ""]:
    """A number of units as the scaling rules take it: a float if it may be traced, because of its negative powers."""
    return kept if isinstance(kept, int) else kept.astype(jnp.result_type(float))


def keep(array: Float[Array, "..."], kept: Kept) -> Float[Array, "..."]:
    """The array with zeros outside of the part that belongs to the network."""
    for axis, count in enumerate(kept):
        if not isinstance(count, int):
            place = jnp.arange(array.shape[axis]).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
            array = jnp.where(place < count, array, 0)
    return array


def draw_normal(key: Key[Array, ""], shape: tuple[int, ...], kept: Kept, dtype: Any) -> Float[Array, "..."]:
    """Standard normal numbers in the part of an array that belongs to the network, 0 elsewhere.

    They are the numbers that an array of just that size would hold. JAX draws every number from its place in the array,
    read row by row. Therefore the numbers of the smaller array are drawn as one row, and each is moved to its place.
    """
    if all(isinstance(count, int) for count in kept):
        return jr.normal(key, shape, dtype)
    row = jr.normal(key, (math.prod(shape),), dtype)
    place = jnp.zeros((1,) * len(shape), int)
    for axis, count in enumerate(kept):
        # The place in the smaller array, read row by row: Horner's rule over its sizes.
        place = place * count + jnp.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    # Entries outside of the smaller array may point beyond the row; they are set to 0.
    return keep(row[jnp.minimum(place, row.size - 1)], kept)


def within(kept: Kept, shape: Sequence[int]) -> Any:
    """True if every axis has at least one unit, and room for all of its units."""
    known = [(count >= 1) & (count <= size) for count, size in zip(kept, shape, strict=True)]
    return jnp.all(jnp.stack([jnp.asarray(one) for one in known]))
