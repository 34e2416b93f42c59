"""Kernels of networks that were written elsewhere, against neural-tangents on this JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import jaxsolve as js


class Foreign(NamedTuple):
    """A network, its samples, and which entries of the kernel are asked for."""

    net: Any
    x: jax.Array
    traced: bool


def dense(sizes: tuple[int, ...], dtype: str) -> eqx.Module:
    """The networks of the cases A, B and C, of `eqx.nn`."""
    return eqx.nn.MLP(
        sizes[0], sizes[-1], sizes[1], len(sizes) - 2, jax.nn.relu, use_bias=False, use_final_bias=False,
        dtype=dtype, key=jax.random.key(0),
    )  # fmt: skip


def convolutional(dtype: str) -> Foreign:
    """60 images of 14 x 14, two convolutions of 16 and 32 channels, mean over pixels, ten outputs."""
    keys = jax.random.split(jax.random.key(0), 4)
    net = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 16, 3, padding=1, dtype=dtype, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 32, 3, stride=2, padding=1, dtype=dtype, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(lambda z: jnp.mean(z, (1, 2))),
            eqx.nn.Linear(32, 10, dtype=dtype, key=keys[2]),
        ]
    )
    return Foreign(net, jax.random.normal(keys[3], (60, 1, 14, 14), dtype), False)


class Block(eqx.Module):
    """A pre-norm transformer block and a read-out of the mean token."""

    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    read: eqx.nn.Linear

    def __init__(self, width: int, out_size: int, dtype: str, key: jax.Array):
        keys = jax.random.split(key, 3)
        self.norms = (eqx.nn.LayerNorm(width, dtype=dtype), eqx.nn.LayerNorm(width, dtype=dtype))
        self.attention = eqx.nn.MultiheadAttention(4, width, dtype=dtype, key=keys[0])
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, dtype=dtype, key=keys[1])
        self.read = eqx.nn.Linear(width, out_size, dtype=dtype, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        z = jax.vmap(self.norms[0])(x)
        x = x + self.attention(z, z, z)
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
        return self.read(jnp.mean(x, 0))


def transformer(dtype: str) -> Foreign:
    """64 sequences of 32 tokens, width 64, ten outputs, traced."""
    keys = jax.random.split(jax.random.key(0))
    return Foreign(Block(64, 10, dtype, keys[0]), jax.random.normal(keys[1], (64, 32, 64), dtype), True)


class Tied(eqx.Module):
    """An embedding that is the read-out as well, and a dense layer between them."""

    table: eqx.nn.Embedding
    mlp: eqx.nn.MLP

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.table.weight @ self.mlp(jnp.mean(jax.vmap(self.table)(x), 0))


def tied(dtype: str) -> Foreign:
    """64 sequences of 16 tokens out of 256, width 64, traced over 256 logits."""
    keys = jax.random.split(jax.random.key(0), 3)
    table = eqx.nn.Embedding(256, 64, dtype=dtype, key=keys[0])
    net = Tied(table, eqx.nn.MLP(64, 64, 128, 1, jnp.tanh, dtype=dtype, key=keys[1]))
    return Foreign(net, jax.random.randint(keys[2], (64, 16), 0, 256), True)


FOREIGN: dict[str, Callable[[str], Foreign]] = {
    "convolutions": convolutional,
    "transformer": transformer,
    "tied embedding": tied,
}


def ours(case: Foreign) -> tuple[Callable[..., jax.Array], Any]:
    """The kernel as a function of arrays, and its arrays."""
    arrays, static = eqx.partition(case.net, eqx.is_array)
    return lambda a, x: js.kernels.empirical(eqx.combine(a, static), x, trace=case.traced).ntk, (arrays, case.x)


def theirs(case: Foreign, nt: Any, implementation: str, vmap_axes: int | None) -> tuple[Callable[..., jax.Array], Any]:
    """The same by neural-tangents; all outputs as (n, n, c, c)."""
    params, static = eqx.partition(case.net, eqx.is_inexact_array)
    kernel = nt.empirical_ntk_fn(
        lambda p, x: jax.vmap(eqx.combine(p, static))(x),
        trace_axes=(-1,) if case.traced else (),
        vmap_axes=vmap_axes,
        implementation=nt.NtkImplementation[implementation],
    )
    scale = jax.eval_shape(jax.vmap(case.net), case.x).shape[-1] if case.traced else 1  # theirs is the mean
    return lambda p, x: scale * kernel(x, None, p), (params, case.x)
