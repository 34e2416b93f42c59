"""Thousands of starts in one batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve.nets import LambdaBalanced, Shapes
from tests.cases import eps, scaling


def _start(init, sizes, key):
    shapes = Shapes(tuple((out, into) for into, out in itertools.pairwise(sizes)), False, jnp.result_type(float))
    return init(shapes, jax.tree.map(jnp.asarray, scaling(len(sizes) - 1)), key)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5])
def test_thousands_of_balanced_starts(size):
    """XLA's QR of thousands of matrices would not come back; every start is balanced."""
    make = lambda key: _start(LambdaBalanced(0.0), (size, size, size), key).weights
    below, above = jax.jit(jax.vmap(make))(jax.random.split(jax.random.key(0), 8000))
    assert below.shape == (8000, size, size)
    eta = np.array(scaling(2).eta)
    offset = np.einsum("kab,kac->kbc", above, above) / eta[1] - np.einsum("kab,kcb->kac", below, below) / eta[0]
    np.testing.assert_allclose(offset, 0, atol=eps(200))
    one = make(jax.random.split(jax.random.key(0), 8000)[7])
    np.testing.assert_allclose(below[7], one[0], atol=eps(100))
