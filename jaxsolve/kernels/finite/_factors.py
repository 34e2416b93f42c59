"""The two factors of a parameter's derivative: the operands that it meets, and the signals propagated back."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._capture import Signal
from ._meetings import AbstractMeeting, Lookup, Split, to_base


class Factors(NamedTuple):
    """Of some uses and a batch; operands that are integers are the places of single ones.

    Of what is the same for all samples, n is 1.
    """

    split: Split
    operand: Array  # (n, positions, groups, columns) or (n, positions)
    back: Float[Array, "n out positions groups rows"]

    @classmethod
    def of(cls, meeting: AbstractMeeting, signal: Signal) -> "Factors":
        operand, back = meeting.operand(signal.inputs), meeting.signal(signal.back)
        if not isinstance(meeting, Lookup):
            return cls(meeting.split, operand.astype(back.dtype), back)
        if meeting.clipped:
            return cls(meeting.split, operand, back)
        inside = operand < meeting.columns  # a look-up of nothing sends nothing back
        return cls(meeting.split, operand, jnp.where(inside[:, None, :, None, None], back, 0))

    @property
    def simple(self) -> bool:
        """Whether there is one position and one group."""
        return self.back.shape[2:4] == (1, 1)

    def group(self, index: int) -> "Factors":
        operand = self.operand if self.operand.ndim == 2 else self.operand[:, :, index]
        return self._replace(operand=operand, back=self.back[:, :, :, index])


def merged(meetings: list[AbstractMeeting], signals: list[Signal]) -> list[Factors]:
    """The factors of several uses; those of one kind are one use with the positions of all."""
    kinds: dict[Any, list[Factors]] = {}
    for meeting, signal in zip(meetings, signals, strict=True):
        kinds.setdefault((meeting.split, isinstance(meeting, Lookup)), []).append(Factors.of(meeting, signal))
    join = lambda arrays, axis: arrays[0] if len(arrays) == 1 else jnp.concatenate(_of_as_many(arrays), axis)
    return [
        Factors(split, join([one.operand for one in found], 1), join([one.back for one in found], 2))
        for (split, _), found in kinds.items()
    ]


def _of_as_many(arrays: list[Array]) -> list[Array]:
    """The same arrays, each with as many samples as the one with most."""
    n = max(array.shape[0] for array in arrays)
    return [jnp.broadcast_to(array, (n, *array.shape[1:])) for array in arrays]


def derivative_by_base(factors: Factors, shape: tuple[int, ...]) -> Float[Array, "n out ..."]:
    """The derivative by a base of this shape."""
    split = factors.split
    if factors.operand.ndim > 2:
        return to_base(jnp.einsum("napgr,npgk->nagrk", factors.back, factors.operand), split, shape)
    columns = math.prod(shape[axis] for axis in split.operand)
    add = lambda ids, values: jnp.zeros((columns, values.shape[-1]), values.dtype).at[ids].add(values, mode="drop")
    places, backs = _of_as_many([factors.operand, factors.back[:, :, :, 0]])
    tables = jax.vmap(lambda ids, backs: jax.vmap(lambda values: add(ids, values))(backs))(places, backs)
    return to_base(jnp.swapaxes(tables, 2, 3)[:, :, None], split, shape)
