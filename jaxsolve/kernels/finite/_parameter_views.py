"""The views of a parameter before it meets data: rearranged, cast and scaled, it is still that parameter."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


# One rearrangement: its name and what it takes.
Move = tuple[str, tuple[Any, ...]]

_MOVES: dict[str, Callable[..., Array]] = {
    "reshape": lambda a, shape: jnp.reshape(a, shape),
    "transpose": lambda a, order: jnp.transpose(a, order),
    "slice": lambda a, starts, limits, strides: jax.lax.slice(a, starts, limits, strides),
    "rev": lambda a, axes: jnp.flip(a, axes),
}


class ParameterView(NamedTuple):
    """A parameter as the program holds it: base[order] times scales, where the base is the leaf after some moves.

    Attributes:
        leaf: which parameter.
        moves: what makes the base of the leaf.
        shape: of the base.
        order: the axes of the base, in the order in which the view has them.
        scales: slots of numbers that multiply it, each with its power 1 or -1.
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
        """After another rearrangement of the view."""
        # Transposes are only noted in `order`, which products and look-ups can use as it is. They become a move before
        # another one, which needs the entries in this order.
        moves = self.moves
        if self.order != tuple(range(len(self.order))):
            moves = (*moves, ("transpose", (self.order,)))
        shape = tuple(self.shape[axis] for axis in self.order)
        # Only the shape is asked for, so any dtype serves.
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
    """True if bases that these moves make of a leaf have no entry in common."""
    count = math.prod(shape)
    # Entries are numbered, and the numbers follow the moves: those of a base say which entries of the leaf it holds. In
    # NumPy, since under jit the numbers of JAX would be traced, and could not be compared here.
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
