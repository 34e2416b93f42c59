"""Models of Flax NNX, called on one sample. Imported only where Flax is installed."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree


def called(model: Any, x: Any, key: Any) -> Any:
    """The output of a model. A key turns dropout on, and seeds the model's random streams and those of the call."""
    if key is None:
        return model(x)
    model.set_attributes(deterministic=False, raise_if_not_found=False)
    tags = sorted({part.key.tag for _, part in nnx.iter_graph(model) if isinstance(part, nnx.RngStream)})
    of_call, *keys = jax.random.split(key, len(tags) + 1)
    seeds: Any = dict(zip(tags, keys, strict=True))
    nnx.reseed(model, **seeds)
    return model(x, rngs=nnx.Rngs(of_call)) if "rngs" in inspect.signature(model).parameters else model(x)


def with_statistics(
    params: PyTree, x: Any, graph: Any, rest: Any, *, statistics: PyTree, inference: bool, key: Any = None
) -> tuple[Array, PyTree]:
    """The output for one sample of a model from `by_batch`, with dropout if there is a key, and its statistics."""
    model = nnx.merge(graph, params, statistics, rest)
    if inference:
        model.eval()
    out = called(model, jax.tree.map(lambda leaf: leaf[None], x), key)
    return out[0], nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))


def by_batch(model: Any) -> Any:
    """A copy of the model without dropout that normalizes over the mapped axis "batch"."""
    model = nnx.clone(model)
    is_norm = lambda part: isinstance(part, nnx.BatchNorm) and part.use_running_average is False
    norms = [part for _, part in nnx.iter_graph(model) if is_norm(part)]
    if not norms:
        raise ValueError(
            f"this {type(model).__name__} has no nnx.BatchNorm in training mode: call model.train() for one that has, "
            "and give js.nets.from_nnx(model) of one without"
        )
    for norm in norms:
        norm.__class__ = _ByBatch
    model.set_attributes(deterministic=True, raise_if_not_found=False)
    return model


class _ByBatch(nnx.BatchNorm):
    """Batch normalization that keeps the statistics of the batch.

    Flax stops the gradient of the averages that it keeps, which derivatives of outputs for other inputs need.
    """

    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        if not (self.use_running_average if use_running_average is None else use_running_average):
            features = [axis % x.ndim for axis in jax.tree.leaves(self.axis)]
            axes = tuple(axis for axis in range(x.ndim) if axis not in features)
            average = lambda values: jax.lax.pmean(jnp.mean(values, axes, where=mask), "batch")
            wide = x.astype(self.mean[...].dtype)
            mean = average(wide)
            self.mean[...], self.var[...] = mean, average((wide - jnp.expand_dims(mean, axes)) ** 2)
        return nnx.BatchNorm.__call__(self, x, True)
