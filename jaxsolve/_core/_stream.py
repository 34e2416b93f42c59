"""A problem with fresh samples at every step."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from .._checks import attempt, describe, require_key, require_size
from .._numerics import Inputs, is_tree, map_arrays
from .._programs import depends_on_inputs
from ..losses import AbstractLoss, MSE
from ._dynamics import is_key
from ._problem import Problem
from ._sampler import Sampler


CALLED = "sample is called as sample(key, size) in a compiled program, and returns a pair (x, y) of arrays"


def Stream(  # named like a class, because it returns a `Problem`
    net: Any,
    sample: Callable[[Key[Array, ""], int], tuple[Any, Any]],
    *,
    key: Key[Array, ""],
    size: int = 1024,
    test: tuple[Any, Any] | None = None,
    loss: AbstractLoss | Callable[[Array, Array], Array] = MSE(),
    centered: bool = False,
    weight_decay: Any = None,
    state: eqx.nn.State | None = None,
) -> Problem:
    """The `Problem` of a network that sees every sample once: each step of `js.Descent` draws a fresh batch.

    Use it wherever a problem is accepted. Its `x` and `y` are `size` samples that are drawn once, by `key`. Losses,
    kernels and everything else observed are computed on them, and estimate the population's. Training does not see
    them, so they are a test set. `js.Descent` needs its `batch_size` and `key`, and draws `batch_size` samples at each
    step, which may be `size` or more. Other dynamics need a training set, which a stream does not have, so they raise.

    Arguments:
        net: as for `js.Problem`.
        sample: a function of a random key and a size that returns that many inputs and their targets, as `js.Problem`
            takes them. JAX must be able to trace it. Arrays that it closes over become arrays of the problem, which a
            sweep may vary.
        key: the random key of the samples that are held.
        size: the number of samples that are held.
        test, loss, centered, weight_decay, state: as for `js.Problem`.

    Raises:
        TypeError: sample is not a function, cannot be traced or does not return a pair; key is not a `jax.random.key`.
        ValueError: sample returns another number of samples than requested, or the same ones for every key; or as for
            `js.Problem`.

    Example:
        >>> import optax
        >>> def sample(key, size):
        ...     x = jax.random.normal(key, (size, 3))
        ...     return x, jnp.sin(2 * x[:, :1])
        >>> net = js.nets.MLP(
        ...     in_size=3, out_size=1, width_size=32, depth=1, activation="tanh",
        ...     scaling=js.nets.Scaling.ntk(), key=jax.random.key(0)
        ... )
        >>> stream = js.Stream(net, sample, key=jax.random.key(1))
        >>> descent = js.Descent(optax.sgd(0.5), batch_size=64, key=jax.random.key(2))
        >>> run = js.solve(stream, descent, [0.0, 500.0])
        >>> bool(run["loss"][1] < run["loss"][0] / 2)
        True
    """
    if not callable(sample) or isinstance(sample, type):
        raise TypeError(f"sample must be a function of a key and a number of samples, got {describe(sample)}")
    if not is_key(key):
        raise TypeError(
            "key must be a JAX random key such as jax.random.key(1), which draws the samples that the "
            f"stream holds, got {describe(key)}"
        )
    require_key(key)
    size, sampler = require_size(size, "size"), Sampler(sample)
    traced, error = attempt(lambda: eqx.filter_make_jaxpr(lambda key: sampler(key, size))(key))
    if error is not None:
        raise TypeError(f"{CALLED}; it fails: {error or type(error).__name__}") from error
    program, found, _ = traced
    _require_pair(found)
    if not any(depends_on_inputs(program)):
        raise ValueError(
            "sample returned the same samples for two keys: draw them with its key, as in jax.random.normal(key, "
            "(size, d)); a compiled program runs no random generator but JAX's"
        )
    x, y = sampler(key, size)
    _require_size((x, y), size)
    problem = Problem(net, x, y, test=test, loss=loss, centered=centered, weight_decay=weight_decay, state=state)
    return eqx.tree_at(lambda p: p.sampler, problem, sampler, is_leaf=lambda leaf: leaf is None)


def fresh(problem: Problem, key: Key[Array, ""], size: int) -> tuple[Inputs, Array]:
    """`size` fresh inputs and targets of a stream, for use inside a program.

    Raises:
        TypeError, ValueError: they do not match the samples that the stream holds.
    """
    assert problem.sampler is not None
    x, y = _require_pair(problem.sampler(key, size))
    _require_size((x, y), size)
    if jax.tree.structure(x) != jax.tree.structure(problem.x):
        raise TypeError(f"sample must return inputs such as those held by the stream, got {describe(x)}")
    shapes = lambda tree: [jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(tree)]
    if shapes(x) != shapes(problem.x):
        raise ValueError(f"samples must have the shapes {shapes(problem.x)} of those held, got {shapes(x)}")
    x = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), x, problem.x)
    return x, problem.loss.targets(y, problem.out_size).astype(problem.y.dtype)


def _require_pair(found: Any) -> tuple[Any, Any]:
    if not isinstance(found, tuple | list) or len(found) != 2 or is_tree(found[1]):
        raise TypeError(f"{CALLED}; it returned {describe(found)}")
    return found[0], found[1]


def _require_size(pair: tuple[Any, Any], size: int) -> None:
    """Raises ValueError for a number of samples other than `size`."""
    shapes = [jnp.shape(leaf) for leaf in [*jax.tree.leaves(map_arrays(jnp.asarray, pair[0])), pair[1]]]
    if any(shape[:1] != (size,) for shape in shapes):
        raise ValueError(f"sample(key, {size}) must return {size} inputs and targets, got arrays of shapes {shapes}")
