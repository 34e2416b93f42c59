"""A network's samples in batches: the batch size, and sums and maps over all batches."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._checks import require_size
from ..._numerics import Inputs, one_of, samples_in, take_samples
from ..._programs import both_ways, channels_last
from ...nets import partition
from ._capture import output_of


# Bytes that a backward pass may keep for one batch if no batch size is given: enough samples to keep the processor
# busy, but little beside the memory of any machine.
BATCH_MEMORY = 64 * 2**20


def function(net: Any) -> tuple[PyTree, Callable[[PyTree, Array], Array]]:
    """The trainable arrays, and the network as a function of them and a batch, with derivatives in both modes."""
    params, static = partition(net)
    dtype = dtype_of(params)
    return params, lambda p, x: rows(jax.vmap(both_ways(eqx.combine(p, static)))(x)).astype(dtype)


def dtype_of(params: PyTree) -> Any:
    """The dtype of kernels and products: the dtype of the parameters, whatever the network computes in."""
    return jax.tree.leaves(params)[0].dtype


def rows(f: Float[Array, "n ..."]) -> Float[Array, "n out"]:
    """The outputs of a batch, each as one vector."""
    return f.reshape(f.shape[0], -1)


def output(net: Any, x: Inputs) -> jax.ShapeDtypeStruct:
    """The shape and dtype of one sample's output in `function`; raises ValueError if it is not an array of reals."""
    return jax.ShapeDtypeStruct(output_of(net, one_of(x)).shape, dtype_of(partition(net)[0]))


def choose_batch_size(net: Any, x: Inputs, given: int | None) -> int:
    """The batch size, as given or as memory allows, evened out so that the last batch needs little padding."""
    output(net, x)
    if given is not None:
        most = require_size(given, "batch_size")
    else:
        # The memory of one more sample: the parameters, which a backward pass also keeps, cancel.
        most = max(1, BATCH_MEMORY // max(1, saved(net, x, 2) - saved(net, x, 1)))
    samples = samples_in(x)
    batches = -(-samples // most)
    return -(-samples // batches)


def saved(net: Any, x: Inputs, samples: int) -> int:
    """The bytes that the backward pass of `samples` samples keeps from the forward pass."""
    params, f = function(net)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((samples, *leaf.shape), leaf.dtype), one_of(x))
    backward = eqx.filter_eval_shape(lambda p, x: jax.vjp(lambda q: f(q, x), p)[1], params, batch)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward) if hasattr(leaf, "dtype"))


def _batches(array: Float[Array, "n ..."], size: int, *, repeat: bool) -> Float[Array, "batches size ..."]:
    """The rows in batches, the last padded with copies of the first row (where any network is finite) or zeros."""
    missing = -array.shape[0] % size
    fill = jnp.broadcast_to(array[:1] if repeat else jnp.zeros_like(array[:1]), (missing, *array.shape[1:]))
    return jnp.concatenate([array, fill]).reshape(-1, size, *array.shape[1:])


def _repeated(x: Inputs, size: int) -> Inputs:
    return jax.tree.map(lambda leaf: _batches(leaf, size, repeat=True), x)


def sum_batches(fn: Callable[..., PyTree], size: int, x: Inputs, *weights: Array) -> PyTree:
    """The sum over batches of fn(x, *weights), which is jointly linear in the weights."""
    if samples_in(x) <= size:
        return fn(x, *weights)
    # Rows that pad the last batch have weight 0. Their samples are copies, not zeros, since 0 times NaN is NaN.
    rows = (_repeated(x, size), *(_batches(w, size, repeat=False) for w in weights))
    add = lambda total, row: (jax.tree.map(jnp.add, total, channels_last(fn)(*row)), None)
    first = take_samples(rows, 0)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fn, *first))
    return jax.lax.scan(add, zero, rows)[0]


def map_batches(fn: Callable[[Inputs], Array], size: int, x: Inputs) -> Array:
    """The rows of fn(x), batch by batch."""
    if samples_in(x) <= size:
        return fn(x)
    rows = jax.lax.map(channels_last(fn), _repeated(x, size))
    return rows.reshape(-1, *rows.shape[2:])[: samples_in(x)]
