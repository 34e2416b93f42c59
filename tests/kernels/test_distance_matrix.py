"""Kernel distances between all times, by their definition in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve import kernels
from tests.cases import assert_fails, eps


def test_distances_between_all_times(getkey, as_users):
    some = jax.random.normal(getkey(), (4, 3, 2, 3, 2))
    found = kernels.distance_matrix(some)
    flat = np.asarray(some).reshape(4, -1)
    norms = np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(found, 1 - flat @ flat.T / np.outer(norms, norms), atol=eps(20))
    # The second kernel's norm is left out.
    wrong = 1 - flat @ flat.T / norms[:, None] ** 2
    assert_fails(lambda: np.testing.assert_allclose(found, wrong, atol=1e-3))
    with pytest.raises(ValueError, match=r"along a first axis, such as \(times, n, n\), got \(3,\)"):
        kernels.distance_matrix(jnp.ones(3))
