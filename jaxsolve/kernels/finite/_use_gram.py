"""The contribution of each parameter to the NTK of a batch of pairs, from the records of its uses."""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._capture import Capture, Record
from ._contractions import AbstractContraction, Lookup, Split, to_base
from ._outputs import Outputs
from ._parameter_views import back_to_leaf, base, disjoint
from ._uses import Use


class Factors(NamedTuple):
    """The factors of derivatives, for some uses and a batch; integer operands are indices of one-hot vectors.

    n is 1 for factors that are the same for all samples.
    """

    split: Split
    operand: Array  # (n, positions, groups, columns) or (n, positions)
    back: Float[Array, "n out positions groups rows"]

    @classmethod
    def of(cls, contraction: AbstractContraction, record: Record) -> "Factors":
        operand, back = contraction.operand(record.inputs), contraction.cotangent(record.back)
        if not isinstance(contraction, Lookup):
            return cls(contraction.split, operand.astype(back.dtype), back)
        if contraction.clipped:
            return cls(contraction.split, operand, back)
        inside = operand < contraction.columns  # an index out of range has no cotangent
        return cls(contraction.split, operand, jnp.where(inside[:, None, :, None, None], back, 0))

    @property
    def simple(self) -> bool:
        """True if there is one position and one group."""
        return self.back.shape[2:4] == (1, 1)

    def group(self, index: int) -> "Factors":
        operand = self.operand if self.operand.ndim == 2 else self.operand[:, :, index]
        return self._replace(operand=operand, back=self.back[:, :, :, index])


def merged(contractions: list[AbstractContraction], records: list[Record]) -> list[Factors]:
    """The factors of several uses; uses of one kind are merged into one, with the positions of all."""
    kinds: dict[Any, list[Factors]] = {}
    for rule, record in zip(contractions, records, strict=True):
        # Operands of look-ups are indices, which cannot be concatenated with numbers.
        kinds.setdefault((rule.split, isinstance(rule, Lookup)), []).append(Factors.of(rule, record))
    join = lambda arrays, axis: arrays[0] if len(arrays) == 1 else jnp.concatenate(_of_as_many(arrays), axis)
    return [
        Factors(split, join([one.operand for one in found], 1), join([one.back for one in found], 2))
        for (split, _), found in kinds.items()
    ]


def _of_as_many(arrays: list[Array]) -> list[Array]:
    """The arrays, broadcast to the largest number of samples among them."""
    n = max(array.shape[0] for array in arrays)
    return [jnp.broadcast_to(array, (n, *array.shape[1:])) for array in arrays]


def derivative_by_base(factors: Factors, shape: tuple[int, ...]) -> Float[Array, "n out ..."]:
    """The derivative with respect to a base of this shape."""
    split = factors.split
    if factors.operand.ndim > 2:
        # Samples n, outputs a, positions p, groups g, rows r of cotangents, columns k of operands: sum_p b_p a_p^T.
        return to_base(jnp.einsum("napgr,npgk->nagrk", factors.back, factors.operand), split, shape)
    columns = math.prod(shape[axis] for axis in split.operand)
    # An index of `columns`, for a look-up out of range, lies outside the table and is dropped.
    add = lambda ids, values: jnp.zeros((columns, values.shape[-1]), values.dtype).at[ids].add(values, mode="drop")
    places, backs = _of_as_many([factors.operand, factors.back[:, :, :, 0]])
    tables = jax.vmap(lambda ids, backs: jax.vmap(lambda values: add(ids, values))(backs))(places, backs)
    # From (n, out, columns, rows) to (n, out, groups, rows, columns), where a look-up has one group.
    return to_base(jnp.swapaxes(tables, 2, 3)[:, :, None], split, shape)


class Costs(NamedTuple):
    """The costs of two ways to a kernel: from each sample's derivative, or from Grams of operands and cotangents."""

    derivative_work: int  # multiplications
    derivative_size: int  # numbers held
    gram_work: int
    gram_size: int

    @property
    def by_grams(self) -> bool:
        """True if Grams are cheaper."""
        return self.gram_work < self.derivative_work

    @property
    def size(self) -> int:
        """The numbers held in the cheaper way."""
        return self.gram_size if self.by_grams else self.derivative_size


def costs(contractions: list[AbstractContraction], n: int, m: int, out_size: int, outputs: Outputs) -> Costs:
    """The costs for all uses of one parameter, or of one part of it, between n and m samples."""
    pairs = n * m * (out_size**2 if outputs is Outputs.ALL else out_size)
    size = math.prod(contractions[0].shape)
    # An outer product at every position; for a look-up only the row that it reads.
    work = sum(one.positions * (size // one.columns if isinstance(one, Lookup) else size) for one in contractions)
    gram_work, gram_size = 0, 0
    for one, two in itertools.product(contractions, contractions):
        positions = one.positions * two.positions * one.groups
        inner = 1 if isinstance(one, Lookup) or isinstance(two, Lookup) else one.columns
        alone = positions == one.groups == 1  # then no sum over positions follows
        # For each pair of positions: a Gram of operands, a Gram of cotangents, and their product.
        gram_work += positions * (n * m * inner + pairs * (one.rows + (not alone)))
        gram_size = max(gram_size, positions * (n * m + pairs))
    # The derivatives of all samples and outputs, then one product of `size` numbers per pair.
    return Costs((n + m) * out_size * work + pairs * size, (n + m) * out_size * size, gram_work, gram_size)


def multiplications(found: Capture, n: int, m: int, outputs: Outputs) -> tuple[int, int]:
    """The numbers of multiplications in a network's forward pass for one sample, and in a kernel of n and m samples."""
    forward, c = 0, found.out_size
    pairs = n * m * (c**2 if outputs is Outputs.ALL else c)
    grams = 0
    for leaf in found.found.order:
        contractions = [use.contraction for use in found.found.uses[leaf]]
        size = math.prod(found.values[leaf].shape)
        forward += sum(one.positions * math.prod(one.shape) for one in contractions) or size
        known = costs(contractions, n, m, c, outputs) if contractions else None
        # Without contractions, as for biases and gains, it is the Gram of derivatives that are held.
        grams += pairs * size if known is None else min(known.gram_work, known.derivative_work)
    return forward, (n + m) // 2 * (1 + c) * forward + grams


def contribution(
    uses: list[Use],
    rate: Float[Array, ""],
    shape: tuple[int, ...],
    one: list[Record],
    two: list[Record],
    counts: tuple[int, int],
    outputs: Outputs,
) -> Float[Array, "..."]:
    """eta <df/dtheta, df/dtheta> of one parameter, between `counts` samples; axes are 1 if samples are alike."""
    if not uses:
        return rate * outputs.gram(*(_flat(records[0].back) for records in (one, two)))
    parts = _parts(uses)
    if _overlap(parts, shape):
        return rate * outputs.gram(*(_flat(_of_leaf(uses, shape, records)) for records in (one, two)))
    found = []
    for chosen in parts.values():
        contractions = [uses[index].contraction for index in chosen]
        first, second = ([records[index] for index in chosen] for records in (one, two))
        found.append(_of_part(contractions, rate, first, second, counts, outputs))
    return sum(found[1:], found[0])


def _parts(uses: list[Use]) -> dict[Any, list[int]]:
    """The uses of each part of a parameter, by the moves that cut it out."""
    parts: dict[Any, list[int]] = {}
    for index, use in enumerate(uses):
        parts.setdefault(use.view.moves, []).append(index)
    return parts


def _overlap(parts: dict[Any, list[int]], shape: tuple[int, ...]) -> bool:
    """True if several parts of a parameter share entries, so that its derivatives must be held."""
    return len(parts) > 1 and not disjoint(list(parts), shape)


def work_size(uses: list[Use], shape: tuple[int, ...], tile: int, out_size: int, outputs: Outputs) -> int:
    """The numbers that the contribution of one parameter of this shape holds between two tiles."""
    parts = _parts(uses)
    if _overlap(parts, shape):
        return 2 * tile * out_size * math.prod(shape)
    contractions = ([uses[index].contraction for index in chosen] for chosen in parts.values())
    return max((_part_size(chosen, tile, out_size, outputs) for chosen in contractions), default=0)


def _part_size(contractions: list[AbstractContraction], tile: int, out_size: int, outputs: Outputs) -> int:
    known = costs(contractions, tile, tile, out_size, outputs)
    if len(contractions) == 1 and contractions[0].positions == contractions[0].groups == 1:
        return 0  # the Grams are the contribution
    return known.size if together(contractions) else known.derivative_size


def together(contractions: list[AbstractContraction]) -> bool:
    """True if the Grams of these uses can be combined: the factors have the same axes, or swapped ones."""
    return all(_same(contractions[0], other) or _crossed(contractions[0], other) for other in contractions[1:])


def _same(one: AbstractContraction, two: AbstractContraction) -> bool:
    return one.split == two.split


def _crossed(one: AbstractContraction, two: AbstractContraction) -> bool:
    """True if the cotangent of one is on the side of the other's operand, as in a read-out tied to an embedding."""
    sides = (two.split.operand, two.split.cotangent) == (one.split.cotangent, one.split.operand)
    return sides and one.split.groups == two.split.groups == 1 and not (one.split.shared or two.split.shared)


def _of_part(
    contractions: list[AbstractContraction],
    rate: Float[Array, ""],
    one: list[Record],
    two: list[Record],
    counts: tuple[int, int],
    outputs: Outputs,
) -> Float[Array, "..."]:
    """The contribution of uses that all see the same base of a parameter."""
    if together(contractions) and costs(contractions, *counts, one[0].back.shape[1], outputs).by_grams:
        first, second = merged(contractions, one), merged(contractions, two)
        # With one position and one group the derivative is b a^T, and <b a^T, b' a'^T> = <a, a'> <b, b'>.
        if len(first) == 1 and first[0].simple:
            a, b = first[0], second[0]
            vectors = [factors.operand.reshape(-1, *factors.operand.shape[3:]) for factors in (a, b)]
            pairs = rate * _inner(*vectors).astype(a.back.dtype)
            return outputs.times(pairs, outputs.gram(*(_flat(factors.back) for factors in (a, b))))
        # The derivative by the base is the sum over kinds of use, so the kernel has all pairs of kinds.
        found = [_pair(a, b, outputs) for a, b in itertools.product(first, second)]
        return rate * sum(found[1:], found[0])
    return rate * outputs.gram(*(_flat(_of_base(contractions, records)) for records in (one, two)))


def _of_base(contractions: list[AbstractContraction], records: list[Record]) -> Float[Array, "n out ..."]:
    """The derivative with respect to the base."""
    found = [derivative_by_base(factors, contractions[0].shape) for factors in merged(contractions, records)]
    return sum(found[1:], found[0])


def _of_leaf(uses: list[Use], shape: tuple[int, ...], records: list[Record]) -> Float[Array, "n out ..."]:
    """The derivative with respect to the parameter itself."""
    total = []
    for moves, chosen in _parts(uses).items():
        derivative = _of_base([uses[index].contraction for index in chosen], [records[index] for index in chosen])
        total.append(jax.vmap(jax.vmap(lambda d, moves=moves: back_to_leaf(d, moves, shape)))(derivative))
    return sum(total[1:], total[0])


# --- Grams


def _pair(one: Factors, two: Factors, outputs: Outputs) -> Float[Array, "..."]:
    """The sum over groups and positions p, q of the products of Grams."""
    way = _windowed if one.split == two.split else _crossed_windows
    found = [way(one.group(g), two.group(g), outputs) for g in range(one.back.shape[3])]
    return sum(found[1:], found[0])


def _windowed(one: Factors, two: Factors, outputs: Outputs) -> Float[Array, "..."]:
    # K[n, a, m, b] = sum_pq <x_np, x'_mq> <s_nap, s'_mbq> with operands x and cotangents s at positions p and q.
    inputs = _inner(one.operand, two.operand).astype(one.back.dtype)  # (n, p, m, q)
    if outputs is Outputs.TRACE:  # outputs and entries are summed over alike
        by_position = lambda back: jnp.moveaxis(back, 1, 2).reshape(back.shape[0], back.shape[2], -1)
        grams = _inner(by_position(one.back), by_position(two.back))
        return jnp.sum(inputs * grams, axis=(1, 3))
    if outputs is Outputs.DIAGONAL:
        return jnp.sum(inputs[None] * jnp.einsum("napr,maqr->anpmq", one.back, two.back), axis=(2, 4))
    return jnp.sum(inputs[:, None, :, :, None, :] * _inner(one.back, two.back), axis=(2, 5))


def _crossed_windows(one: Factors, two: Factors, outputs: Outputs) -> Float[Array, "..."]:
    # Here the derivatives are b a^T and a' b'^T, so <b a^T, a' b'^T> = <a, b'> <b, a'>.
    left = _inner(one.operand, two.back)  # (n, p, m, b, q)
    right = _inner(one.back, two.operand)  # (n, a, p, m, q)
    if outputs is Outputs.ALL:
        return jnp.sum(left[:, None] * right[:, :, :, :, None], axis=(2, 5))
    left = jnp.moveaxis(left, 3, 1)  # b = a
    if outputs is Outputs.TRACE:
        return jnp.sum(left * right, axis=(1, 2, 4))
    return jnp.moveaxis(jnp.sum(left * right, axis=(2, 4)), 1, 0)


def _inner(one: Array, two: Array) -> Array:
    """Inner products over the last axis, all with all; integers are the indices of one-hot vectors."""
    looked = [jnp.issubdtype(array.dtype, jnp.integer) for array in (one, two)]
    if all(looked):
        # The product of two one-hot vectors is 1 if their indices are equal.
        return (one.reshape(-1, 1) == two.reshape(1, -1)).reshape(*one.shape, *two.shape)
    if looked[1]:
        # The product with a one-hot vector is the entry at its index.
        return jnp.take(one, two, axis=-1, mode="fill", fill_value=0)
    if looked[0]:
        found = _inner(two, one)
        return jnp.transpose(found, (*range(two.ndim - 1, found.ndim), *range(two.ndim - 1)))
    product = one.reshape(-1, one.shape[-1]) @ two.reshape(-1, two.shape[-1]).T
    return product.reshape(*one.shape[:-1], *two.shape[:-1])


def _flat(rows: Float[Array, "n out ..."]) -> Float[Array, "n out entries"]:
    return rows.reshape(*rows.shape[:2], -1)


# --- products with vectors


def push(use: Use | None, v: Float[Array, "..."], record: Record) -> Float[Array, "n out"]:
    """The contribution of one use to J v, if the parameter moves by v."""
    if use is None:
        return _flat(record.back) @ v.reshape(-1)
    factors = Factors.of(use.contraction, record)
    matrix = use.contraction.from_base(base(v, use.view.moves)).astype(factors.back.dtype)
    if isinstance(use.contraction, Lookup):
        moved = jnp.take(matrix[0].T, factors.operand, axis=0, mode="fill", fill_value=0)[:, :, None]
    else:
        moved = jnp.einsum("npgk,grk->npgr", factors.operand, matrix)
    # J v by the chain rule: the step's output change times the cotangent, over all positions, groups and rows.
    return jnp.einsum("nak,nk->na", _flat(factors.back), moved.reshape(moved.shape[0], -1))


def pull(use: Use | None, q: Float[Array, "n out"], record: Record, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The contribution of one use to J^T q."""
    # q weights the outputs before the outer products, so that these are computed once and not per output.
    back = jnp.einsum("na,na...->n...", q, record.back)
    if use is None:
        return jnp.sum(back, axis=0)
    contraction = use.contraction
    operand, one_output = contraction.operand(record.inputs), contraction.cotangent(back[:, None])[:, 0]
    if isinstance(contraction, Lookup):
        ids, values = operand.reshape(-1), one_output.reshape(-1, contraction.rows)
        table = jnp.zeros((contraction.columns, contraction.rows), values.dtype).at[ids].add(values, mode="drop")
        found = table.T[None]
    else:
        columns = _by_columns(one_output.reshape(-1, *one_output.shape[2:]))
        found = jnp.einsum("grx,xgk->grk", columns, operand.reshape(-1, *operand.shape[2:]).astype(back.dtype))
    return back_to_leaf(to_base(found, contraction.split, contraction.shape), use.view.moves, shape)


def _by_columns(rows: Float[Array, "n groups rows"]) -> Float[Array, "groups rows n"]:
    """The transpose, copied: on CPU, XLA multiplies by a transposed view at half the speed."""
    return jax.lax.optimization_barrier(jnp.moveaxis(rows, 0, 2))
