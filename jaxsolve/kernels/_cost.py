"""Which implementation of neural-tangents is cheaper for a function, before either runs."""

import math
from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree


def jacobian_is_cheaper(f: Callable[[PyTree, Array], Array], params: PyTree, x1: Array, x2: Array) -> bool:
    """Whether JACOBIAN_CONTRACTION costs less than NTK_VECTOR_PRODUCTS.

    With F operations in a forward pass of one sample, c outputs and P parameters, all pairs of n and m samples cost
    3 F c (n + m) + 2 n m c^2 P by Jacobians, and 5 F n m c by products.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    sample = jax.ShapeDtypeStruct((1, *x1.shape[1:]), x1.dtype)
    n, m, c = x1.shape[0], x2.shape[0], jax.eval_shape(f, shapes, sample).shape[-1]
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    analysis = jax.jit(f).lower(shapes, sample).cost_analysis() or {}
    # XLA counts the operations. Where it does not, take a multiplication and an addition per parameter.
    forward = analysis.get("flops", 2.0 * size)
    return 3 * forward * c * (n + m) + 2 * n * m * c**2 * size <= 5 * forward * n * m * c
