"""Views of a parameter before it meets data: rearranged, cast or scaled, it is still the same parameter."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


# One rearrangement: its name and its arguments.
Move = tuple[str, tuple[Any, ...]]

_MOVES: dict[str, Callable[..., Array]] = {
    "reshape": lambda a, shape: jnp.reshape(a, shape),
    "transpose": lambda a, order: jnp.transpose(a, order),
    "slice": lambda a, starts, limits, strides: jax.lax.slice(a, starts, limits, strides),
    "rev": lambda a, axes: jnp.flip(a, axes),
}


class ParameterView(NamedTuple):
    """A parameter as the program holds it: base[order] times scales, where the base is the leaf after `moves`.

    Attributes:
        leaf: the index of the parameter.
        moves: the rearrangements that turn the leaf into the base.
        shape: the shape of the base.
        order: the axes of the base, in the order of the view.
        scales: slots of the numbers that multiply it, each with a power of 1 or -1.
        sign: 1 or -1.
        spread: whether it is broadcast along axes.
    """

    leaf: int
    moves: tuple[Move, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    scales: tuple[tuple[int, int], ...] = ()
    sign: int = 1
    spread: bool = False

    @classmethod
    def of_leaf(cls, leaf: int, shape: tuple[int, ...]) -> "ParameterView":
        return cls(leaf, (), shape, tuple(range(len(shape))))

    def transposed(self, order: tuple[int, ...]) -> "ParameterView":
        return self._replace(order=tuple(self.order[axis] for axis in order))

    def moved(self, name: str, *details: Any) -> "ParameterView":
        """The view after another rearrangement."""
        # Transposes are only recorded in `order`, which products and look-ups use directly. They become a move before
        # another move, which needs the entries in that order.
        moves = self.moves
        if self.order != tuple(range(len(self.order))):
            moves = (*moves, ("transpose", (self.order,)))
        shape = tuple(self.shape[axis] for axis in self.order)
        # Only the shape is needed, so any dtype serves.
        new = jax.eval_shape(lambda a: _MOVES[name](a, *details), jax.ShapeDtypeStruct(shape, np.int32)).shape
        if new == shape and name == "reshape":
            return self
        return self._replace(moves=(*moves, (name, details)), shape=new, order=tuple(range(len(new))))

    def scaled(self, slot: int, power: int) -> "ParameterView":
        return self._replace(scales=(*self.scales, (slot, power)))


def base(leaf: Array, moves: tuple[Move, ...]) -> Array:
    """A leaf after these moves."""
    for name, details in moves:
        leaf = _MOVES[name](leaf, *details)
    return leaf


def back_to_leaf(value: Float[Array, "..."], moves: tuple[Move, ...], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The transpose of `base`, for arrays of one sample."""
    like = jax.ShapeDtypeStruct(shape, value.dtype)
    return jax.linear_transpose(lambda leaf: base(leaf, moves), like)(value)[0]


def disjoint(several: list[tuple[Move, ...]], shape: tuple[int, ...]) -> bool:
    """True if the bases that these moves cut from a leaf have no entry in common."""
    count = math.prod(shape)
    # Number the entries and move the numbers: those in a base are the entries of the leaf that it holds. This is in
    # NumPy, since under jit JAX numbers would be traced and could not be compared here.
    numbers, seen = np.arange(count).reshape(shape), np.zeros(count, bool)
    for moves in several:
        picked = np.asarray(_numpy_base(numbers, moves)).ravel()
        if seen[picked].any():
            return False
        seen[picked] = True
    return True


def _numpy_base(value: np.ndarray, moves: tuple[Move, ...]) -> np.ndarray:
    for name, details in moves:
        if name == "slice":
            starts, limits, strides = details
            steps = strides or (1,) * value.ndim
            value = value[tuple(map(slice, starts, limits, steps))]
        else:
            value = {"reshape": np.reshape, "transpose": np.transpose, "rev": np.flip}[name](value, *details)
    return value
