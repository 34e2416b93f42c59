"""How long `js.diagnose` takes for networks that people bring: a vision transformer, a CNN, a language model.

Each in a process of its own, in float32: a first diagnosis, and a second one of other weights, in processor time.
"""

import math
import resource
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import jaxsolve as js

from ._said import Row
from ._timing import clock, own_process


class Blocks(eqx.Module):
    """Pre-norm blocks of attention and dense layers, over positions."""

    attention: list[eqx.nn.MultiheadAttention]
    dense: list[eqx.nn.MLP]
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, width: int, depth: int, hidden: int, key: jax.Array):
        keys = jr.split(key, 2 * depth)
        self.attention = [eqx.nn.MultiheadAttention(4, width, key=one) for one in keys[:depth]]
        self.dense = [eqx.nn.MLP(width, width, hidden, 1, jax.nn.gelu, key=one) for one in keys[depth:]]
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2 * depth + 1)]

    def __call__(self, h: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        for k, (attention, dense) in enumerate(zip(self.attention, self.dense, strict=True)):
            z = jax.vmap(self.norms[2 * k])(h)
            h = h + attention(z, z, z, mask=mask)
            h = h + jax.vmap(lambda one, k=k, dense=dense: dense(self.norms[2 * k + 1](one)))(h)
        return jax.vmap(self.norms[-1])(h)


class VisionTransformer(eqx.Module):
    """Classes of images of 32 x 32 pixels, by patches of 4 x 4."""

    embed: eqx.nn.Conv2d
    place: jax.Array
    blocks: Blocks
    read: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jr.split(key, 4)
        self.embed = eqx.nn.Conv2d(3, 64, 4, 4, key=keys[0])
        self.place = 0.02 * jr.normal(keys[1], (64, 64))
        self.blocks = Blocks(64, 5, 256, keys[2])
        self.read = eqx.nn.Linear(64, 10, key=keys[3])

    def __call__(self, image: jax.Array) -> jax.Array:
        h = self.embed(image).reshape(64, -1).T + self.place
        return self.read(jnp.mean(self.blocks(h), axis=0))


class LanguageModel(eqx.Module):
    """Logits of the next of 50 symbols at each of 8 places."""

    embed: eqx.nn.Embedding
    place: jax.Array
    blocks: Blocks
    read: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jr.split(key, 4)
        self.embed = eqx.nn.Embedding(50, 64, key=keys[0])
        self.place = 0.02 * jr.normal(keys[1], (8, 64))
        self.blocks = Blocks(64, 2, 256, keys[2])
        self.read = eqx.nn.Linear(64, 50, key=keys[3])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = self.blocks(jax.vmap(self.embed)(tokens) + self.place, jnp.tril(jnp.ones((8, 8), bool)))
        return jax.vmap(self.read)(h)


def convolutional(key: jax.Array) -> eqx.Module:
    """Two convolutions and two dense layers on images of 28 x 28 pixels, as in Flax's example of MNIST."""
    keys = jr.split(key, 4)
    pool = eqx.nn.AvgPool2d(2, 2)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 32, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            pool,
            eqx.nn.Conv2d(32, 64, 3, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            pool,
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(3136, 256, key=keys[2]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Linear(256, 10, key=keys[3]),
        ]
    )


class Case(NamedTuple):
    """A network, and the samples and steps of its diagnosis."""

    make: Callable[[jax.Array], Any]
    shape: tuple[int, ...]  # of all inputs
    steps: int
    tokens: bool = False

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and integer targets: classes, or the next symbols."""
        rng = np.random.default_rng(0)
        if self.tokens:
            text = rng.integers(0, 50, (self.shape[0], self.shape[1] + 1))
            return text[:, :-1], text[:, 1:]
        return rng.normal(size=self.shape).astype(np.float32), rng.integers(0, 10, self.shape[0])


CASES = {
    "vision transformer": Case(VisionTransformer, (16, 3, 32, 32), 20),
    "CNN": Case(convolutional, (64, 1, 28, 28), 50),
    "language model, 8 tokens": Case(LanguageModel, (8, 8), 40, tokens=True),
}


def main(*, quick: bool) -> Iterator[Row]:
    """All three; the quick part is the language model alone."""
    for name in list(CASES)[-1 if quick else 0 :]:
        code = f"from benchmarks.models import diagnosed; print(*diagnosed({name!r}))"
        count, gradient, first, second, memory = own_process(code, JAX_ENABLE_X64="0")
        case = CASES[name]
        what = f"{name}, {count / 1e3:.0f},000 weights, {case.shape[0]} samples, {case.steps} steps"
        note = f"a gradient takes {1e3 * gradient:.3g} ms; {memory:.2g} GB held"
        yield Row(f"{what}: seconds of a first diagnosis", first, "<=", 20.0, note=note)
        yield Row(f"{what}: seconds of a second", second, "<=", 3.0, note=f"{second / gradient:.0f} gradients")


def diagnosed(name: str) -> tuple[float, ...]:
    """Parameters; seconds of a gradient, a first and a second diagnosis; GB held. For a process of its own."""
    case = CASES[name]
    x, y = case.data()
    nets = [jax.block_until_ready(eqx.filter_jit(case.make)(jr.key(seed))) for seed in range(2)]
    seconds = []
    for net in nets:
        begin = clock()
        js.diagnose(net, x, y, optimizer=optax.adam(1e-3), loss=js.losses.CrossEntropy(), steps=case.steps)
        seconds.append(clock() - begin)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    problem = js.Problem(nets[0], x, y, loss=js.losses.CrossEntropy())
    gradient = eqx.filter_jit(lambda problem: jax.grad(problem.objective)(problem.params))
    jax.block_until_ready(gradient(problem))
    begin = clock()
    for _ in range(10):
        jax.block_until_ready(gradient(problem))
    one = (clock() - begin) / 10
    return math.fsum(leaf.size for leaf in jax.tree.leaves(problem.params)), one, *seconds, memory
